from . import modules as modules
from .modules.module import Module as Module
