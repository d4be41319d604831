"""What the adapter asks of layer stepping; evaluated on the suspended thread, as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from .. import suspension
from ..showing import Showing
from .scopes import completions, evaluate, place_in
from .stack import Layer
from .stepper import StepError, Stepper

Answer = dict[str, Any]


class Requests:
    """Answers them."""

    def __init__(self, stepper: Stepper, showing: Showing) -> None:
        self._stepper = stepper
        self._showing = showing
        self._known: dict[str, Callable[[Answer], Answer]] = {
            "stack": self._stack,
            "step": self._step,
            "back": self._back,
            "targets": self._targets,
            "completions": self._completions,
            "set": self._set,
            "data": self._data,
            "waiting": self._waiting,
        }

    def answer(self, request: str) -> str:
        """The answer to one, or the reason why there is none."""
        asked = json.loads(request)
        try:
            return json.dumps(self._known[asked.pop("ask")](asked))
        except StepError as error:
            return json.dumps({"error": str(error)})

    def layer(self, number: int) -> Layer:
        """A layer of this thread, innermost first."""
        return self._stepper.view().layers[number]

    def _stack(self, asked: Answer) -> Answer:
        """The layers that run here; none where no module does."""
        view = self._stepper.view()
        return {"stack": view.stack().as_message() if view.layers else None}

    def _step(self, asked: Answer) -> Answer:
        """Take a step: the program goes on."""
        self._stepper.step(asked["how"], asked.get("target"))
        suspension.resume()
        return {}

    def _back(self, asked: Answer) -> Answer:
        """Go back by a layer, or to the first: the program goes on."""
        self._stepper.back(first=asked["first"])
        suspension.resume()
        return {}

    def _targets(self, asked: Answer) -> Answer:
        return {"targets": self._stepper.targets(asked["frame"])}

    def _completions(self, asked: Answer) -> Answer:
        return {"names": completions(self.layer(asked["frame"]), asked["text"])}

    def _set(self, asked: Answer) -> Answer:
        """Assign to an expression: an element of a tensor, a local of its forward, an attribute."""
        layer, target = self.layer(asked["frame"]), asked["expression"]
        try:
            if not self._showing.set_element(place_in(layer), target, asked["value"]):
                evaluate(layer, f"{target} = {asked['value']}")
        except Exception as error:  # the user's own expression
            raise StepError(f"{target}: {type(error).__name__}: {error}") from None
        return {}

    def _data(self, asked: Answer) -> Answer:
        """What a data breakpoint would be set on."""
        layer = self.layer(asked["frame"])
        return self._showing.watchable(place_in(layer), layer.frame, asked["text"])

    def _waiting(self, asked: Answer) -> Answer:
        """The threads that are suspended, on which the others of these can be asked."""
        threads, is_one_on_its_way = self._stepper.suspended()
        return {"threads": threads, "more": is_one_on_its_way}
