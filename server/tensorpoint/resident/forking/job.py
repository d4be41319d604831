"""Carries out one job: calls a function with a JSON payload; its answer goes back as JSON.

`python job.py MODULE:FUNCTION MEMORY_MIB PATH...`, payload on standard input, the answer on what
standard output was: what the function prints goes to standard error. Runs in a fork of a zygote or,
cold, in a process of its own; standard library only, and nothing of ours stays importable.
"""

import importlib
import json
import os
import resource
import sys
import traceback

_MIB = 1 << 20


def main() -> None:
    """Read, call, write."""
    del sys.path[0]  # the folder of this file
    name, memory, *path = sys.argv[1:]
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.path[:0] = path
    _limit(int(memory) * _MIB)
    try:
        payload = json.load(sys.stdin)
        module, _, function = name.partition(":")
        value = getattr(importlib.import_module(module), function)(payload)
        text = json.dumps({"value": value})
    except MemoryError:
        text = json.dumps({"error": f"it needs more than {memory} MiB of memory"})
    except BaseException as error:
        text = json.dumps(
            {
                "error": f"{type(error).__name__}: {error}",
                "traceback": "".join(traceback.format_exception(error)),
            }
        )
    with answer:
        answer.write(text)


def _limit(more: int) -> None:
    """Let the process have this many bytes beyond what it has: a fork starts with the zygote's."""
    if more:
        with open("/proc/self/statm", encoding="ascii") as stream:
            now = int(stream.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + more, now + more))


if __name__ == "__main__":
    main()
