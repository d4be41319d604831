from . import module as module
