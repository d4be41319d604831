"""What is known of the layers and parameters of one process: read by `tensorpoint/facts`.

The fields and their units are documented in docs/facts.md. What isn't known is None: of numbers
that are NaN or infinite only that is said, since JSON has neither.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Steps of which scalars are kept for each layer and parameter.
STEPS_KEPT = 64
#: Elements of an output or a parameter that statistics look at.
SAMPLE = 2048


@dataclass(frozen=True)
class Root:
    """A module that the program calls itself. `step` counts its forward calls from 0.

    `gone` if it no longer exists: the last of each class is kept. `inputs` are the arguments of the
    first call that was recorded, as an input specification (`x: f32[16, 3, 64, 64]`); "" where they
    can't be said as one.
    """

    module_type: str
    step: int | None
    gone: bool = False
    inputs: str = ""


@dataclass(frozen=True)
class Output:
    """A tensor in a layer's output; `name` says where, such as `output[0]` or `output.logits`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    device: str


@dataclass(frozen=True)
class Statistics:
    """Numbers of one output, from `looked_at` of its `elements`.

    `mean`, `std` (of a sample, as `Tensor.std`), `min` and `max` are of the finite elements and
    None where there are none. The fractions are of all that were looked at.
    """

    step: int | None
    elements: int
    looked_at: int
    sampled: bool
    mean: float | None
    std: float | None
    min: float | None
    max: float | None
    zero_fraction: float
    nonfinite_fraction: float


@dataclass(frozen=True)
class LayerHistory:
    """The newest steps, oldest first: the same position in each list is the same step."""

    step: tuple[int | None, ...]
    mean: tuple[float | None, ...]
    std: tuple[float | None, ...]
    min: tuple[float | None, ...]
    max: tuple[float | None, ...]
    zero_fraction: tuple[float | None, ...]
    nonfinite_fraction: tuple[float | None, ...]


@dataclass(frozen=True)
class Layer:
    """The last call of one module.

    `module` is the path below the root module, `root` that one's position in `Facts.roots`. `calls`
    are those of this module in `step`. `file`, `line` and `function` are the frame outside torch
    that called it first. `statistics` are of the first floating tensor of the output.
    """

    module: str
    module_type: str
    root: int
    step: int | None
    calls: int
    training: bool
    file: str | None
    line: int | None
    function: str | None
    outputs: tuple[Output, ...]
    statistics: Statistics | None
    history: LayerHistory | None


@dataclass(frozen=True)
class ParameterHistory:
    """The newest steps in which a gradient came, oldest first; lists as in `LayerHistory`.

    `gradient_norm` is None where it was not finite.
    """

    step: tuple[int | None, ...]
    optimizer_step: tuple[int | None, ...]
    gradient_norm: tuple[float | None, ...]
    norm: tuple[float | None, ...]
    update_ratio: tuple[float | None, ...]
    update_norm: tuple[float | None, ...] = ()


@dataclass(frozen=True)
class Parameter:
    """One parameter and its newest gradient.

    `step` and `optimizer_step` are those in which that gradient came, `age` the forward calls of
    the root since. `norm` is the parameter's own 2-norm after the newest optimizer step, estimated
    from a sample if `norm_sampled`. All are None for a parameter that never had a gradient.
    """

    parameter: str
    root: int | None
    dtype: str
    shape: tuple[int, ...]
    device: str
    trainable: bool
    gradient_norm: float | None
    gradient_finite: bool | None
    step: int | None
    optimizer_step: int | None
    age: int | None
    norm: float | None
    norm_sampled: bool | None
    update_ratio: float | None
    history: ParameterHistory | None
    update_norm: float | None = None


@dataclass(frozen=True)
class Facts:
    """All facts of one process. `time` is when they were read, in seconds since 1970."""

    version: int
    pid: int
    time: float
    python: str
    torch: str | None
    recording: bool
    step: int | None
    optimizer_step: int
    roots: tuple[Root, ...] = ()
    layers: tuple[Layer, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    #: Layers and parameters that are not recorded, since there are too many.
    left_out: int = 0
    #: Why there is nothing (yet), in words.
    note: str | None = None
    #: Which of how many processes this is in a distributed run.
    rank: int | None = None
    ranks: int | None = None
