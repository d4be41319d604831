"""The diagnosis in words: what, where, and what that means."""

from __future__ import annotations

import inspect
import re
from math import isnan
from typing import TYPE_CHECKING

from ..wire import OperationReport, TensorSummary
from .frames import short_file
from .modules import forward_of, is_compiled

if TYPE_CHECKING:
    from torch.nn import Module

_DIRECT_FORWARD = re.compile(r"(?<!super\(\))\.forward\(")


def kind(summary: TensorSummary) -> str:
    """ "NaN", "Inf" or both, as a headline says it."""
    found = ["NaN"] if summary.nan else []
    if summary.posinf or summary.neginf:
        found.append("Inf" if summary.posinf else "-Inf")
    return " and ".join(found)


def headline(summary: TensorSummary, where: str) -> str:
    """The first words of a stop, to be completed by the module: "NaN in the output of"."""
    return f"{kind(summary)} {where}"


def describe(summary: TensorSummary) -> str:
    """The tensor in numbers: how many elements of how many, which, and the range of the rest."""
    counts = [
        f"{count} {word}"
        for count, word in (
            (summary.nan, "NaN"),
            (summary.posinf, "+Inf"),
            (summary.neginf, "-Inf"),
        )
        if count
    ]
    bad = summary.nan + summary.posinf + summary.neginf
    text = (
        f"{summary.name}: {summary.dtype} {list(summary.shape)} on {summary.device}, "
        f"{bad} of {summary.elements} elements not finite ({', '.join(counts)})"
    )
    if summary.first_index:
        text += f", the first at {list(summary.first_index)}"
    if summary.finite_min is None:
        return f"{text}; no element is finite."
    return f"{text}; the finite ones span {summary.finite_min:.4g} to {summary.finite_max:.4g}."


def input_origin(root: Module, summary: TensorSummary) -> str:
    """Where a bad batch is bad."""
    sample = (
        f" (sample {summary.first_index[0]} of {summary.shape[0]})"
        if summary.first_index and len(summary.shape) > 1
        else ""
    )
    return (
        f"It came in with argument {summary.name!r}{sample} of {type(root).__name__}: "
        "it was there before the model ran."
    )


def fresh(module: Module, path: str) -> str:
    """A module whose inputs are fine made the value."""
    return (
        f"It was made in {place(module, path)}: the module's arguments, parameters and buffers "
        "are finite."
    )


def inline(module: Module, path: str, child_path: str) -> str:
    """The value was made between two child calls of a forward."""
    return (
        f"It was made by an operation in the forward of {place(module, path)}, before the call of "
        f"{child_path}, whose argument it already is; what {place(module, path)} received is "
        "finite."
    )


def spoilt_parameter(kind: str, path: str) -> str:
    """A parameter or buffer was already bad when the module ran."""
    return (
        f"The {kind} of {path or 'the model'} was not finite before this forward: it was written "
        "by an earlier backward and optimizer step, or loaded so."
    )


#: A bad loss after a model whose output is fine.
LOSS = (
    "What the model returned was finite: it was made by what your program computes besides, such "
    "as a loss function."
)


#: A bad gradient of a parameter, where what came into its module was finite.
OWN_BACKWARD = "The gradients that came into the module were finite: its own backward made it."
#: A bad gradient of a parameter that came by no output of its module.
PAST_OUTPUTS = (
    "It did not come through the module's output: the parameter is used elsewhere, or it is the "
    "gradient of a gradient (create_graph=True)."
)
#: The same where both are possible.
MAYBE_PAST_OUTPUTS = (
    "The gradients that came into the module were finite. Its own backward made it, or it came "
    "past the module's output, as the gradient of a gradient (create_graph=True)."
)
#: A bad gradient on a device that isn't waited for.
LATE = (
    "It is the first bad one in the order of backward, found when the pass was over, since on this "
    "device gradients are not waited for. From now on each is read as it arrives: if it happens "
    "again, the stop names the layer that made it."
)
#: A bad gradient that arrived at the output of a root.
MADE_OUTSIDE = (
    "It was made in the backward of what your program computes from that output, such as a loss "
    "function."
)
#: A bad gradient where no module is near.
NO_MODULE = "It was made in the backward of what your program computes outside of any module."


def gradient_of(name: str, owner: str) -> str:
    """Whose gradient it is."""
    return f"It is the gradient of parameter {name} of {owner}."


def made_by_receiver(source: str | None) -> str:
    """A module turned a finite output gradient into a bad input gradient."""
    which = "" if source is None else f" (the output of {source})"
    return (
        f"The gradient of its output was finite, that of its input{which} is not: its backward "
        "made it."
    )


