"""The module tree: paths, sizes, places, and which roots are in it."""

from __future__ import annotations

import json
import time

import torch
from torch import nn

from tensorpoint.agent import layer_tree
from tensorpoint.agent.layer_tree import answer, read
from tensorpoint.agent.modules import Names
from tensorpoint.wire.codec import convert
from tensorpoint.wire.layers import LayerNode, LayerTree


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 2)
        self.act = nn.ReLU()

    def forward(self, x):
        return self.act(self.fc(x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = Block()
        self.second = Block()
        self.second.fc.weight = self.first.fc.weight  # tied
        self.first.fc.bias.requires_grad_(False)

    def forward(self, x):
        return self.second(self.first(x))


def called(*roots: nn.Module) -> Names:
    names = Names()
    for root in roots:
        names.learn(root)
        names.count_call(root)
    return names


def tree_of(*roots: nn.Module) -> LayerTree:
    return read(called(*roots))  # names alone would let go of them


def by_path(tree: LayerTree) -> dict[str, LayerNode]:
    return {node.path: node for node in tree.layers}


def test_modules_have_path_class_and_size() -> None:
    tree = tree_of(Net())
    assert [(node.path, node.type) for node in tree.layers] == [
        ("", "Net"),
        ("first", "Block"),
        ("first.fc", "Linear"),
        ("first.act", "ReLU"),
        ("second", "Block"),
        ("second.fc", "Linear"),
        ("second.act", "ReLU"),
    ]
    sizes = {path: (node.parameters, node.trainable) for path, node in by_path(tree).items()}
    # The tied weight, 6 elements, is in both blocks but only once in the net.
    assert sizes["first"] == sizes["first.fc"] == (8, 6)
    assert sizes["second"] == (8, 8)
    assert sizes[""] == (10, 8)
    assert sizes["first.act"] == (0, 0)
    assert (tree.step, tree.roots[0].type, tree.roots[0].step) == (0, "Net", 0)


def test_a_class_of_the_user_has_a_place_and_one_of_torch_has_none() -> None:
    nodes = by_path(tree_of(Net()))
    line = Block.forward.__code__.co_firstlineno
    assert (nodes["first"].file, nodes["first"].line) == (__file__, line)
    assert (nodes["first.fc"].file, nodes["first.fc"].line) == (None, None)


def test_the_place_of_a_decorated_forward_is_its_own() -> None:
    class Decorated(nn.Module):
        @torch.no_grad()
        def forward(self, x):
            return x

    (node,) = tree_of(Decorated()).layers
    assert node.file == __file__


def test_a_root_that_is_part_of_another_is_listed_there() -> None:
    net = Net()
    tree = tree_of(net.first, net)
    assert [root.type for root in tree.roots] == ["Net"]


def test_wrappers_are_left_out_of_paths() -> None:
    wrapped = torch.compile(Net(), backend="eager")
    assert isinstance(wrapped, nn.Module)
    paths = by_path(tree_of(wrapped))
    assert "first.fc" in paths and not any("_orig_mod" in path for path in paths)


def test_lazy_parameters_count_nothing_yet() -> None:
    (node,) = tree_of(nn.LazyLinear(4)).layers
    assert node.parameters == 0


def test_before_the_first_call_the_roots_are_those_that_run_just_now() -> None:
    seen: list[LayerTree] = []

    class Looks(nn.Module):
        def forward(self, x):
            seen.append(read(Names()))
            return x

    model = nn.Sequential(Looks())
    assert read(Names()).note is not None and read(Names()).layers == ()
    model(torch.ones(1))
    (tree,) = seen
    assert [node.type for node in tree.layers] == ["Sequential", "Looks"]
    assert tree.note is None and tree.step is None


def test_the_answer_is_json_and_may_leave_out_the_tree() -> None:
    net = Net()
    names = called(net)
    tree = convert(json.loads(answer(names, "{}")), LayerTree)
    assert len(tree.layers) == 7
    short = convert(json.loads(answer(names, '{"modules": false}')), LayerTree)
    assert short.layers == () and short.roots == tree.roots


def test_a_model_that_changes_while_it_is_read_is_read_again(monkeypatch) -> None:
    net = Net()
    attempts = iter([RuntimeError("dictionary changed size during iteration")])
    below = layer_tree._below

    def interrupted(root, number):
        for error in attempts:
            raise error
        return below(root, number)

    monkeypatch.setattr(layer_tree, "_below", interrupted)
    assert len(tree_of(net).layers) == 7


def test_more_modules_than_a_view_can_show_are_counted(monkeypatch) -> None:
    monkeypatch.setattr(layer_tree, "_MAX_LAYERS", 3)
    tree = tree_of(Net())
    assert (len(tree.layers), tree.left_out) == (3, 4)


def test_two_thousand_modules_take_a_fraction_of_a_second() -> None:
    net = nn.Sequential(*(nn.Sequential(*(Block() for _ in range(10))) for _ in range(60)))
    names = called(net)
    began = time.perf_counter()
    tree = read(names)
    assert len(tree.layers) > 1800
    assert time.perf_counter() - began < 1.0  # some 15 ms
