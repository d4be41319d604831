"""`make sweep`: the shapes of transformers' text architectures, compared with real runs.

Each architecture that builds from a tiny configuration is traced in a fork, and then run with real
tensors at two odd sizes that no probe had, telling the values of the same expressions. A hint is
right if every value that it had there is one that it shows; one that was never reached does not
count. `python tests/bench/sweep.py [NAME ...]`; nothing is asserted, the share is printed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
for folder in (ROOT, ROOT / "server"):
    sys.path.insert(0, str(folder))

_SECONDS = 180
_LARGEST = 50_000_000
_SMALL: tuple[tuple[int, str], ...] = (
    (64, "hidden_size d_model n_embd dim embed_dim embedding_size hidden_dim word_embed_proj_dim"),
    (4, "num_attention_heads n_head num_heads n_heads encoder_attention_heads"),
    (4, "decoder_attention_heads num_experts num_local_experts n_routed_experts"),
    (2, "num_key_value_heads n_head_kv num_kv_heads num_experts_per_tok"),
    (2, "num_hidden_layers n_layer num_layers n_layers encoder_layers decoder_layers"),
    (16, "head_dim d_kv d_head"),
    (128, "intermediate_size d_ff n_inner ffn_dim encoder_ffn_dim decoder_ffn_dim"),
    (1024, "vocab_size"),
)


@dataclass
class Score:
    """One architecture. `skipped` says why there is no real run to compare with."""

    name: str
    skipped: str = ""
    failed: str = ""
    hints: int = 0
    right: int = 0
    wrong: int = 0
    unfit: int = 0
    symbolic: int = 0
    seconds: float = 0.0
    examples: tuple[str, ...] = ()


def architectures() -> dict[str, str]:
    """Text architectures of transformers: model type to class."""
    from transformers.models.auto import modeling_auto

    found: dict[str, str] = {}
    for table in ("SEQ_TO_SEQ_CAUSAL_LM", "MASKED_LM", "CAUSAL_LM"):
        names = getattr(modeling_auto, f"MODEL_FOR_{table}_MAPPING_NAMES")
        for kind, classes in names.items():
            found[kind] = classes if isinstance(classes, str) else classes[0]
    return found


def tiny(kind: str) -> dict[str, Any]:
    """What makes a configuration small."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config = CONFIG_MAPPING[kind]()
    own = getattr(type(config), "attribute_map", {})
    fields: dict[str, Any] = {}
    for value, names in _SMALL:
        for name in names.split():
            if name not in own and type(getattr(config, name, None)) is int:
                fields[name] = value
    for name in ("pad", "bos", "eos", "decoder_start", "cls", "sep", "unk", "mask"):
        token = getattr(config, f"{name}_token_id", None)
        if isinstance(token, int) and token >= 1024:
            fields[f"{name}_token_id"] = 1
    return fields


def score(kind: str, name: str) -> Score:
    """Trace and compare; runs in a fork."""
    import time

    from tensorpoint.shapes.tracing.choosing import try_inputs
    from tensorpoint.shapes.tracing.guessing import likely_inputs
    from tensorpoint.shapes.tracing.inputs import Spec
    from tensorpoint.shapes.tracing.objects import load_object, make_object
    from tensorpoint.shapes.tracing.probing import Probed
    from tensorpoint.shapes.tracing.symbolic import agreeing, trace_symbolic
    from tests.bench.truth import compare

    result = Score(kind)
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "config.json")
        try:
            config.write_text(json.dumps(tiny(kind)))
            file, found = load_object(f"transformers:{name}")
            made = make_object(file, found, str(config))
        except Exception as error:
            return Score(kind, skipped=f"{type(error).__name__}: {error}"[:120])
    if sum(each.numel() for each in made.module.parameters()) > _LARGEST:
        return Score(kind, skipped="too large")
    inputs = next(likely_inputs(made.module, Spec(), file.source.path), ())
    runs = list(_real_runs(file, made.module, inputs))
    if not inputs or any(each.error for each in runs):
        why = next((each.error for each in runs if each.error), "no inputs")
        return Score(kind, skipped=why)
    began = time.process_time()
    probed = try_inputs(file, found, made, Spec())
    result.seconds = time.process_time() - began
    if not isinstance(probed, Probed):
        crashed = probed[0].crashed[0].error if probed else None
        return Score(kind, failed=f"{type(crashed).__name__}: {crashed}"[:200])
    agreed = agreeing(probed, trace_symbolic(probed, file.source, 60))
    compared = compare(probed, runs, file.sites)
    result.hints, result.right = compared.places, len(compared.right)
    result.wrong, result.unfit = len(compared.wrong), len(compared.unfit)
    result.symbolic = len(agreed & (compared.right | compared.wrong.keys()))
    result.examples = tuple(text[:160] for text in [*compared.wrong.values()][:3])
    return result


def _real_runs(file: Any, module: Any, inputs: Any) -> Iterator[Any]:
    """At odd sizes that no probe has."""
    from tests.bench.truth import filled, ids_and_masks, real_run

    real = filled(module)
    for sizes in ({"B": 3, "T": 21, "U": 26}, {"B": 2, "T": 33, "U": 14}):
        yield real_run(file, real, inputs, sizes, ids_and_masks)


def _in_fork(kind: str, name: str) -> Score:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)

    def work() -> None:
        try:
            theirs.send(score(kind, name))
        except BaseException:
            theirs.send(Score(kind, failed=traceback.format_exc().strip().split("\n")[-1][:200]))

    process = context.Process(target=work)
    process.start()
    theirs.close()
    try:
        return (
            ours.recv() if ours.poll(_SECONDS) else Score(kind, failed=f"not within {_SECONDS} s")
        )
    except EOFError:
        return Score(kind, failed="it died")
    finally:
        process.kill()
        process.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="model types; all without")
    parser.add_argument("--every", type=int, default=1, help="only each Nth")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    known = architectures()
    names = arguments.names or sorted(known)[:: arguments.every]
    scores: list[Score] = []
    for kind in names:
        each = _in_fork(kind, known[kind])
        scores.append(each)
        print(
            f"{kind:24} {each.skipped or each.failed or ''}"
            + (f"{each.right}/{each.hints} right, {each.wrong} wrong, " if each.hints else "")
            + (f"{each.symbolic} symbolic, {each.seconds:.2f} s CPU" if each.hints else ""),
            *each.examples,
            sep="\n      ",
            flush=True,
        )
    ran = [each for each in scores if not each.skipped]
    traced = [each for each in ran if not each.failed]
    hints = sum(each.hints for each in traced) or 1
    print(
        f"{len(ran)} of {len(scores)} build and run; {len(traced)} of these are traced. "
        f"{hints} places: {sum(e.right for e in traced) / hints:.2%} right, "
        f"{sum(e.wrong for e in traced)} wrong, {sum(e.unfit for e in traced)} not shown, "
        f"{sum(e.symbolic for e in traced) / hints:.0%} symbolic"
    )
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(each) for each in scores], indent=2))


if __name__ == "__main__":
    main()
