"""The few names of torch that the agent touches, for debuggees of any Python, in no time.

Modules call, hooks run, layers have names; there is no arithmetic. For tests of the adapter and of
the stop mechanism, which have nothing to do with tensors.
"""

from . import _C as _C
from . import compiler as compiler
from . import nn as nn
from . import optim as optim

__version__ = "0.stub"


class Tensor:
    """Never made."""
