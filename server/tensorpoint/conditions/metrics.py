"""The words of the condition language: each metric's name, shape, range and meaning.

Data only. What is written here is what the parser accepts, what Z3 assumes, and what
`docs/conditions.md` lists (a test compares them).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Form = Literal["modules", "global", "call", "function", "name"]


@dataclass(frozen=True)
class Option:
    """A keyword argument of a metric, and the words it takes."""

    name: str
    choices: tuple[str, ...]


@dataclass(frozen=True)
class Metric:
    """One word of the language.

    `form` says how it is written: "modules" `m("glob")` per module, `m()` being `default_glob`;
    "global" the same, but `m()` is one value for the whole model, and a glob
    that matches no module is matched against the paths of parameters; "call" `m()` without a glob;
    "function" `m("module:function")`; "name" plain `m`.

    `low` and `high` bound its finite values, both inclusive, None where there is no bound. A
    measured number may also be NaN, and infinite on a side that has no bound.
    """

    name: str
    kind: Literal["bool", "number"]
    meaning: str
    form: Form = "modules"
    low: float | None = None
    high: float | None = None
    default_glob: str | None = None
    options: tuple[Option, ...] = ()
    #: A count that says when to look, not what to look at: whole, always known, never NaN.
    counter: bool = False

    @property
    def range_in_words(self) -> str:
        """The range as a sentence goes on: "grad_norm " + "is at least 0"."""
        if self.kind == "bool":
            return "is true or false"
        if self.counter:
            return f"is a whole number of at least {self.low:g}"
        if self.low is not None and self.high is not None:
            return f"is between {self.low:g} and {self.high:g}"
        return "is any number" if self.low is None else f"is at least {self.low:g}"


_ALL = (
    Metric(
        "nonfinite",
        "bool",
        "a module's tensors have a fresh NaN or Inf that survives",
        default_glob="*",
        options=(Option("phase", ("input", "forward", "backward", "update")),),
    ),
    Metric(
        "grad_norm",
        "number",
        "2-norm of the gradients of all parameters, of those below each module, or of single ones",
        form="global",
        low=0,
    ),
    Metric(
        "entropy",
        "number",
        "normalised entropy of a module's attention weights: 0 one key takes all, 1 uniform",
        low=0,
        high=1,
        default_glob="*",
    ),
    Metric(
        "entropy_shift",
        "number",
        "how far that entropy is from its running mean, in standard deviations",
        low=0,
        default_glob="*",
    ),
    Metric("absmax", "number", "largest magnitude in a module's output", low=0, default_glob="*"),
    Metric(
        "zero_fraction",
        "number",
        "share of exact zeros in a module's output",
        low=0,
        high=1,
        default_glob="*",
    ),
    Metric(
        "update_norm",
        "number",
        "2-norm of what an optimizer step changed: in all parameters, a module's, or single ones",
        form="global",
        low=0,
    ),
    Metric(
        "update_ratio",
        "number",
        "update_norm over the 2-norm of the same parameters before the step",
        form="global",
        low=0,
    ),
    Metric(
        "no_grad",
        "bool",
        "a parameter of the module requires a gradient and got none in a step",
        default_glob="*",
    ),
    Metric(
        "memory_growth",
        "number",
        "bytes in use more than one step before: of CUDA's allocator, else of the process",
        form="call",
    ),
    Metric("scale", "number", "the gradient scaler's current scale", form="call", low=0),
    Metric(
        "score",
        "number",
        "what your own function returns for the root module's output",
        form="function",
    ),
    Metric("loss", "number", "the loss that backward was called on", form="name"),
    Metric(
        "step",
        "number",
        "forward calls of the root module so far, the first one being 0",
        form="name",
        low=0,
        counter=True,
    ),
    Metric(
        "optimizer_step",
        "number",
        "finished optimizer steps",
        form="name",
        low=0,
        counter=True,
    ),
)

#: What can be asked of any value in an expression of the program's (`agent.values.measures`).
ON_VALUES: dict[str, str] = {
    "nonfinite": "whether a tensor in it has a NaN or an infinity",
    "absmax": "the largest magnitude in it",
    "zero_fraction": "the share of exact zeros",
    "norm": "the 2-norm of all tensors in it",
    "grad_norm": "the 2-norm of the gradients of a parameter or a module",
    "entropy": "normalised entropy of attention weights, of the lowest head",
    "no_grad": "whether a parameter that requires a gradient has none",
    "update_ratio": "how much the newest optimizer step changed a parameter, as recorded",
}

METRICS: dict[str, Metric] = {metric.name: metric for metric in _ALL}
