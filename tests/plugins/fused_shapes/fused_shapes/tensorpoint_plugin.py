"""Tells Tensorpoint which shapes come out. Nothing of Tensorpoint is imported."""

from __future__ import annotations

from typing import Any


def plugin(plugins: Any) -> None:
    """The semantics of an operator and of a function, on sizes that may be symbols."""

    def pool_and_project(call: Any) -> Any:
        x, weight, stride = call.args
        plugins.attach_to_node(call.node, f"every {stride}th step")
        return x.new_empty((x.shape[0], (x.shape[1] + stride - 1) // stride, weight.shape[1]))

    def attend(call: Any) -> Any:
        query, key = call.args
        return query.new_empty((*query.shape[:-1], key.shape[-2]))

    plugins.register_plugin("fused_shapes::pool_and_project", pool_and_project)
    plugins.register_plugin("fused_shapes:attend", attend)
