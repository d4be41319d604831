from ..nn.modules.module import _Handle

_global_optimizer_post_hooks = {}


def register_optimizer_step_post_hook(hook):
    return _Handle(_global_optimizer_post_hooks, hook)
