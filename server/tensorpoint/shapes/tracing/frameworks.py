"""Mixed precision that a framework is asked for: accelerate, Lightning, and the Trainers on them.

`Accelerator(mixed_precision="bf16").prepare(model)`, `Trainer(model=model, args=
TrainingArguments(bf16=True))` and Lightning's `Trainer(precision="bf16-mixed").fit(model)` have the
model's `forward` under an autocast in all that they do with it. What they are told is read from
their calls: names are followed by their text and whatever their scope, as in `machines`, and the
arguments are evaluated where they stand. What can't be told leaves the program as it is without.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import Any

from .accelerators import PREPARING, mixed
from .casting import autocast_of
from .machines import arguments_hanging, assigned_calls, last_name
from .values import Unknown, Values

#: A file that mentions none of these asks for none.
WORDS = ("Accelerator", "Trainer")
#: Of Lightning.
_RUNNING = ("fit", "validate", "test", "predict")
_LIGHTNING = {"16-mixed": "fp16", "16": "fp16", "bf16-mixed": "bf16", "bf16": "bf16"}

#: Whether an expression, where a call stands, is a model of the class that is asked for.
IsModel = Callable[[ast.expr, ast.Call], bool]


def autocasts_of(
    tree: ast.AST, path: str, values: Values, is_model: IsModel
) -> Iterator[tuple[Any, bool]]:
    """The autocasts that frameworks put such a model under, and whether for all calls of it.

    Lightning has it so in its own calls, the others change the model.
    """
    finder = _Frameworks(tree, path, values)
    for call in values.calls:
        for made in finder.told(call, is_model):
            try:
                found = finder.autocast(made)
            except (Unknown, ValueError):
                continue
            if found is not None:
                yield found, last_name(call.func) not in _RUNNING


def accelerated(tree: ast.AST, path: str, values: Values, call: ast.Call) -> Iterator[Any]:
    """What `accelerator.autocast()` is, if it is that: an autocast, or None for none."""
    finder = _Frameworks(tree, path, values)
    for made in finder.made(call.func, "Accelerator"):
        try:
            yield finder.autocast(made)
        except (Unknown, ValueError):
            yield None


class _Frameworks:
    def __init__(self, tree: ast.AST, path: str, values: Values) -> None:
        self._tree, self._path, self._values = tree, path, values

    def made(self, method: ast.expr, kind: str) -> list[ast.Call]:
        """The calls of a class that may have made what a method is called of."""
        if not isinstance(method, ast.Attribute):
            return []
        return [each for each in self._calls(method.value) if last_name(each.func) == kind]

    def told(self, call: ast.Call, is_model: IsModel) -> list[ast.Call]:
        """Where the precision is said that a call puts the model under, if it does so."""
        name = last_name(call.func)
        if name in PREPARING:
            given = any(is_model(each, call) for each in call.args)
            return self.made(call.func, "Accelerator") if given else []
        if name in _RUNNING:
            given = bool(call.args) and is_model(call.args[0], call)
            return self.made(call.func, "Trainer") if given else []
        if name.endswith("Trainer"):
            model, arguments = _argument(call, 0, "model"), _argument(call, 1, "args")
            if model is not None and arguments is not None and is_model(model, call):
                return self._calls(arguments)
        return []

    def autocast(self, made: ast.Call) -> Any:
        """What the precision in a call that makes something is. Raises `Unknown`, `ValueError`."""
        if last_name(made.func) == "Accelerator":
            return self._mixed(made, "mixed_precision", 2, bool(self._of(made, "cpu")))
        if last_name(made.func) == "Trainer":
            on_cpu = self._of(made, "accelerator") == "cpu"
            said = _LIGHTNING.get(str(self._of(made, "precision")), "no")
            return mixed(said, on_cpu, needs_gpu=said == "fp16")
        return self._of_arguments(made)

    def _mixed(self, made: ast.Call, name: str, position: int, on_cpu: bool) -> Any:
        given = _argument(made, position, name)
        if given is None:  # `accelerate launch` knows
            return None
        if not on_cpu and arguments_hanging(self._path, [given]):
            return autocast_of({"device_type": "cuda"}, {"dtype", "enabled"})
        return mixed(self._values.near(given, made), on_cpu)

    def _of_arguments(self, made: ast.Call) -> Any:
        """Of `TrainingArguments`, and what is derived from them. bf16 is refused without a GPU."""
        on_cpu = bool(self._of(made, "use_cpu") or self._of(made, "no_cuda"))
        said = [each.value for each in made.keywords if each.arg in ("bf16", "fp16")]
        if said and not on_cpu and arguments_hanging(self._path, said):
            return autocast_of({"device_type": "cuda"}, {"dtype", "enabled"})
        for precision in ("fp16", "bf16"):
            if self._of(made, precision):
                return mixed(precision, on_cpu, needs_gpu=precision == "bf16")
        return None

    def _of(self, made: ast.Call, name: str) -> Any:
        given = _argument(made, None, name)
        return None if given is None else self._values.near(given, made)

    def _calls(self, node: ast.expr) -> list[ast.Call]:
        """The calls that an expression is, or that are assigned to its name."""
        if isinstance(node, ast.Call):
            return [node]
        return list(assigned_calls(self._tree, last_name(node)))


def _argument(call: ast.Call, position: int | None, name: str) -> ast.expr | None:
    for each in call.keywords:
        if each.arg == name:
            return each.value
    if position is not None and position < len(call.args):
        found = call.args[position]
        return None if isinstance(found, ast.Starred) else found
    return None
