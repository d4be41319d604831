"""Records facts: per layer shapes and statistics, per parameter its gradient norm and age.

It listens as a watch does, but to everything, and decides nothing. Nothing is recorded, and nothing
kept, while nobody asks. What is kept is bounded: `records` for each of at most 8,192 layers and
parameters, `samples` for each thread; modules and parameters are held by weak references.

Not recorded are forwards that a checkpoint runs again inside backward, and those of expressions
that the user evaluates.

Cost: 15 to 20 us a layer and 10 us a parameter each step, one Python frame each.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, ClassVar

from ..wire import WIRE_VERSION, Facts
from ..wire.facts import SAMPLE, Layer, Parameter, Root
from . import debugger
from .arguments import specification
from .frames import calling_frame
from .modules import Call, Names, clean_path
from .records import LayerRecord, ParameterRecord, RootRecord
from .samples import ROWS, Measured, Samples, Sampling, can_wait, sampler, stream_of
from .tensors import tensors_in, unseen
from .watches.base import Watch

if TYPE_CHECKING:
    import torch
    from torch.nn import Module

_MAX_RECORDS = 8192
#: Parameters change little in a step: their norms are taken after each fourth.
_NORM_EVERY = 4
#: How long a reader waits for a thread that measures.
_LOCK_SECONDS = 1.0
_NO_MODULE = "(no module's)"


class _Mine(threading.local):
    """What each thread has of its own."""

    def __init__(self) -> None:
        #: Whether it waits in the debugger, once it has called a root; see `thread_state`.
        self.state: Any = None
        #: By device; where there are streams by (device, stream).
        self.samples: dict[Any, Samples] = {}


class Recorder(Watch):
    """Keeps facts while `record(True)`; `read` may be called on any thread."""

    metric: ClassVar[str] = "facts"

    def __init__(
        self, names: Names, scale_of: Callable[[torch.Tensor | None], float | None]
    ) -> None:
        self._names = names
        self._scale_of = scale_of
        self.is_recording = False
        #: Called when the first layer is met.
        self.on_begin: Callable[[], None] = lambda: None
        #: By id, of what exists. Those of modules are below a root, too.
        self._layers: dict[int, LayerRecord] = {}
        self._parameters: dict[int, ParameterRecord] = {}
        self._roots: dict[int, RootRecord] = {}
        #: The last root of each class that is gone.
        self._gone: dict[str, RootRecord] = {}
        self._start_over()

    def record(self, on: bool) -> None:
        """Record from now on, or stop and forget everything. torch must be there."""
        if on == self.is_recording:
            return
        self._start_over()
        if on:
            torch = sys.modules["torch"]
            self._tensor, self._sampling_of = torch.Tensor, sampler()
            self._graph_task = torch._C._current_graph_task_id
            self._optimizer_step = self._names.optimizer_step()
        self.is_recording = on

    def after_fork(self) -> None:
        """Nothing is recorded in a child, and what other threads of the parent held stays so."""
        self.is_recording = False
        self._start_over()

    def _start_over(self) -> None:
        for root in (*self._roots.values(), *self._gone.values()):
            root.layers.clear()
            root.parameters.clear()
        self._layers.clear()
        self._parameters.clear()
        self._roots.clear()
        self._gone.clear()
        self._step: int | None = None
        self._mine = _Mine()
        self._tables: list[tuple[threading.Thread, Samples]] = []
        #: Held while rows are measured; a signal handler may run a model.
        self._lock = threading.RLock()
        self._left_out: set[int] = set()
        self._optimizer_step = 0

    # Layers --------------------------------------------------------------------------------------

    def on_root(self, call: Call) -> None:
        """A step begins."""
        self._mine.state = debugger.thread_state()
        root = self._names.root_of(call.module)
        assert root is not None
        found = self._roots.get(id(root))
        if found is None or found.stale:
            found = self._learn(root)
        self._step = found.step = self._names.step(root)

    def on_exit(self, call: Call, outer: list[Call], output: Any) -> None:
        """A module returned: keep a sample of its output."""
        mine = self._mine
        state = mine.state
        if self._graph_task() != -1 or (
            debugger.evaluating() if state is None else state.is_in_wait_loop
        ):
            return
        module = call.module
        record = self._layers.get(id(module))
        if record is None:
            record = self._meet(module, outer[0].module if outer else module)
            if record is None:
                return
        if not record.calls:
            record.called_by(calling_frame(module))
        step = record.root.step
        if record.root.inputs is None and not outer:
            record.root.inputs = specification(module, call.args, call.kwargs)
        if record.calls and step == record.step:
            record.calls += 1
        else:
            record.step, record.calls = step, 1
        record.training = module.training
        single = isinstance(output, self._tensor)
        tensor = output if single else _first_of(record, output)
        if tensor is not None:
            sampling = self._sampling_of(tensor, record.sampling)
            if single and not (sampling is record.sampling is not None and record.single):
                _describe(record, tensor)
            record.single, record.sampling = single, sampling
            self._take(tensor, sampling, record, step)

    def _learn(self, root: Module) -> RootRecord:
        """Make records for all that is below a root."""
        if not self._roots and not self._gone:
            self.on_begin()
        key = id(root)
        found = self._roots.get(key)
        if found is None:
            roots, gone = self._roots, self._gone

            def forget(_: object) -> None:
                record = roots.pop(key, None)
                if record is not None and any(layer.calls for layer in record.layers.values()):
                    gone.pop(record.kind, None)
                    gone[record.kind] = record
                    while sum(len(item.layers) for item in gone.values()) > _MAX_RECORDS:
                        del gone[next(iter(gone))]

            found = roots[key] = RootRecord(root, self._names.step(root), forget)
        found.stale = False
        layers: dict[int, LayerRecord] = {}
        parameters: dict[int, ParameterRecord] = {}
        for module, path, own in _modules_of(self._names, root):
            layer = self._layers.get(id(module)) or self._new_layer(module, path, found)
            if layer is not None:
                _move(layer, layer.root.layers, found)
                layer.path = path
                layers[id(module)] = layer
            for name, parameter in own:
                name = f"{path}.{name}" if path else name
                known = self._parameters.get(id(parameter))
                if known is None:
                    known = self._new_parameter(parameter, name, found)
                if known is not None and id(parameter) not in parameters:  # tied: the first name
                    _move(known, known.root.parameters if known.root else {}, found)
                    known.path = name
                    parameters[id(parameter)] = known
        found.layers, found.parameters = layers, parameters
        return found

    def _meet(self, module: Module, within: Module) -> LayerRecord | None:
        """A module of which its root doesn't know, or whose root was running when we came in."""
        if not self.is_recording or id(module) in self._left_out:  # switched off meanwhile
            return None
        path = self._names.path(module, within)
        root = self._names.root_of(within)
        assert root is not None
        found = self._roots.get(id(root)) or self._learn(root)
        layer = self._layers.get(id(module)) or self._new_layer(module, path, found)
        if layer is not None:
            layer.root.layers[id(module)] = layer
        return layer

    def _new_layer(self, module: Module, path: str, root: RootRecord) -> LayerRecord | None:
        layers, key = self._layers, id(module)
        if len(layers) >= _MAX_RECORDS:
            self._left_out.add(key)
            return None

        def forget(_: object) -> None:
            record = layers.pop(key, None)
            if record is not None:
                record.root.forget(key)

        layers[key] = record = LayerRecord(module, path, root, forget)
        return record

    def _take(
        self, tensor: torch.Tensor, sampling: Sampling | None, whom: Measured, step: int | None
    ) -> None:
        """Copy a sample of `tensor`, to be measured later."""
        device = tensor.device
        samples = self._mine.samples.get(device) or self._samples_on(device)
        if samples is None:
            return
        rows = samples.rows
        if len(rows) == ROWS:
            self._measure(samples)
        if sampling is None:
            samples.take_any(tensor, whom, step)
            return
        _, _, _, _, elements, length, stride = sampling
        samples.table.as_strided((length,), (1,), len(rows) * SAMPLE).copy_(
            tensor.detach().as_strided((length,), (stride,))
        )
        rows.append((whom, step, elements, length))

    def _samples_on(self, device: torch.device) -> Samples | None:
        """This thread's rows on a device; None where nothing can be measured now."""
        if device.type == "meta" or not can_wait(device):
            return None
        stream = stream_of(device)
        key = device if device.type == "cpu" else (device, stream)
        samples = self._mine.samples.get(key)
        if samples is None:
            samples = self._mine.samples[key] = Samples(device)
            self._bury()
            self._tables.append((threading.current_thread(), samples))
        return samples

    def _bury(self) -> None:
        """Let go of the tables of threads that have ended."""
        with self._lock:  # all of it: another thread may be at it, too
            for thread, samples in self._tables[:]:
                if not thread.is_alive():
                    samples.measure()
                    samples.clear()
                    self._tables.remove((thread, samples))

    def _measure(self, samples: Samples) -> None:
        with self._lock:
            samples.measure()
            samples.clear()

    # Parameters ----------------------------------------------------------------------------------

    def on_parameter_gradient(
        self, owner: Module | None, name: str, parameter: torch.Tensor, norm: float | None
    ) -> None:
        """Keep the norm of the gradient."""
        record = self._parameters.get(id(parameter))
        if record is None:
            record = self._meet_parameter(owner, name, parameter)
        if norm is None or record is None:
            return
        scale = self._scale_of(parameter)
        step = self._step if record.root is None else record.root.step
        record.add_gradient(step, self._optimizer_step, norm if scale is None else norm / scale)

    def on_after_update(self, optimizer: Any) -> None:
        """Count it, and now and then sample the parameters that had a gradient."""
        self._optimizer_step = self._names.optimizer_step()
        if self._optimizer_step % _NORM_EVERY != 1:
            return
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                record = self._parameters.get(id(parameter))
                if record is None or parameter.grad is None:
                    continue
                record.sampling = self._sampling_of(parameter, record.sampling)
                self._take(parameter, record.sampling, record, record.step)

    def note_update(self, parameter: torch.Tensor, change: float, size: float) -> None:
        """Somebody has measured the 2-norms of `parameter`'s last change and of it before that."""
        record = self._parameters.get(id(parameter))
        if record is not None:
            record.add_update(change, size)

    def _meet_parameter(
        self, owner: Module | None, name: str, parameter: torch.Tensor
    ) -> ParameterRecord | None:
        layer = None if owner is None else self._layers.get(id(owner))
        if layer is None:
            return self._new_parameter(parameter, _NO_MODULE, None)
        name = f"{layer.path}.{name}" if layer.path else name
        record = self._new_parameter(parameter, name, layer.root)
        if record is not None:
            layer.root.parameters[id(parameter)] = record
        return record

    def _new_parameter(
        self, parameter: torch.Tensor, path: str, root: RootRecord | None
    ) -> ParameterRecord | None:
        parameters, key = self._parameters, id(parameter)
        if len(parameters) >= _MAX_RECORDS:
            self._left_out.add(key)
            return None

        def forget(_: object) -> None:
            record = parameters.pop(key, None)
            if record is not None and record.root is not None:
                record.root.forget(key)

        parameters[key] = record = ParameterRecord(parameter, path, root, forget)
        return record

    # Reading -------------------------------------------------------------------------------------

    def read(self, glob: str | None = None, history: bool = False) -> Facts:
        """The facts of the layers that `glob` matches, and of the parameters in them."""
        self._measure_rest(wait=True)
        roots = [root for root in self._roots.copy().values() if root.root() is not None]
        kinds = {root.kind for root in roots}
        roots += [root for root in self._gone.copy().values() if root.kind not in kinds]
        roots = [root for root in roots if any(item.calls for item in root.layers.copy().values())]
        layers: list[Layer] = []
        parameters: list[Parameter] = []
        for number, root in enumerate(roots):
            layers += [
                layer.facts(number, history)
                for layer in root.layers.copy().values()
                if layer.calls and (glob is None or fnmatchcase(layer.path, glob))
            ]
            for known in root.parameters.copy().values():
                owner = known.path.rpartition(".")[0]
                if glob is None or fnmatchcase(owner, glob) or fnmatchcase(known.path, glob):
                    parameters.append(known.facts(number, root.step, history))
        parameters += [
            known.facts(None, self._step, history)
            for known in self._parameters.copy().values()
            if known.root is None and glob in (None, "*")
        ]
        rank, ranks = _place()
        return Facts(
            version=WIRE_VERSION,
            pid=os.getpid(),
            time=time.time(),
            python=sys.version.partition(" ")[0],
            torch=getattr(sys.modules.get("torch"), "__version__", None),
            recording=self.is_recording,
            step=self._step,
            optimizer_step=self._optimizer_step,
            roots=tuple(
                Root(root.kind, root.step, root.root() is None, root.inputs or "") for root in roots
            ),
            layers=tuple(layers),
            parameters=tuple(parameters),
            left_out=len(self._left_out),
            note=self._why_empty(roots),
            rank=rank,
            ranks=ranks,
        )

    def _measure_rest(self, *, wait: bool) -> None:
        """What was sampled and not measured so far; without `wait` only what is on the CPU."""
        for _, samples in self._tables[:]:
            if not (wait or samples.is_on_cpu):
                continue
            if self._lock.acquire(timeout=_LOCK_SECONDS if wait else 0):
                try:
                    samples.measure(wait=False)
                finally:
                    self._lock.release()

    def of_layer(self, module: Module, history: bool = False) -> Layer | None:
        """The facts of one module; None where nothing is recorded of it.

        Without history what was sampled on a device may be of an earlier step: nothing runs there.
        """
        self._measure_rest(wait=history)
        record = self._layers.get(id(module))
        return record.facts(0, history) if record is not None and record.calls else None

    def of_parameter(self, parameter: torch.Tensor, history: bool = False) -> Parameter | None:
        """The same of one parameter."""
        self._measure_rest(wait=history)
        record = self._parameters.get(id(parameter))
        if record is None or record.step is None:
            return None
        now = self._step if record.root is None else record.root.step
        return record.facts(None if record.root is None else 0, now, history)

    def _why_empty(self, roots: list[RootRecord]) -> str | None:
        process = f"process {os.getpid()}"
        if "torch" not in sys.modules:
            return f"torch is not imported in {process} so far"
        if not self.is_recording:
            return f"nothing is recorded in {process}"
        if not roots:
            return f"nothing is recorded in {process} so far: no module has returned"
        return None


