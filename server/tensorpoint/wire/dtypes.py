"""The short names of dtypes: of values, hints, and input specifications."""

from __future__ import annotations

_SHORT = {
    "float": "f",
    "bfloat": "bf",
    "int": "i",
    "uint": "u",
    "complex": "c",
    "qint": "qi",
    "quint": "qu",
}


def short_dtype(dtype: object) -> str:
    """`f32` of torch.float32, or of its name with or without `torch.`; `bool`; `f8_e5m2`."""
    name = str(dtype).removeprefix("torch.")
    letters = name.rstrip("0123456789")
    if letters in _SHORT:
        return _SHORT[letters] + name[len(letters) :]
    return name.replace("float8", "f8").replace("float4", "f4")
