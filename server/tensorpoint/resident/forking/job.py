"""Carries out one job: calls a function with a JSON payload; its answer goes back as JSON.

`python job.py [--asks] MODULE:FUNCTION MEMORY_MIB PATH...`, payload on standard input, the answer
on what standard output was: what the function prints goes to standard error. With `--asks` the
function has a second argument, by which it asks who wants the answer: a line of JSON goes there,
one comes back. Runs in a fork of a zygote or, cold, in a process of its own; standard library only,
and nothing of ours stays importable.

What it has imported goes with the answer, not to the zygote at the end, as that of programs does:
who has an answer ends the process, and one that is not allowed to connect can't tell.
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
    last = next(reversed(sys.modules))
    asks = sys.argv[1] == "--asks"
    name, memory, *path = sys.argv[1 + asks :]
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    told = os.fdopen(os.dup(0), encoding="utf-8")
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    sys.path[:0] = path
    _limit(int(memory) * _MIB)

    def ask(question):
        answer.write(json.dumps({"question": question}) + "\n")
        answer.flush()
        return json.loads(told.readline())

    try:
        payload = json.loads(told.readline())
        module, _, function = name.partition(":")
        called = getattr(importlib.import_module(module), function)
        value = called(payload, ask) if asks else called(payload)
        text = json.dumps({"value": value, "imported": _imported(last)})
    except MemoryError:
        text = json.dumps({"error": f"it needs more than {memory} MiB of memory"})
    except BaseException as error:
        text = json.dumps(
            {
                "error": f"{type(error).__name__}: {error}",
                "traceback": "".join(traceback.format_exception(error)),
                "imported": _imported(last),
            }
        )
    with answer:
        answer.write(text)


def _imported(last):
    """What has been imported after a module of what is installed, in that order.

    From the end: in a fork each object that is looked at is a page to be copied, 25 ms for all.
    """
    names = []
    for name in reversed(sys.modules):
        if name == last:
            break
        names.append(name)
    found = []
    for name in reversed(names):
        scope = getattr(sys.modules[name], "__dict__", {})
        spec, file = scope.get("__spec__"), scope.get("__file__")
        if "-packages" in (file or "") and getattr(spec, "name", "") == name:
            if not name.startswith("_tensorpoint"):
                found.append(name)
    return found


def _limit(more: int) -> None:
    """Let the process have this many bytes beyond what it has: a fork starts with the zygote's."""
    if more:
        with open("/proc/self/statm", encoding="ascii") as stream:
            now = int(stream.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + more, now + more))


if __name__ == "__main__":
    main()