def made_by_operation(source: str | None) -> str:
    """An operation of a forward turned a finite gradient into a bad one."""
    if source is None:
        return "It was made in the backward of an operation in its forward, between two modules."
    return (
        f"It was made in the backward of an operation in its forward, after the call of {source}, "
        "whose output's gradient is not finite."
    )


def clipped(name: str, total_norm: float) -> str:
    """What clipping by norm did with an infinite gradient."""
    made = "NaN of all gradients" if isnan(total_norm) else "NaN of this gradient and 0 of others"
    return (
        f"The total norm was {total_norm} because of the gradient of {name}: clipping divides by "
        f"it, which makes {made}."
    )


def written_in_forward(name: str) -> str:
    """A module wrote a bad value into its own buffer."""
    return (
        f"{name} wrote it in a forward since the last optimizer step: the module's statistics "
        "overflowed, or a NaN went through it."
    )


#: Of a device that isn't waited for.
DEFERRED = (
    "The outputs of the layers before it in this step are finite. It was found when the step was "
    "over, since on this device a layer's check is not waited for. From now on each layer is "
    "checked as it returns: if it happens again, the stop is there."
)


#: Of a stop in a second run of a forward.
REPLAYED = (
    "The frames on top are those of a second run of this forward, up to this operation; the "
    "program's own run goes on where it was when you continue."
)


#: Why clipping did not make a NaN.
BEFORE_CLIPPING = "the gradient was NaN before it was clipped"
#: Why the operation behind a bad loss, or a bad parameter, is not known.
NO_FORWARD = (
    "your program computes it outside of modules, which can't be run again, and what led to it was "
    "not recorded"
)
#: Of an operation that autograd's graph alone knows of.
NO_LINE = "Its line in your program is not known: nothing was recorded yet when it ran."
AFTER_MODEL = "it came to the output of the model from what your program computes of that"
NOT_RECORDED = "it has overwritten what it was computed from"
#: Of a step with bad gradients that a scaler could have skipped.
NOT_SKIPPED = (
    "A gradient scaler is on: scaler.step(optimizer) skips a step whose gradients were bad when "
    "they were unscaled. Here optimizer.step() was called itself, or they became bad afterwards."
)


#: What is done once an operation could not be named.
FROM_NOW_ON = (
    "From now on each operation is recorded, which is slower: if it happens again, the stop names "
    'it. Precision "op" does so from the start.'
)


def operation(report: OperationReport) -> str:
    """Which operation, in the words of the program's source."""
    name = short_name(report.name)
    place = ""
    if report.file is not None:
        place = f" at {short_file(report.file)}:{report.line} in {report.function}"
    if report.node is None:
        return f"The operation is {name}{place}."
    forward = report.forward_op
    if forward is None:
        return f"The operation is {name} in {report.node}{place}."
    at = ""
    if report.forward_file is not None:
        at = f", called at {short_file(report.forward_file)}:{report.forward_line}"
    return f"The operation is {name} in {report.node}, the backward of {short_name(forward)}{at}."


def not_located(reason: str) -> str:
    """Why the operation is not named, and what will be."""
    return f"The operation is not known: {reason}. {FROM_NOW_ON}"


def short_name(operation: str) -> str:
    """ "log" of "aten.log.default"."""
    return operation.split(".")[1] if operation.count(".") > 1 else operation


def place(module: Module, path: str) -> str:
    """A module by path and class; the root by its class alone."""
    name = type(module).__name__
    return f"{path} ({name})" if path else name


def unhooked(module: Module, path: str) -> str:
    """Where the operation ran, if that module's hooks did not."""
    return f"It ran in {place(module, path)}, called through .forward(), which runs no hooks."


def unhooked_children(module: Module) -> tuple[str, ...]:
    """A note if `module.forward` calls a child's `.forward()` directly, which runs no hook."""
    try:
        lines, first = inspect.getsourcelines(forward_of(module))
    except (OSError, TypeError):
        return ()
    for offset, line in enumerate(lines):
        if _DIRECT_FORWARD.search(line.partition("#")[0]):
            return (
                f"Line {first + offset} of {type(module).__name__} calls a module through "
                ".forward(), which runs no hooks: the value may come from inside it.",
            )
    return ()


def compiled_region(module: Module) -> tuple[str, ...]:
    """A note if `module` runs compiled: what happens inside is seen at its boundary only."""
    if not is_compiled(module):
        return ()
    return (
        f"{type(module).__name__} runs compiled (torch.compile): modules inside are fused and not "
        "watched one by one. Run without compile to stop at the inner module.",
    )
