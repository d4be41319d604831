"""What code actions write: sources that still parse, and say what was found."""

from __future__ import annotations

import ast
from dataclasses import replace

import pytest
from lsprotocol import types

from tensorpoint.lsp.features.code_actions import code_actions
from tensorpoint.lsp.sources import Part
from tensorpoint.wire.shapes import ShapeTable
from tests.unit.lsp.documents import NET, URI, apply, net_table, span, view


def at(text: str, line_with: str) -> types.Range:
    line = span(text, line_with).line - 1
    return types.Range(types.Position(line, 4), types.Position(line, 4))


def actions(
    text: str = NET, line_with: str = "def forward", table: ShapeTable | None = None
) -> dict[str, str]:
    """By title, the text after each."""
    found = code_actions(view(table or net_table(text), text), at(text, line_with), None, False)
    return {
        action.title: apply(text, action.edit.changes[URI])  # type: ignore[union-attr,index]
        for action in found
    }


def test_inputs_are_specified_above_the_function() -> None:
    after = actions()["Specify the inputs: x: f32[B, 3, H, W]"]
    assert "    # tensorpoint: x: f32[B, 3, H, W]\n    def forward(self, x):\n" in after
    ast.parse(after)


def test_a_specification_goes_above_decorators() -> None:
    text = NET.replace("    def forward", "    @torch.no_grad()\n    def forward")
    after = actions(text)["Specify the inputs: x: f32[B, 3, H, W]"]
    assert "    # tensorpoint: x: f32[B, 3, H, W]\n    @torch.no_grad()\n" in after


def test_what_is_specified_already_is_not_offered() -> None:
    table = net_table()
    [call] = table.calls
    call = replace(call, inputs=(replace(call.inputs[0], origin="spec"),))
    table = replace(table, calls=(call,))
    assert not any("Specify" in title for title in actions(table=table))


def test_jaxtyping_annotations_with_their_imports() -> None:
    after = actions()["Annotate Net with jaxtyping"]
    assert (
        'def forward(self, x: Float[torch.Tensor, "B 3 H W"])'
        ' -> Float[torch.Tensor, "B _"]:' in after
    )
    assert "from torch import nn\nfrom jaxtyping import Float\n" in after
    ast.parse(after)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("def forward(self, x: torch.Tensor):", 'x: Float[torch.Tensor, "B 3 H W"])'),
        ("def forward(self, x, y=None) -> torch.Tensor:", '-> Float[torch.Tensor, "B _"]:'),
        (
            "def forward(\n        self,\n        x,\n    ):",
            '        x: Float[torch.Tensor, "B 3 H W"],\n    ) -> Float',
        ),
        (
            "def forward(self, x):\n        for _ in range(3):\n            pass",
            ') -> Float[torch.Tensor, "B _"]:\n        for _ in range(3):\n',
        ),
        (
            "def forward(self, x):  # (B, C):\n        if (y := len(x)):\n            pass",
            ') -> Float[torch.Tensor, "B _"]:  # (B, C):\n        if (y := len(x)):\n',
        ),
        ("def forward(self, x='é)', /):", "x: Float[torch.Tensor, \"B 3 H W\"]='é)', /) -> Float"),
    ],
)
def test_annotations_keep_what_is_written(before: str, after: str) -> None:
    text = NET.replace("def forward(self, x):", before)
    table = net_table(NET)
    # What is below may have moved; only the returned value and the call matter here.
    [call] = table.calls
    call = replace(
        call,
        span=span(text, "class Net", "Net"),
        forward=span(text, "def forward", "forward"),
    )
    output = replace(table.hints[-1], span=span(text, "return x.res", "x.reshape(B, -1)"))
    table = ShapeTable(table.path, calls=(call,), hints=(output,))
    done = actions(text, "def forward", table)["Annotate Net with jaxtyping"]
    assert after in done
    ast.parse(done)


def test_imports_go_above_the_function_that_needs_them() -> None:
    after = actions(NET + "\n\nimport late\n")["Annotate Net with jaxtyping"]
    assert "from torch import nn\nfrom jaxtyping import Float\n" in after


def test_a_function_in_another_cell_is_not_annotated_from_here() -> None:
    both = view()
    line = span(NET, "def forward").line
    first = replace(both.part, lines=both.part.lines[: line - 1])
    second = Part(f"{URI}#b", 1, line - 1, both.part.lines[line - 1 :])
    cell = replace(both, source=replace(both.source, parts=(first, second)), part=first)
    titles = [one.title for one in code_actions(cell, at(NET, "class Net"), None, False)]
    assert titles == []


def test_other_annotations_are_left_alone() -> None:
    text = NET.replace("(self, x):", '(self, x: "Image") -> "Image":')
    assert "Annotate Net with jaxtyping" not in actions(text)


def test_shapes_become_comments_where_there_are_none() -> None:
    text = NET.replace("x = torch.relu(x)", "x = torch.relu(x)  # clip")
    after = actions(text)["Write the shapes in Net as comments"]
    assert "x = self.conv(x)  # f32[B, 64, ceil(H/2), ceil(W/2)]\n" in after
    assert "x = torch.relu(x)  # clip\n" in after
    assert "B = x.size(0)\n" in after
    one = actions(NET, "x = self.conv(x)")
    assert list(one) == ["Write the shape as a comment: f32[B, 64, ceil(H/2), ceil(W/2)]"]


def test_only_the_kinds_that_are_asked_for() -> None:
    here = at(NET, "def forward")
    assert code_actions(view(), here, [types.CodeActionKind.QuickFix], False) == []
    assert code_actions(view(), here, [types.CodeActionKind.Refactor], False)
    [first, *_] = code_actions(view(), here, None, True)
    assert first.edit is not None and first.edit.document_changes is not None
    [change] = first.edit.document_changes
    assert isinstance(change, types.TextDocumentEdit)
    assert (change.text_document.uri, change.text_document.version) == (URI, 3)


def test_half_written_code_takes_no_action_that_needs_its_tree() -> None:
    text = NET + "\n\ndef broken(:\n"
    assert list(actions(text)) == ["Specify the inputs: x: f32[B, 3, H, W]"]
