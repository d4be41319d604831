from . import optimizer as optimizer
