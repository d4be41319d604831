"""What operations and their arguments are called."""

from __future__ import annotations

import re

#: Operations that are the same under another name.
_ALIASES = {
    "arccos": "acos",
    "arccosh": "acosh",
    "arcsin": "asin",
    "arctanh": "atanh",
    "divide": "div",
    "multiply": "mul",
    "special_expm1": "expm1",
    "special_exp2": "exp2",
    "special_erfinv": "erfinv",
    "special_gammaln": "lgamma",
    "special_digamma": "digamma",
    "special_psi": "digamma",
    "special_polygamma": "polygamma",
    "special_log1p": "log1p",
    "special_logit": "logit",
    "special_xlogy": "xlogy",
    "subtract": "sub",
    "true_divide": "div",
}

#: What an argument is called where the caller knows no better: by its name in the schema.
_ROLES = {
    "A": "the matrix",
    "attn_bias": "the mask",
    "attn_mask": "the mask",
    "batch1": "the first matrix",
    "batch2": "the second matrix",
    "end": "the end",
    "exponent": "the exponent",
    "input": "the input",
    "key": "the key",
    "mask": "the mask",
    "mat": "the matrix",
    "mat1": "the first matrix",
    "mat2": "the second matrix",
    "other": "the second operand",
    "query": "the query",
    "scalar": "the number",
    "scalars": "the number",
    "self": "the argument",
    "src": "the source",
    "target": "the target",
    "tensor": "the second vector",
    "tensor1": "the first factor",
    "tensor2": "the second factor",
    "vec": "the vector",
    "weight": "the weight",
}
#: The same where it differs: by operation and argument.
_ROLES_OF = {
    ("addcdiv", "tensor1"): "the dividend",
    ("addcdiv", "tensor2"): "the divisor",
    ("addmm", "self"): "the bias",
    ("bmm", "self"): "the first matrix",
    ("div", "other"): "the divisor",
    ("div", "self"): "the dividend",
    ("dot", "self"): "the first vector",
    ("lerp", "self"): "the start",
    ("linalg_solve_triangular", "self"): "the matrix",
    ("matmul", "other"): "the second matrix",
    ("matmul", "self"): "the first matrix",
    ("mm", "self"): "the first matrix",
    ("mv", "self"): "the matrix",
    ("nll_loss", "self"): "the log-probability",
    ("nll_loss2d_forward", "self"): "the log-probability",
    ("nll_loss_forward", "self"): "the log-probability",
    ("pow", "self"): "the base",
    ("remainder", "other"): "the divisor",
    ("fmod", "other"): "the divisor",
    ("floor_divide", "other"): "the divisor",
    **{
        (operation, "self"): "the first operand"
        for operation in ("add", "atan2", "hypot", "logaddexp", "logaddexp2", "mul", "sub", "xlogy")
    },
}


def bare(operation: str) -> str:
    """The name of an operation without what says that it is in place or of a list.

    "div" is that of `div`, `div_`, `_foreach_div_` and `true_divide`.
    """
    name = operation.removeprefix("_foreach_").rstrip("_")
    return _ALIASES.get(name, name)


def node_kind(node: str) -> str:
    """A backward node without its number: "SqrtBackward" of "SqrtBackward0"."""
    return re.sub(r"\d+$", "", node.rpartition("::")[2])


def forward_name(node: str) -> str:
    """The operation that a backward node belongs to: "log_softmax" of "LogSoftmaxBackward0"."""
    kind = node_kind(node).removesuffix("Backward")
    words = re.findall(r"[A-Z][a-z0-9]*", kind)
    return "_".join(word.lower() for word in words) or kind


def is_of(node: str, operation: str) -> bool:
    """Whether a backward node is that of an operation: "SqrtBackward0" of "sqrt_"."""
    return forward_name(node).replace("_", "") == bare(operation).replace("_", "")


def role(operation: str, argument: str) -> str:
    """What to call an argument of an operation: "the divisor"."""
    name = bare(operation)
    known = _ROLES_OF.get((name, argument)) or _ROLES.get(argument)
    return known or f"the argument {argument}"
