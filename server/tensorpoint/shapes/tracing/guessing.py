"""The inputs that a `forward` takes, where nothing says so: what it does first with each of them.

A stand-in is passed for an input. The first function of torch that meets it together with a weight
tells its rank, its channels and its dtype: `conv2d` with a weight (64, 3, 7, 7) means f32[B, 3, H,
W], `embedding` i64[B, T]. Where nothing is met, likely inputs are tried, made from the module's
weights.
"""

from __future__ import annotations

import ast
import dataclasses
import dis
import inspect
import itertools
import linecache
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from .inputs import Input, Spec, TensorSpec, build
from .modes import Assumptions, without_data
from .sizes import first_sizes

#: Inputs whose names are as good as a specification, of models with a configuration.
_NAMED: dict[str, TensorSpec] = {
    "input_ids": TensorSpec("i64", ("B", "T")),
    "attention_mask": TensorSpec("i64", ("B", "T")),
    "decoder_input_ids": TensorSpec("i64", ("B", "U")),
}
_MOST_TRIES = 24
_CONVOLUTIONS = {"conv1d": ("T",), "conv2d": ("H", "W"), "conv3d": ("D", "H", "W")}
#: One number for each row of the batch, and how such inputs are called.
_ROWS = (TensorSpec("i64", ("B",)), TensorSpec("f32", ("B",)))
#: Losses whose target is shaped like what it is compared with.
_FLAT_LOSSES = {
    *("binary_cross_entropy", "binary_cross_entropy_with_logits", "huber_loss", "l1_loss"),
    *("mse_loss", "smooth_l1_loss"),
}
#: What a step of training is given besides.
_NUMBERS = {"batch_idx", "batch_index", "dataloader_idx"}
_ROW_NAMES = {"t", "time", "timestep", "timesteps", "label", "labels", "y", "target", "targets"}
#: Inputs that are taken apart: the keys of each, or the places in it.
_Parts = dict[str, list[Any]]


class _Met(Exception):
    """The stand-in `name` met a function or a layer that says what it is, or not (None)."""

    def __init__(self, name: str, spec: TensorSpec | None) -> None:
        super().__init__(f"{name} is {spec}")
        self.name, self.spec = name, spec


class _StandIn:
    """Stands for an input. Not a tensor, so that every use of it is seen."""

    def __init__(self, name: str, parts: _Parts | None = None, known: Any = None) -> None:
        self._name = name
        self._parts: _Parts = {} if parts is None else parts
        #: Those of its parts whose tensors are known, by key.
        self._known: dict[Any, Any] = known or {}

    def _part(self, key: Any) -> Any:
        keys = self._parts.setdefault(self._name, [])
        if key not in keys:
            keys.append(key)
        return self._known.get(key, _StandIn(f"{self._name}[{key!r}]", self._parts))

    def __iter__(self) -> Iterator[Any]:
        count = _unpacked(sys._getframe(1))
        if count is None:
            raise _Met(self._name, None)
        return iter([self._part(place) for place in range(count)])

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, str) and not (type(key) is int and self._name == "batch"):
            raise _Met(self._name, None)
        return self._part(key)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        values = [*args, *(kwargs or {}).values()]
        flat = [
            v for value in values for v in (value if isinstance(value, (tuple, list)) else [value])
        ]
        stand_in = next(value for value in flat if isinstance(value, _StandIn))
        weights = [tuple(v.shape) for v in flat if isinstance(v, torch.Tensor)]
        name = getattr(func, "__name__", str(func))
        if name in ("dropout", "relu", "gelu", "tanh", "sigmoid", "contiguous"):
            return stand_in
        raise _Met(stand_in._name, _by_function(name, weights, args[1:]))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "keys" and (batch := _batch_for_call(sys._getframe(1), self)):
            parts = {key: self._part(key) for key in batch}
            for key, spec in batch.items():
                if spec is not None and isinstance(parts[key], _StandIn):
                    raise _Met(f"{self._name}[{key!r}]", spec)
            return lambda: list(batch)
        if name == "device":
            return torch.device("meta")
        if name == "dtype":
            return torch.float32
        if name in ("is_cuda", "is_nested", "requires_grad", "is_sparse", "is_quantized"):
            return False
        if name == "is_floating_point":
            return lambda: True

        def method(*args: Any, **_: Any) -> Any:
            if name in ("to", "float", "contiguous", "cuda", "cpu", "type", "clone", "detach"):
                return self
            weights = [tuple(a.shape) for a in args if isinstance(a, torch.Tensor)]
            raise _Met(self._name, _by_function(name, weights, args))

        if name in ("shape", "ndim", "T"):
            raise _Met(self._name, None)
        return method

    def _used(self, *args: Any) -> Any:
        raise _Met(self._name, None)

    __add__ = __radd__ = __mul__ = __rmul__ = __sub__ = __truediv__ = __matmul__ = _used
    __len__ = __neg__ = __pow__ = __gt__ = __lt__ = _used


