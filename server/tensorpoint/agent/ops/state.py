"""What running a forward again would change, and putting it back.

A forward draws random numbers, counts in attributes, writes running statistics and caches. How the
newest call of each root began is noted, so that it can be run again as it was; and what is there
when a replay begins is put back when it has ended, however it ended. Nothing is copied while the
program runs: tensors are saved when a replay is about to write into them. It costs about 40 us a
call of a root (a GPT-2 of 6 layers), and 30 us a module at the first three.
"""

from __future__ import annotations

import random
import sys
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from .. import debugger
from ..modules import Call, keywords_of
from ..quiet import is_quiet
from ..tensors import has_nonfinite, tensors_in, unseen, version_of
from .dispatch import Key, key_of, storage_of
from .forwards import sequence_number
from .keep import Undo, keep, keep_attributes
from .recorder import NotReplayable

if TYPE_CHECKING:
    from torch.nn import Module

#: Attributes that are compared from call to call: a change tells that a module counts.
_PLAIN = (bool, int, float, str, type(None))
#: Calls of a root that are compared.
_LESSONS = 2
#: Tensors of a root's output whose gradients are kept during a backward pass, and up to which size:
#: those of a language model's logits may be gigabytes, which the program has let go by then.
_MAX_OUTPUTS = 4
_MAX_KEPT_BYTES = 64 << 20
#: Roots that are kept until their graph has gone, at most: the newest.
_MAX_HELD = 4


