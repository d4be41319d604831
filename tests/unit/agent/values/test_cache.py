"""What was measured is told again for the same value only."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import torch

from tensorpoint.agent.values.known import Known
from tensorpoint.agent.values.nodes import ALL, Node
from tensorpoint.agent.values.view import View


def test_memory_that_is_used_again_is_another_tensor() -> None:
    view, places = View(Known()), list[int]()
    for number in range(20):
        tensor = torch.full((64, 64), float(number))
        places.append(tensor.data_ptr())
        assert str(view.text(tensor, "hover")).endswith(f"| µ {number} σ 0 [{number}, {number}]")
        del tensor
    assert len(set(places)) < 20  # at the same place, of the same shape and version


def test_a_change_is_seen_as_far_as_a_tensor_tells_of_it() -> None:
    view, tensor = View(Known()), torch.ones(3, requires_grad=True)
    before = view.text(tensor, "hover")
    assert view.text(tensor, "hover") is before  # as it was measured
    with torch.no_grad():
        tensor.fill_(2)
    assert "µ 2 " in str(view.text(tensor, "hover"))
    tensor.grad = torch.full((3,), 4.0)
    assert "‖grad‖ 6.93" in str(view.text(tensor, "hover"))
    tensor.grad.zero_()
    assert "‖grad‖ 0" in str(view.text(tensor, "hover"))
    tensor.data.fill_(5)  # of which it tells nothing
    view.changed()
    assert "µ 5 " in str(view.text(tensor, "hover"))
    with torch.inference_mode():
        inferred = torch.ones(3)
        assert "µ 1 " in str(view.text(inferred, "hover"))
        inferred.fill_(7)  # it has no version
        assert "µ 7 " in str(view.text(inferred, "hover"))


def open_all(view: View, value: Any) -> None:
    for row in view.children(value, ALL, None) or ():
        if isinstance(row.value, Node) and row.value.children:
            row.value.children(ALL)


def test_a_look_keeps_no_tensor_alive_once_the_program_goes_on() -> None:
    view = View(Known())
    held: dict[str, Any] = {"tensor": torch.ones(3, 4)}
    gone = weakref.ref(held["tensor"])
    view.text(held["tensor"], "hover")
    view.hint(held["tensor"], "tensor", None)
    open_all(view, held["tensor"])
    view.forget()
    gc.disable()  # it is not left to a collection
    try:
        held.clear()
        assert gone() is None
    finally:
        gc.enable()
