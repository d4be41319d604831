"""The FX graph of a run: a node for each operation, with its value and its place in the file.

Not `make_fx`, which got through 12 of 13 text models at three times the cost: a dispatch mode that
writes down what passes. Nodes are `call_function` with torch's own
operators as targets; `node.meta["val"]` is the value, fake or meta, as elsewhere in torch, and
`node.meta["place"]` the span in the file. What comes from outside is a `placeholder` with the name
of the parameter or input, and sizes that are symbols stand as text. An operation in place gives a
new node: its tensor is that one from then.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from .plugins import Call, Plugins
from .positions import place_in


class Drawn(TorchDispatchMode):
    """Draws the graph of what runs while it is entered, by way of the plugins' handlers."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # see `modes.WithoutValues`

    def __init__(self, file: str, plugins: Plugins) -> None:
        super().__init__()
        self.graph = torch.fx.Graph()
        #: The last placeholder.
        self._last = self.graph._root
        self._file, self._plugins = file, plugins
        # Tensors stay alive with the graph, so that their ids are not given again.
        self._nodes: dict[int, tuple[torch.fx.Node, Any]] = {}

    def name(self, tensors: Iterable[tuple[str, Any]]) -> None:
        """Inputs and parameters, by their names."""
        for name, tensor in tensors:
            if isinstance(tensor, torch.Tensor) and id(tensor) not in self._nodes:
                self._placeholder(name, tensor)

    def node_of(self, tensor: Any) -> torch.fx.Node:
        """The node that a tensor is the value of."""
        known = self._nodes.get(id(tensor))
        return known[0] if known is not None else self._placeholder("constant", tensor)

    def _placeholder(self, name: str, tensor: Any) -> torch.fx.Node:
        with self.graph.inserting_after(self._last):
            node = self._last = self.graph.placeholder(name.replace(".", "_"))
        node.meta.update(val=tensor, source=name)
        self._nodes[id(tensor)] = (node, tensor)
        return node

    def __enter__(self) -> Any:
        self._plugins.drawing = self.call
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        self._plugins.drawing = None
        super().__exit__(*error)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        packet = func.overloadpacket
        names = (func.name(), str(packet._qualified_op_name))
        return self.call(names, func, func, args, kwargs or {}, sys._getframe(1))

    def call(
        self,
        names: tuple[str, ...],
        target: Any,
        function: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        frame: Any,
    ) -> Any:
        """Make the node, and what it stands for."""
        node = self.graph.call_function(target, self._nodes_in(args), self._nodes_in(kwargs))
        node.meta["place"] = place_in(self._file, frame)
        handler = next((h for name in names if (h := self._plugins.handler(name))), None)
        if handler is None:
            value = function(*args, **kwargs)
        else:
            value = handler(Call(names[0], node, args, kwargs, function))
        self._is(node, value)
        return value

    def _nodes_in(self, value: Any) -> Any:
        return tree_map(self._argument, value)

    def _argument(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self.node_of(value)
        return str(value) if isinstance(value, torch.SymInt) else value

    def _is(self, node: torch.fx.Node, value: Any) -> None:
        node.meta["val"] = value
        if isinstance(value, torch.Tensor):
            self._nodes[id(value)] = (node, value)
        elif isinstance(value, (tuple, list)):
            for index, item in enumerate(value):
                if isinstance(item, torch.Tensor):
                    part = self.graph.call_function(operator.getitem, (node, index))
                    part.meta.update(val=item, place=node.meta["place"])
                    self._nodes[id(item)] = (part, item)
