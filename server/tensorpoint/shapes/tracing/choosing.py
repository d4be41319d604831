"""With which inputs a target is traced: what is said, then what is known, then what is guessed.

In this order: a specification; jaxtyping; the last debug run; calls in the file, then in files
beside it; what `forward` does first with an argument; sizes that are tried until one fits. The
first with which it runs is taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from .casting import NO_CASTING, Castings
from .examples import generalized, inputs_of
from .guessing import likely_inputs, parameters_of, required_of, said_inputs
from .inputs import Input, Sizes, Spec, TensorSpec
from .plugins import Plugins
from .probing import Failed, Probed, probe
from .running import Target, run
from .sizes import first_sizes
from .source import FileModule
from .targets import Made

#: Arguments by name, and where they are from.
Example = tuple[dict[str, Any], str]
#: What a step of training is given beside the inputs of `forward`: classes, numbers, nothing.
_LABELS = (TensorSpec("i64", ("B",)), TensorSpec("f32", ("B",)), TensorSpec("f32", ("B", "1")))


def try_inputs(
    file: FileModule,
    name: str,
    made: Made,
    spec: Spec,
    examples: Iterable[Example] = (),
    plugins: Plugins | None = None,
    castings: Castings = (),
) -> Probed | list[Failed]:
    """The first of the inputs with which it runs; else how it failed with each."""

    def target(inputs: tuple[Input, ...], sizes: Sizes | None = None) -> Target:
        return Target(
            *(name, made.constructor, made.module, inputs, file.recorder),
            example=sizes or {},
            castings=castings or NO_CASTING,
            plugins=plugins or Plugins(),
        )

    def runs(inputs: tuple[Input, ...]) -> bool:
        return run(target(inputs), first_sizes(inputs), record=False).error is None

    failed: list[Failed] = []
    for inputs, sizes in _candidates(made, spec, examples, runs, file.source.path):
        found = probe(target(inputs, sizes), spec.limits)
        if isinstance(found, Probed):
            return found
        failed.append(found)
    return failed


def _candidates(
    made: Made, spec: Spec, examples: Iterable[Example], runs: Any, path: str
) -> Iterator[tuple[tuple[Input, ...], Sizes]]:
    """Inputs, and the sizes that they had in a call."""
    parameters = parameters_of(made.module)
    said = said_inputs(parameters, spec)
    required = required_of(parameters)
    if not set(required) <= said.keys() or not required:
        for given, origin in examples:
            if set(required) <= given.keys() | said.keys():
                inputs = inputs_of(given, said, list(parameters), origin)
                if runs(inputs):
                    yield from generalized(inputs, runs)
                else:  # to be told how it fails
                    yield inputs, {}
    yield from ((inputs, {}) for inputs in likely_inputs(made.module, spec, path))


def step_examples(forward: tuple[Input, ...]) -> Iterator[Example]:
    """Batches for a `training_step`, from the inputs of its module's `forward`."""
    values = [each.value for each in forward]
    batches: list[Any] = [(*values, labels) for labels in _LABELS]
    batches += [values[0] if len(values) == 1 else tuple(values)]
    batches += [{**{each.name: each.value for each in forward}, "labels": _LABELS[0]}]
    for batch in batches:
        yield {"batch": batch, "batch_idx": 0}, "first use"