def _unpacked(frame: Any) -> int | None:
    """Into how many parts this frame is about to take apart what it iterates over."""
    for instruction in dis.get_instructions(frame.f_code):
        if instruction.offset == frame.f_lasti:
            return instruction.arg if instruction.opname == "UNPACK_SEQUENCE" else None
    return None


def _batch_for_call(frame: Any, value: _StandIn) -> dict[str, TensorSpec | None]:
    """What the model takes that this line of the frame calls with `**value`."""
    try:
        tree = ast.parse("".join(linecache.getlines(frame.f_code.co_filename)))
    except SyntaxError:
        return {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not node.lineno <= frame.f_lineno <= node.end_lineno:  # type: ignore[operator]
            continue
        spread = [each.value for each in node.keywords if each.arg is None]
        if any(isinstance(e, ast.Name) and frame.f_locals.get(e.id) is value for e in spread):
            model = _looked_up(node.func, frame.f_locals)
            return _batch_of(model) if isinstance(model, torch.nn.Module) else {}
    return {}


def _looked_up(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """`model`, `self.model`; None for anything else."""
    if isinstance(node, ast.Attribute):
        return getattr(_looked_up(node.value, names), node.attr, None)
    return names.get(node.id) if isinstance(node, ast.Name) else None


def batch_inputs(model: Any) -> tuple[Input, ...]:
    """What a batch for a model of transformers most likely has; nothing for others."""
    batch = _batch_of(model) if getattr(model, "config", None) is not None else {}
    specs = {name: spec for name, spec in batch.items() if spec is not None}
    if len(specs) < len(batch):
        return ()
    return tuple(Input(name, spec, "first use", keyword=True) for name, spec in specs.items())


def _batch_of(model: Any) -> dict[str, TensorSpec | None]:
    """The inputs that a batch for a model has, and, of transformers, its labels."""
    parameters, config = parameters_of(model), getattr(model, "config", None)
    named = () if config is None else _of_config(parameters, config)
    if not named:
        return dict.fromkeys(required_of(parameters))
    batch: dict[str, TensorSpec | None] = {each.name: each.value for each in named}
    if "labels" in parameters:
        of_rows = "pixel_values" in batch or "SequenceClassification" in type(model).__name__
        batch["labels"] = _ROWS[0] if of_rows else _NAMED["input_ids"]
    return batch


def _by_function(function: str, weights: list[tuple[int, ...]], rest: Any) -> TensorSpec | None:
    """What a function takes, from the sizes of its weights and its other arguments."""
    weight = weights[0] if weights else ()
    if function in _CONVOLUTIONS and weight:
        # conv(input, weight, bias, stride, padding, dilation, groups)
        groups: int = rest[5] if len(rest) > 5 else 1
        return TensorSpec("f32", ("B", str(weight[1] * groups), *_CONVOLUTIONS[function]))
    if function == "conv_transpose2d" and weight:
        return TensorSpec("f32", ("B", str(weight[0]), "H", "W"))
    if function == "linear" and weight:
        return TensorSpec("f32", ("B", str(weight[1])))
    if function == "embedding":
        return TensorSpec("i64", ("B", "T"))
    if function == "layer_norm" and weight:
        return TensorSpec("f32", ("B", "T", str(weight[-1])))
    if function == "batch_norm" and weight:
        return TensorSpec("f32", ("B", str(weight[0]), "H", "W"))
    if function in ("cross_entropy", "nll_loss") and len(weight) == 2:
        return TensorSpec("i64", ("B",))
    if function in _FLAT_LOSSES and weight:
        return TensorSpec("f32", ("B", *map(str, weight[1:])))
    return None


def _by_layer(layer: Any, position: int) -> TensorSpec | None:
    """What a layer takes at a position, of those that look at their input before its first use."""
    if isinstance(layer, torch.nn.RNNBase) and position == 0:
        order = ("B", "T") if layer.batch_first else ("T", "B")
        return TensorSpec("f32", (*order, str(layer.input_size)))
    if isinstance(layer, torch.nn.RNNCellBase) and position < 2:
        sizes = (layer.input_size, layer.hidden_size)
        return TensorSpec("f32", ("B", str(sizes[position])))
    if isinstance(layer, (torch.nn.TransformerEncoderLayer, torch.nn.TransformerDecoderLayer)):
        layer = layer.self_attn
    if isinstance(layer, torch.nn.MultiheadAttention) and position < 3:
        order = ("B", "T") if layer.batch_first else ("T", "B")
        return TensorSpec("f32", (*order, str(layer.embed_dim)))
    if isinstance(layer, (torch.nn.BatchNorm1d, torch.nn.InstanceNorm1d)) and position == 0:
        return TensorSpec("f32", ("B", str(layer.num_features)))
    if isinstance(layer, (torch.nn.BatchNorm2d, torch.nn.InstanceNorm2d)) and position == 0:
        return TensorSpec("f32", ("B", str(layer.num_features), "H", "W"))
    return None


def _meet_layer(layer: Any, args: tuple[Any, ...]) -> None:
    """A layer is called: a hook for all modules."""
    for position, value in enumerate(args):
        if isinstance(value, _StandIn):
            spec = _by_layer(layer, position)
            if spec is not None:
                raise _Met(value._name, spec)


def said_inputs(parameters: Mapping[str, inspect.Parameter], spec: Spec) -> dict[str, Input]:
    """The inputs that a specification or an annotation says."""
    said: dict[str, Input] = {}
    for name, parameter in parameters.items():
        if name in spec.inputs:
            said[name] = Input(name, spec.inputs[name], "spec")
        elif (annotated := _jaxtyping(parameter.annotation)) is not None:
            said[name] = Input(name, annotated, "jaxtyping")
    return said


def required_of(parameters: Mapping[str, inspect.Parameter]) -> list[str]:
    """The parameters without a default."""
    return [name for name, each in parameters.items() if each.default is each.empty]


def likely_inputs(module: Any, spec: Spec, file: str) -> Iterator[tuple[Input, ...]]:
    """Inputs to try, the likeliest first. Those in `spec` and in annotations stand."""
    parameters = parameters_of(module)
    fixed = said_inputs(parameters, spec)
    required = required_of(parameters)
    for name in _NUMBERS.intersection(required):
        fixed.setdefault(name, Input(name, 0, "first use"))
    config = getattr(module, "config", None)
    if not required and config is not None and not fixed:
        named = _of_config(parameters, config)
        if named:
            yield named
            return
    wanted = [name for name in parameters if name in required or name in fixed]
    unknown = [name for name in wanted if name not in fixed]
    met, parts = _meet(module, wanted, unknown, fixed, file)
    choices: list[list[Input]] = []
    for name in wanted:
        if name in fixed:
            choices.append([fixed[name]])
        elif name in parts:
            values = _wholes(name, parts, met, module)
            choices.append([Input(name, value, "first use") for value in values])
        elif name in met:
            choices.append(
                [Input(name, value, "first use") for value in _variants(met[name], module)]
            )
        else:
            values = [*(_ROWS if name in _ROW_NAMES else ()), *_from_weights(module)]
            choices.append([Input(name, value, "first use", blind=True) for value in values])
    for chosen in itertools.islice(itertools.product(*choices), _MOST_TRIES):
        yield _ordered(parameters, chosen)


def _wholes(name: str, parts: _Parts, met: dict[str, TensorSpec], module: Any) -> Iterator[Any]:
    """What an input may be that is taken apart: a tuple or a dictionary of likely inputs."""
    keys: list[Any] = parts[name]
    if all(isinstance(key, int) for key in keys):
        keys = list(range(max(keys) + 1))
    choices: list[list[Any]] = []
    for place, key in enumerate(keys):
        part = f"{name}[{key!r}]"
        rows = _ROWS if place or key in _ROW_NAMES else ()
        if part in parts:
            choices.append(list(itertools.islice(_wholes(part, parts, met, module), 4)))
        elif part in met:
            is_named = key in ("labels", "pixel_values", *_NAMED)
            choices.append([met[part]] if is_named else list(_variants(met[part], module)))
        else:
            choices.append([*rows, *_from_weights(module)])
    for chosen in itertools.product(*choices):
        yield tuple(chosen) if isinstance(keys[0], int) else dict(zip(keys, chosen))


def _ordered(
    parameters: dict[str, inspect.Parameter], chosen: tuple[Input, ...]
) -> tuple[Input, ...]:
    """By keyword what Python wants so, or what comes after a parameter that is left out."""
    names = list(parameters)
    result: list[Input] = []
    for position, each in enumerate(chosen):
        keyword = (
            parameters[each.name].kind is inspect.Parameter.KEYWORD_ONLY
            or names[position] != each.name
        )
        result.append(dataclasses.replace(each, keyword=keyword))
    return tuple(result)


def parameters_of(module: Any) -> dict[str, inspect.Parameter]:
    """What `forward` takes, by name."""
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {n: p for n, p in _signature(module).items() if p.kind not in variable}


def unknown_of(module: Any, spec: Spec) -> list[str]:
    """The inputs of a specification that `forward` doesn't take."""
    parameters = _signature(module)
    if not parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return []
    return [name for name in spec.inputs if name not in parameters]


def _signature(module: Any) -> Mapping[str, inspect.Parameter]:
    """All that `forward` takes; nothing where that can't be told."""
    try:
        try:
            return inspect.signature(module.forward, eval_str=True).parameters
        except Exception:  # names that are there for type checkers only: annotations stay text
            return inspect.signature(module.forward).parameters
    except (TypeError, ValueError):
        return {}


def _meet(
    module: Any, wanted: list[str], unknown: list[str], fixed: dict[str, Input], file: str
) -> tuple[dict[str, TensorSpec], _Parts]:
    """What stand-ins met, one after the other, and the parts of those that are taken apart."""
    found: dict[str, TensorSpec] = {}
    parts: _Parts = {}

    def value(name: str) -> Any:
        if name in fixed:
            return build(fixed[name].value, first_sizes((fixed[name],)))
        if name in found:
            return found[name].make(first_sizes((Input(name, found[name], ""),)))
        known = {key: value(f"{name}[{key!r}]") for key in parts.get(name, ())}
        return _StandIn(name, parts, known)

    while len(unknown) + sum(map(len, parts.values())) > len(found):
        try:
            values = {name: value(name) for name in wanted}
            with without_data(Assumptions(file)), register_module_forward_pre_hook(_meet_layer):
                module(**values)
            break
        except _Met as met:
            if met.spec is None or met.name in found:
                break
            found[met.name] = met.spec
        except BaseException:  # the user's sizes, and code with a value that it doesn't expect
            break
    return found, parts


def _variants(spec: TensorSpec, module: Any) -> Iterator[TensorSpec]:
    """An input as first use tells it, and others that the same first use allows."""
    yield spec
    if spec.dtype == "f32" and len(spec.shape) == 2:  # linear takes any rank
        yield TensorSpec("f32", ("B", "T", spec.shape[1]))
    elif spec.dtype == "i64":
        yield TensorSpec("i64", ("B",))
    elif len(spec.shape) == 3 and spec.shape[0] == "T" and _batch_first(module):
        yield TensorSpec("f32", ("B", "T", spec.shape[2]))


def _batch_first(module: Any) -> bool:
    return any(getattr(each, "batch_first", False) for each in module.modules())


def _from_weights(module: Any) -> list[TensorSpec]:
    """Likely inputs of a module that looks at its input before a weight does."""
    likely: dict[TensorSpec, None] = {}
    for layer in module.modules():
        if isinstance(layer, torch.nn.Conv2d):
            likely[TensorSpec("f32", ("B", str(layer.in_channels), "H", "W"))] = None
        elif isinstance(layer, torch.nn.Conv1d):
            likely[TensorSpec("f32", ("B", str(layer.in_channels), "T"))] = None
        elif isinstance(layer, torch.nn.Embedding):
            likely[TensorSpec("i64", ("B", "T"))] = None
        elif isinstance(layer, torch.nn.Linear):
            features = str(layer.in_features)
            likely[TensorSpec("f32", ("B", features))] = None
            likely[TensorSpec("f32", ("B", "T", features))] = None
            side = round((layer.in_features) ** 0.5)
            if side * side == layer.in_features and side >= 8:
                likely[TensorSpec("f32", ("B", "1", str(side), str(side)))] = None
        elif isinstance(layer, torch.nn.RNNBase):
            order = ("B", "T") if layer.batch_first else ("T", "B")
            likely[TensorSpec("f32", (*order, str(layer.input_size)))] = None
        if len(likely) >= 5:
            break
    for common in (("B", "3", "H", "W"), ("B", "T", "64"), ("B", "64")):
        likely[TensorSpec("f32", common)] = None
    likely[TensorSpec("i64", ("B", "T"))] = None
    return list(likely)


def _of_config(parameters: dict[str, inspect.Parameter], config: Any) -> tuple[Input, ...]:
    """The inputs of a model with a configuration, as transformers names them."""
    names: list[str] = []
    if "input_ids" in parameters:
        names += ["input_ids", *(["attention_mask"] if "attention_mask" in parameters else [])]
        if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in parameters:
            names.append("decoder_input_ids")
        return tuple(Input(name, _NAMED[name], "first use", keyword=True) for name in names)
    if "pixel_values" in parameters:
        channels = str(getattr(config, "num_channels", None) or 3)
        size = getattr(config, "image_size", None)
        sides = [str(side) for side in (size if isinstance(size, (tuple, list)) else [size] * 2)]
        shape = ("B", channels, *(sides if size else ("H", "W")))
        return (Input("pixel_values", TensorSpec("f32", shape), "first use", keyword=True),)
    return ()


def _jaxtyping(annotation: Any) -> TensorSpec | None:
    """`Float[Tensor, "B C H W"]`."""
    dims = getattr(annotation, "dim_str", None)
    if not isinstance(dims, str):
        return None
    dtypes = getattr(annotation, "dtypes", ())
    names = [str(dtype) for dtype in dtypes] if isinstance(dtypes, (tuple, list)) else []
    dtype = (
        "bool" if names == ["bool"] else "i64" if any(n.startswith("int") for n in names) else "f32"
    )
    shape: list[str] = []
    for dim in dims.split():
        if dim.startswith(("*", "...")) or dim == "_":
            return None
        shape.append(dim.lstrip("#?").split("=")[-1])
    return TensorSpec(dtype, tuple(shape))