@dataclass(eq=False)
class Entry:
    """How a call of a root began. It doesn't keep the root alive (`_Held` does)."""

    root: weakref.ref[Module]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    #: The tensors among its arguments, with their versions.
    tensors: list[tuple[Any, int | None]]
    #: What puts random numbers, attributes and the contents of arguments back.
    undo: list[Undo]
    #: Grad mode and autocast, to be entered.
    modes: Callable[[ExitStack], None]
    #: Those of the model's own, which `undo` sets back.
    generators: list[Any]
    #: The number that autograd gives the first node made in it.
    first_node: int
    #: What backward brought to the tensors of its output, by their position, in the pass that runs;
    #: None for what is too large to keep.
    gradients: dict[int, Any] = field(default_factory=dict[int, Any])
    held: weakref.ref[_Held] | None = None

    @property
    def module(self) -> Module:
        """The root."""
        root = self.root()
        if root is None:
            raise NotReplayable("the model is gone")
        return root

    def call(self) -> Any:
        """Call the root as it was called."""
        return self.call_with(self.args, self.kwargs)

    def call_with(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The same with other arguments."""
        module: Any = self.module
        with ExitStack() as stack:
            self.modes(stack)
            return module(*args, **kwargs)

    def got_bad_gradient(self) -> bool:
        """Whether the gradient that has come to its output is not finite, as far as it was kept."""
        return any(
            gradient is not None and has_nonfinite(gradient) for gradient in self.gradients.values()
        )

    def was_overwritten(self) -> bool:
        """Whether an argument was changed in place since."""
        return any(version_of(tensor) != version for tensor, version in self.tensors)


@dataclass(eq=False)
class _Held:
    """Keeps a root alive for a backward, which may run when the program has let go of the model:
    `Model()(x).sum().backward()`. Held by the graph of its output alone, so as long as that.

    A root that holds its own output would so keep itself, and no garbage collector sees through a
    graph: at a backward's end, an optimizer's step, or a few calls of roots later it is let go.
    """

    root: Module | None


class Entries:
    """Notes how the newest call of each root began. A listener of the hooks."""

    def __init__(self) -> None:
        self._entries: weakref.WeakKeyDictionary[Module, Entry] = weakref.WeakKeyDictionary()
        self._lessons: weakref.WeakKeyDictionary[Module, _Lessons] = weakref.WeakKeyDictionary()
        #: Calls to which the backward pass that runs has brought gradients, newest first.
        self._in_backward: list[Entry] = []
        #: The newest calls whose output has a graph, oldest first.
        self._held: deque[weakref.ref[_Held]] = deque()

    def in_backward(self) -> list[Entry]:
        """The calls that the backward pass that runs has come to, newest first."""
        return list(self._in_backward)

    def of(self, root: Module) -> Entry | None:
        """How the newest call of `root` began; None if it wasn't seen or is long over."""
        return self._entries.get(root)

    def changing(self, root: Module) -> set[Module]:
        """The modules below `root` whose attributes its calls change: running one alone, with the
        attributes as they are after its call, would not be the same again.
        """
        lessons = self._lessons.get(root)
        found = () if lessons is None else (owner() for owner, _ in lessons.changing)
        return {module for module in found if module is not None}

    def forget(self) -> None:
        """Keep nothing of the program's."""
        self._entries.clear()
        self._in_backward.clear()
        self._let_go(0)

    def on_root(self, call: Call) -> None:
        """A root is called: note how."""
        root, kwargs = call.module, keywords_of(call)
        lessons = self._lessons.setdefault(root, _Lessons())
        lessons.learn(root)
        self._entries[root] = Entry(
            root=weakref.ref(root),
            args=call.args,
            kwargs=dict(kwargs),
            tensors=[
                (tensor, version_of(tensor)) for _, tensor in tensors_in((call.args, kwargs), "")
            ],
            undo=[
                *_random_state(lessons.draws),
                *map(_generator, lessons.generators),
                *(undo for owner, name in lessons.changing for undo in _attribute(owner, name)),
                *keep((call.args, kwargs), strongly=False),
            ],
            modes=_modes(),
            generators=lessons.generators,
            first_node=sequence_number(),
        )

    def on_root_exit(self, call: Call, output: Any) -> None:
        """Hear of what backward will bring to the root's output; without a graph it is over."""
        entry = self._entries.get(call.module)
        if entry is None:
            return
        held: _Held | None = None
        for position, (_, tensor) in enumerate(islice(tensors_in(output, ""), _MAX_OUTPUTS)):
            node = tensor.grad_fn
            if node is not None:
                held = held or _Held(call.module)
                hook = partial(self._came_in, held, entry, position, tensor.output_nr)
                node.register_prehook(hook)
        if held is None:
            del self._entries[call.module]
            return
        entry.held = weakref.ref(held)
        self._held.append(entry.held)
        self._let_go(_MAX_HELD)

    def _let_go(self, most: int) -> None:
        """Keep no more than `most` roots alive."""
        while len(self._held) > most:
            try:
                _let_go(self._held.popleft())
            except IndexError:
                return  # another thread was faster

    def _came_in(
        self,
        held: _Held,
        entry: Entry,
        position: int,
        number: int,
        gradients: tuple[Any, ...],
    ) -> None:
        gradient = gradients[number] if number < len(gradients) else None
        if gradient is None or is_quiet() or debugger.evaluating():
            return
        small = gradient.numel() * gradient.element_size() <= _MAX_KEPT_BYTES
        entry.gradients[position] = gradient if small else None
        if entry in self._in_backward:
            self._in_backward.remove(entry)
        self._in_backward.insert(0, entry)

    def on_backward_end(self, results: object) -> None:
        """The gradients are no longer needed."""
        self._end_backward()

    def on_backward_failed(self) -> None:
        """The same."""
        self._end_backward()

    def _end_backward(self) -> None:
        for entry in self._in_backward:
            entry.gradients.clear()
            _let_go(entry.held)
        self._in_backward.clear()

    def on_after_update(self, optimizer: Any) -> None:
        """The parameters have changed: what was computed with the old ones is over."""
        self.forget()


def _let_go(reference: weakref.ref[_Held] | None) -> None:
    held = None if reference is None else reference()
    if held is not None:
        held.root = None


#: An attribute of a module, which is not kept alive.
_Place = tuple["weakref.ref[Module]", str]


class _Lessons:
    """What the calls of a root change besides tensors."""

    def __init__(self) -> None:
        self._left = _LESSONS + 1
        self._attributes: dict[_Place, Any] = {}
        self._states: dict[str, Any] = {}
        #: Attributes that changed: counters, lists that grow.
        self.changing: list[_Place] = []
        #: Which sources of random numbers besides torch's own were drawn from.
        self.draws: set[str] = set()
        #: Generators that modules hold.
        self.generators: list[Any] = []

    def learn(self, root: Module) -> None:
        """Compare with the call before."""
        if not self._left:
            return
        self._left -= 1
        attributes = dict(_attributes(root))
        self.generators = list(_generators(root))
        states = {"random": random.getstate()}
        if "numpy" in sys.modules:
            states["numpy"] = _comparable(sys.modules["numpy"].random.get_state())
        for place, value in self._attributes.items():
            if attributes.get(place) != value and place not in self.changing:
                self.changing.append(place)
        self.draws |= {name for name, state in self._states.items() if state != states.get(name)}
        self._attributes, self._states = (attributes, states) if self._left else ({}, {})


def _attributes(root: Module) -> Iterator[tuple[_Place, Any]]:
    for module in root.modules():
        owner = weakref.ref(module)
        for name, value in vars(module).items():
            if name == "training":
                continue
            if isinstance(value, _PLAIN):
                yield (owner, name), value
            elif isinstance(value, (list, dict, set)) and not name.startswith("_"):
                yield (owner, name), len(value)  # type: ignore[reportUnknownArgumentType]


def _generators(root: Module) -> Iterator[Any]:
    generator = sys.modules["torch"].Generator
    for module in root.modules():
        for value in vars(module).values():
            if isinstance(value, generator):
                yield value


def _comparable(state: Any) -> tuple[Any, ...]:
    return (state[0], state[1].tobytes(), *state[2:])


def _attribute(owner: weakref.ref[Module], name: str) -> list[Undo]:
    module = owner()
    if module is None or name not in vars(module):
        return []
    value = vars(module)[name]

    def undo() -> None:
        now = owner()
        if now is not None:
            vars(now)[name] = value

    return [undo, *keep(value, strongly=False)]


def _random_state(draws: set[str]) -> list[Undo]:
    """What sets generators to where they are: torch's own, and of others those that are named."""
    torch = sys.modules["torch"]
    undo = [_generator(torch.default_generator)]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        undo += [_generator(generator) for generator in torch.cuda.default_generators]
    if "random" in draws:
        state = random.getstate()
        undo.append(lambda: random.setstate(state))
    if "numpy" in draws:
        numpy = sys.modules["numpy"].random
        numpy_state = numpy.get_state()
        undo.append(lambda: numpy.set_state(numpy_state))
    return undo


def _generator(generator: Any) -> Undo:
    state = generator.get_state()
    return lambda: generator.set_state(state)


def _modes() -> Callable[[ExitStack], None]:
    """The grad mode and autocast that are on, to be entered again."""
    torch = sys.modules["torch"]
    grad, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    devices = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
    autocast = [
        (device, torch.get_autocast_dtype(device))
        for device in devices
        if torch.is_autocast_enabled(device)
    ]

    def enter(stack: ExitStack) -> None:
        stack.enter_context(torch.inference_mode(inference))
        stack.enter_context(torch.set_grad_enabled(grad))
        for device in devices:
            dtype = dict(autocast).get(device)
            stack.enter_context(torch.autocast(device, dtype=dtype, enabled=dtype is not None))

    return enter


class Written:
    """Tensors that were there before a replay and were written into by it."""

    def __init__(self, inputs: list[Any]) -> None:
        self._inputs = inputs
        self._saved: list[tuple[Any, Any, int | None]] = []
        self._known: set[Key] = set()

    def __call__(self, tensor: Any, own: bool) -> None:
        """An operation is about to write into `tensor`, which the replay itself made if `own`."""
        if own:
            return
        if any(storage_of(tensor) == storage_of(given) for given in self._inputs):
            raise NotReplayable("it overwrites its own input")
        self._save(tensor)

    @unseen
    def _save(self, tensor: Any) -> None:
        if tensor.layout is not sys.modules["torch"].strided:
            raise NotReplayable("it writes into a sparse tensor")
        key = key_of(tensor)
        if key not in self._known:
            self._known.add(key)
            self._saved.append((tensor, tensor.clone(), version_of(tensor)))

    @unseen
    def restore(self) -> None:
        """Put the numbers back, and the version counters, by which autograd knows of writes."""
        torch = sys.modules["torch"]
        for tensor, numbers, version in reversed(self._saved):
            with torch.inference_mode(tensor.is_inference()), torch.no_grad():
                tensor.copy_(numbers)
            if version is not None:
                _set_version(tensor, version)
        self._saved.clear()
        self._known.clear()


def _set_version(tensor: Any, version: int) -> None:
    set_version = sys.modules["torch"]._C._autograd._unsafe_set_version_counter
    try:
        set_version((tensor,), (version,))
    except TypeError:  # torch < 2.7
        set_version(tensor, version)


@contextmanager
def restored(modules: list[Module], arguments: object, written: Written) -> Generator[None]:
    """Put everything back at the end that a forward of these modules changes."""
    undo: list[Undo] = [*_random_state({"random", "numpy"} & sys.modules.keys())]
    for module in modules:
        undo += keep_attributes(module)
    undo += keep(arguments)
    try:
        yield
    finally:
        written.restore()
        for act in undo:
            act()
