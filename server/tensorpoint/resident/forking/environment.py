"""Which environment variables an interpreter with torch has read before the program's first line.

A fork can be given another environment, but what was read at start or at an import stays. So a
zygote serves only programs that agree with it in these; the rest is set in each child.
"""

from __future__ import annotations

from collections.abc import Mapping

#: Read when the interpreter starts, a library is loaded, or a package of PyTorch's world imported.
_PREFIXES = (
    *("ACCELERATE_", "ATEN_", "DIFFUSERS_", "GLIBC_", "GOTO_", "HF_", "HUGGINGFACE_", "KMP_"),
    *("LC_", "LD_", "MALLOC_", "MKL_", "NUMBA_", "NUMEXPR_", "NPY_", "OMP_", "OPENBLAS_"),
    *("PYDEVD_", "PYTHON", "PYTORCH_", "TORCH", "TRANSFORMERS_", "TRITON_", "USE_", "VECLIB_"),
)
_NAMES = frozenset(
    {
        *("HOME", "LANG", "LANGUAGE", "VIRTUAL_ENV", "XDG_CACHE_HOME"),
        # By the debugger, when it is imported.
        *("DEBUGPY_LOG_DIR", "DEBUGPY_LOG_STDERR", "DEBUGPY_TRACE_DEBUGPY", "GEVENT_SUPPORT"),
    }
)
#: The exceptions: read whenever they are needed, or seen to in the child.
_LATE_PREFIXES = ("TORCHELASTIC_", "TORCH_NCCL_", "TORCH_FR_", "TORCH_GLOO_", "TORCH_DISTRIBUTED_")
_LATE = frozenset(
    {
        *("PYTHONBREAKPOINT", "PYTHONIOENCODING", "PYTHONUNBUFFERED", "PYTHONINSPECT"),
        *("PYTHONSTARTUP", "PYTHON_COLORS", "PYTHON_HISTORY", "PYTHON_BASIC_REPL"),
        "PYTHON_EXEC",  # torchrun's: what it starts its ranks with
        # Silences a warning of pydevd's as it is imported, which the zygote has done.
        "PYDEVD_DISABLE_FILE_VALIDATION",
    }
)


def read_early(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables in `environment` by which zygotes differ."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if (name in _NAMES or name.startswith(_PREFIXES))
        and name not in _LATE
        and not name.startswith(_LATE_PREFIXES)
    }


def differences(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """The names that have another value, or none, in one of the two."""
    return sorted(name for name in {*one, *other} if one.get(name) != other.get(name))
