from collections import OrderedDict

_global_forward_pre_hooks = OrderedDict()
_global_forward_hooks = OrderedDict()


class _Handle:
    def __init__(self, hooks, hook):
        self._hooks = hooks
        hooks[id(self)] = hook

    def remove(self):
        self._hooks.pop(id(self), None)


def register_module_forward_pre_hook(hook):
    return _Handle(_global_forward_pre_hooks, hook)


def register_module_forward_hook(hook, *, with_kwargs=False, always_call=False):
    assert with_kwargs
    return _Handle(_global_forward_hooks, hook)


class Module:
    _compiled_call_impl = None

    def __init__(self):
        self.__dict__.update(_modules={}, _parameters={}, _buffers={})

    def __setattr__(self, name, value):
        if isinstance(value, Module):
            self._modules[name] = value
        super().__setattr__(name, value)

    def named_modules(self, prefix=""):
        yield prefix, self
        for name, module in self._modules.items():
            yield from module.named_modules(f"{prefix}.{name}" if prefix else name)

    def modules(self):
        for _, module in self.named_modules():
            yield module

    def compile(self):
        self._compiled_call_impl = self._call_impl

    def _wrapped_call_impl(self, *args, **kwargs):
        return self._call_impl(*args, **kwargs)

    def _call_impl(self, *args, **kwargs):
        def inner():
            for hook in list(_global_forward_pre_hooks.values()):
                hook(self, args)
            result = self.forward(*args, **kwargs)
            for hook in list(_global_forward_hooks.values()):
                hook(self, args, kwargs, result)
            return result

        return inner()

    __call__ = _wrapped_call_impl