def _move(record: LayerRecord | ParameterRecord, out_of: dict[int, Any], to: RootRecord) -> None:
    """Put a record below another root."""
    if record.root is not to:
        if record.root is not None:
            record.root.stale = True
        for key in [key for key, item in out_of.items() if item is record]:
            out_of.pop(key, None)
        record.root, record.ring = to, None  # whose steps are others


def _modules_of(names: Names, root: Module) -> list[tuple[Module, str, list[tuple[str, Any]]]]:
    """Each module of `root`, its path and its own parameters.

    Not those that are known as part of another root; but those are whose other root is gone.
    """
    found: list[tuple[Module, str, list[tuple[str, Any]]]] = []
    for name, module in root.named_modules():
        known = names.root_of(module)
        if known is root or known is module:
            own = [(key, item) for key, item in module._parameters.items() if item is not None]
            path = names.path(module, root) if known is root else clean_path(root, name)
            found.append((module, path, own))
    return found


@unseen
def _describe(record: LayerRecord, tensor: torch.Tensor) -> None:
    """Note what an output is like that is one tensor."""
    record.outputs = (_output("output", tensor),)


@unseen
def _first_of(record: LayerRecord, output: object) -> Any:
    """The first floating tensor in an output that isn't one; notes all that are in it."""
    tensors = list(tensors_in(output, "output"))
    record.outputs = tuple(_output(name, tensor) for name, tensor in tensors)
    return next((tensor for _, tensor in tensors if tensor.is_floating_point()), None)


def _output(name: str, tensor: torch.Tensor) -> tuple[str, Any, tuple[int, ...], Any]:
    shape = () if tensor.is_nested else tuple(tensor.shape)
    return name, tensor.dtype, shape, tensor.device


def _place() -> tuple[int | None, int | None]:
    """The rank of this process and the number of ranks; None where it is no distributed run."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    rank, ranks = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
    if rank.isdecimal() and ranks.isdecimal():
        return int(rank), int(ranks)
    return None, None
