"""The one file that the author of an adapter reads.

An adapter tells Tensorpoint what is special about a framework or a model family: where attention is
computed, who scales the gradients, who clips them. The agent in the debugged program knows no
framework by name; it asks the adapters which functions to listen to, and they translate each call
into something the watches understand.

An adapter is an `Adapter`: a list of `Tap`s. A tap names a function, and what to do before or after
its calls:

    def after_attend(observer, result, query, key, value, mask=None):
        observer.attention(query, key, mask=mask)

    adapter = Adapter(
        "my-attention",
        taps=(Tap("my_models.layers:attend", "attention", after=after_attend),),
    )

It is found by its entry point:

    [project.entry-points."tensorpoint.adapters"]
    my-attention = "my_package.tensorpoint_adapter:adapter"

What is promised: a tap is installed once the module it names has been imported (nothing is imported
for it) and only while a tensorpoint asks for its topic. It is gone when the debugger detaches. If
`before` or `after` raises, the taps of that topic are switched off with one message and the program
goes on. They are called on the program's threads, with the arguments of the call exactly as the
program passed them, and must change nothing: no tensor, and no iterator that the call is to use up.
Tracers call functions with things that only stand for a tensor; the observer leaves them alone.

This file, like every built-in adapter, is standard library only: it is loaded in the debugged
program, where nothing of Tensorpoint needs to be installed. No version of torch is assumed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    import torch

#: What a tap has to say something about. "attention": `entropy` and `entropy_shift` listen to it.
#: "gradients": `grad_norm`, `nonfinite` of gradients, `loss` and `scale` listen to it.
Topic = Literal["attention", "gradients"]


class Observer(Protocol):
    """What an adapter tells the agent. No method raises, and none changes a tensor it is given."""

    def attention(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        *,
        mask: torch.Tensor | None = None,
        is_causal: bool = False,
        scale: float | None = None,
    ) -> None:
        """Attention was computed from `query` (B, H, T, D) and `key` (B, Hk, S, D).

        Hk divides H (grouped queries). `mask` is boolean (True takes part) or added to the scores,
        and broadcasts to (B, H, T, S). `is_causal` lets query i see the keys up to i, counted from
        the first. `scale` multiplies the scores, None being 1/sqrt(D).

        More dimensions in front are further batches. With three, the first is the batch, or batch
        and heads in one if the running module has a number of heads that divides it.
        """
        ...

    def attention_weights(
        self, weights: torch.Tensor, *, scores: torch.Tensor | None = None
    ) -> None:
        """Attention weights were computed: (B, H, T, S), after softmax and before dropout.

        `scores` is what the softmax was of: by it a masked key is told from a negligible one.
        Other numbers of dimensions mean what they do in `attention`.
        """
        ...

    def in_attention(self) -> bool:
        """Whether the innermost running modules look like an attention: for taps on a softmax."""
        ...

    def module(self) -> torch.nn.Module | None:
        """The innermost module that is running on this thread."""
        ...

    def gradients_scaled(self, scale: float | torch.Tensor) -> None:
        """From now on gradients are multiplied by `scale`, until `gradients_unscaled`.

        Inf and NaN are normal then: the scaler skips the step and lowers its scale.
        """
        ...

    def gradients_unscaled(self, parameters: Iterable[torch.Tensor] | None = None) -> None:
        """The gradients of `parameters` (None: of all) are divided by the scale again."""
        ...

    def scale(self, value: float | torch.Tensor) -> None:
        """The gradient scaler has set its scale to `value` for the steps to come."""
        ...

    def clipping(self, parameters: Iterable[torch.Tensor]) -> None:
        """Gradients are about to be clipped; empty where it is not known whose."""
        ...

    def clipped(self, parameters: Iterable[torch.Tensor], total_norm: float | torch.Tensor) -> None:
        """Gradients were clipped; `total_norm` is their 2-norm before that.

        `parameters` is empty where it is not known whose.
        """
        ...


Before = Callable[..., Any]
After = Callable[..., None]


@dataclass(frozen=True)
class Tap:
    """A function to listen to.

    `target` is "module:attribute", with dots for a method: "torch.amp:GradScaler.scale". Where
    other modules have imported the function by name, their copy is listened to as well.
    `before(observer, *args, **kwargs)` runs before the call, `after(observer, result, *args,
    **kwargs)` after it returned; a call that raises has no `after`. What `before` returns, if not
    None, `after` gets as the keyword argument `noted`. A function that older versions of its
    library lack says `since` when it is there, and is left out where it isn't.
    """

    target: str
    topic: Topic
    before: Before | None = None
    after: After | None = None
    since: str = ""


@dataclass(frozen=True)
class Switch:
    """A setting to change while a topic is listened to, and to put back: a fast path to avoid.

    `module` has to have been imported; `read()` and `write(value)` are called in the program.
    """

    module: str
    topic: Topic
    value: Any
    read: Callable[[], Any]
    write: Callable[[Any], None]


@dataclass(frozen=True)
class Adapter:
    """What is special about one framework or model family."""

    name: str
    taps: tuple[Tap, ...] = ()
    switches: tuple[Switch, ...] = ()
