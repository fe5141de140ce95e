"""ConnectTiles: calls whose large results no others read become one kernel that keeps them in the cache.

As in Welder (OSDI'23), operators are connected by their tiles: a parallel loop goes over blocks of the axes that they
share (`tir.shared_axes`). In a block all of them are computed, one after the other, each as planned for one core and
the block's extents. Their results are as large as a block and never leave the core's cache. Attention is such a chain:
scores, softmax, product; so is a norm of channels, whose mean two calls read. Which calls are connected, and in which
blocks, follows from the predicted times alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import tvm
from tvm import relax

from ..device import DeviceSpec
from ..errors import RollerError
from ..micro_perf.cpu_caches import passing_seconds
from ..micro_perf.cpu_constants import SERIAL_LAUNCH
from ..rammer.functions import Call
from ..rammer.rkernels import part_of
from ..tir.nodes import key, parameters
from ..tir.open_axes import number
from ..tir.shared_axes import SharedAxes, shared_axes
from ..tuning.candidates import Candidates
from ..tuning.explorable import FEWER
from .candidates import TOP, make_candidates, seconds_alone
from .chain_kernels import plain_chain, together
from .dataflow import Block, read_blocks
from .devices import device_of, find_target
from .fused_calls import FusedCall
from .rtask_fusion import in_dataflow, put
from .rtask_regions import plain
from .schedule import Note
from .structures import Function
from .tasks import Task, hash_of, normalized, without_names

#: The choice of a chain whose calls are kernels of their own.
APART = "apart"
#: Most calls of a chain.
CALLS = 4
#: How much faster a chain must be predicted than its calls one by one: the model's error.
GAIN = 1.1
#: The same where calls are connected though it is not predicted to pay: it is tried.
EAGER = 1 / FEWER
#: Least bytes between the calls, in those that they read and write beside: what connecting them saves, at most.
BETWEEN = 0.5
#: Fewest elements of a block along the axis that is cut. Blocks of one or two images are predicted to gain; with eight
#: images MobileNet v2 took 3 % longer.
ROWS = 8


@dataclass(frozen=True)
class Way:
    """A way to compute a chain, with the candidates of each function of a block.

    Parameters
    ----------
    extents : tuple of int
        Of a block.
    seconds : float
        Predicted.
    """

    extents: tuple[int, ...]
    seconds: float
    found: tuple[Candidates, ...]

    @property
    def label(self) -> str:
        return f"blocks of {'x'.join(map(str, self.extents))}"


@dataclass(frozen=True, eq=False)
class Chain:
    """Functions that may be connected.

    Parameters
    ----------
    funcs : tuple of PrimFunc
    tensors : tuple of tuple of str
        As of `shared_axes`.
    ways : tuple of Way
        The best one first.
    apart : float
        Predicted seconds of the functions one by one.
    """

    funcs: tuple[Any, ...]
    tensors: tuple[tuple[str, ...], ...]
    shared: SharedAxes
    ways: tuple[Way, ...]
    apart: float

    @cached_property
    def key(self) -> str:
        """The same for the same computation, in another process too."""
        return chain_key(self.funcs, self.tensors)

    def way(self, label: str | None, gain: float) -> Way | None:
        """Return the way of a label; without one the best way, if it is predicted to be so much faster."""
        if label is not None:
            return next((way for way in self.ways if way.label == label), None)
        return next((way for way in self.ways[:1] if way.seconds * gain < self.apart), None)

    def function(self, way: Way) -> Any:
        """Return the chain's function; None if no plan of a call could be applied."""
        applied = [next(one.schedules(), None) for one in way.found]
        if any(one is None for one in applied):
            return None
        parts = [plain(one[1].mod["main"]) for one in applied if one is not None]
        return together(self.shared, way.extents, self.tensors, parts)

    def task(self, name: str) -> Task:
        """Return what the chain computes, as TVM fuses its functions."""
        func = normalized(plain_chain(self.funcs, self.tensors))
        return Task(0, name, 1, func["main"], (func,), (), self.key)


@dataclass(frozen=True)
class _Found:
    """A chain of calls, and its function."""

    calls: tuple[Call, ...]
    reads: tuple[str, ...]
    chain: Chain
    way: Way
    func: Any


def chain_key(funcs: Sequence[Any], tensors: Sequence[Sequence[str]]) -> str:
    """Return the key of a chain of functions."""
    own = [f"{hash_of(without_names(func))}({','.join(names)})" for func, names in zip(funcs, tensors, strict=True)]
    return " ".join(own)


class ConnectTiles:
    """Connects calls of a prepared module for a CPU; see the module.

    Parameters
    ----------
    target, device
        As of ``ScheduleWithRoller``.
    without : collection of str
        Functions that stay kernels of their own.
    chosen : mapping of str to str
        Key of a chain -> the label of a way, or `APART`: what an exploration has found.
    eager : bool
        Whether chains are connected that are not predicted to pay.

    Attributes
    ----------
    notes : list of Note
        What was connected.
    chains : dict of str to (Chain, Way)
        By the name of the function.
    explored : list of str
        What was done because it was chosen.
    """

    def __init__(
        self, target: Any = None, device: DeviceSpec | str | None = None, without: Collection[str] = (),
        chosen: Mapping[str, str] | None = None, eager: bool = False,
    ) -> None:  # fmt: skip
        self.device, self.without, self.chosen = device_of(device, find_target(target)), set(without), chosen or {}
        self.gain, self.notes = EAGER if eager else GAIN, list[Note]()
        self.chains: dict[str, tuple[Chain, Way]] = {}
        self.explored: list[str] = []
        self._known: dict[Any, Chain | None] = {}
        self._made: dict[tuple[Chain, str], Any] = {}

    def __call__(self, mod: Any) -> Any:
        """Return the module with chains of calls as one kernel each."""
        return self._connected(mod, False)

    def kept(self, mod: Any) -> Any:
        """Return the module with the chains that were chosen; what was chosen to be apart stays so from now on.

        Records of single functions come later: in a chain they have no use.
        """
        return self._connected(mod, True) if self.chosen else mod

    def options(self, name: str) -> dict[str, Any]:
        """Return all functions of a connected chain by label: its own first, at last the calls one by one."""
        chain, taken = self.chains[name]
        ways = [taken, *(way for way in chain.ways if way is not taken)]
        found = {way.label: self._function(chain, way) for way in ways}
        alone = tuple(make_candidates(func, self.device, TOP) for func in chain.funcs)
        found[APART] = chain.function(Way(chain.shared.extents, chain.apart, alone))
        return {label: func for label, func in found.items() if func is not None}

    def _connected(self, mod: Any, kept: bool) -> Any:
        if self.device.kind != "cpu":
            return mod
        given, mod = mod, in_dataflow(mod)
        builder, blocks = relax.BlockBuilder(mod), list[tuple[Block, list[FusedCall]]]()
        known: dict[int, Any] = {}
        for block in read_blocks(mod):
            own = []
            for found in self._chains(block, kept):
                if key(found.func) not in known:
                    known[key(found.func)] = var = builder.add_func(found.func, f"connected_{_names(found.calls)}")
                    self._tell(str(var.name_hint), found, kept)
                own.append(FusedCall(found.calls, known[key(found.func)], found.reads, found.calls[-1].writes))
            blocks.append((block, own))
        return put(builder.get(), blocks) if known else given

    def _tell(self, name: str, found: _Found, kept: bool) -> None:
        plan = "; ".join(one.plans[0].ranked.plan.words() for one in found.way.found)
        told = f"{found.way.label}: {plan}"
        self.notes.append(Note(name, "connected", found.way.seconds * 1e6, plan=told))
        self.chains[name] = found.chain, found.way
        if kept:
            self.explored.append(f"{name}: {found.way.label}")

    def _chains(self, block: Block, kept: bool) -> Iterator[_Found]:
        """Yield the chains of a block, no two with a call in common."""
        readers: dict[str, set[int]] = {}
        for n, bound in enumerate(block.bounds):
            for tensor in bound.reads:
                readers.setdefault(tensor, set()).add(n)
        taken: set[str] = set()

        def usable(call: Call) -> bool:
            return not (call.effect or len(call.writes) > 1 or call.name in taken or call.function in self.without)

        for n in range(len(block.bounds)):
            groups = list(_groups(block, n, readers, usable))
            for calls in reversed(groups):  # the longest first: each that is connected saves its passing
                if (found := self._chain(calls, kept)) is not None:
                    taken.update(one.name for one in found.calls)
                    yield found
                    break

    def _chain(self, calls: Sequence[Call], kept: bool) -> _Found | None:
        """Return calls as a chain if that is predicted to pay; with `kept`, if that was chosen."""
        passed = [call.writes[0] for call in calls[:-1]]
        reads = tuple(dict.fromkeys(t for call in calls for t in call.reads if t not in passed))
        # Chains that differ in their tensors alone are one kernel.
        names = {t: n for n, t in enumerate([*passed, *reads, calls[-1].writes[0]])}
        tensors = tuple(tuple(str(names[t]) for t in call.tensors) for call in calls)
        label = self.chosen.get(chain_key([call.func for call in calls], tensors)) if kept else None
        if kept and (label is None or label == APART):
            if label is not None and not self.without.issuperset(call.function for call in calls):
                self.without.update(call.function for call in calls)
                self.explored.append(f"{_names(calls)}: {APART}")
            return None
        asked = (tuple(Function(call.func) for call in calls), tensors)
        if asked not in self._known:
            try:
                self._known[asked] = self._planned([call.func for call in calls], tensors)
            except RollerError:  # a function of a form that is not planned, or whose schedule has no plain loops
                self._known[asked] = None
        chain = self._known[asked]
        way = None if chain is None else chain.way(label, self.gain)
        if chain is None or way is None or (func := self._function(chain, way)) is None:
            return None
        return _Found(tuple(calls), reads, chain, way, func)

    def _function(self, chain: Chain, way: Way) -> Any:
        if (chain, way.label) not in self._made:
            try:
                self._made[chain, way.label] = chain.function(way)
            except RollerError:  # a schedule has no plain loops
                self._made[chain, way.label] = None
        return self._made[chain, way.label]

    def _planned(self, funcs: Sequence[Any], tensors: Any) -> Chain | None:
        """Return the ways to compute a chain; None if there is none."""
        sizes = {name: (_bytes(buffer), [number(e) for e in buffer.shape])
                 for func, names in zip(funcs, tensors, strict=True)
                 for buffer, name in zip(parameters(func), names, strict=True)}  # fmt: skip
        passed = [names[-1] for names in tensors[:-1]]
        for func, names in zip(funcs, tensors, strict=True):  # a view of a tensor has other dimensions
            if any(sizes[n][1] != [number(e) for e in b.shape] for b, n in zip(parameters(func), names, strict=True)):
                return None
        between = sum(sizes[name][0] for name in passed)
        if between < BETWEEN * sum(size for name, (size, _) in sizes.items() if name not in passed):
            return None
        shared = shared_axes(funcs, tensors)
        if not shared.extents:
            return None
        apart = sum(map(self._seconds, funcs))
        apart += sum(passing_seconds(sizes[name][0] / self.device.units, self.device) for name in passed)
        core, ways = part_of(self.device, self.device.units), list[Way]()
        for extents in self._blocks(shared, between):
            count = prod(whole // part for whole, part in zip(shared.extents, extents, strict=True))
            found = tuple(make_candidates(func, core, 1) for func in shared.blocks(extents))
            if not all(one.plans for one in found):
                continue
            own = sum(one.plans[0].ranked.seconds - SERIAL_LAUNCH for one in found)
            # All that lies between the calls of a block shares the cache.
            own += passing_seconds(between / count, self.device)
            seconds = -(-count // self.device.units) * own + self.device.launch_overhead_us * 1e-6
            ways.append(Way(extents, seconds, found))
        ways.sort(key=lambda way: way.seconds)
        return Chain(tuple(funcs), tensors, shared, tuple(ways), apart) if ways else None

    def _blocks(self, shared: SharedAxes, between: int) -> Iterator[tuple[int, ...]]:
        """Yield extents of blocks: the largest, and the two largest that leave `between` bytes in a core's cache.

        They are single elements of all axes but the last, of which the parts are equal: enough for all cores.
        """
        *outer, last = shared.extents
        sizes = [last // n for n in range(1, last + 1) if last % n == 0]
        sizes = [n for n in sizes if prod(outer) * last // n >= self.device.units and (n == last or n >= ROWS)]
        fitting = [n for n in sizes if not passing_seconds(between * n / prod(shared.extents), self.device)]
        for size in dict.fromkeys([*sizes[:1], *fitting[:2]]):
            yield (*[1] * len(outer), size)

    def _seconds(self, given: Any) -> float:
        """Return the predicted seconds of a function as a kernel of its own."""
        return seconds_alone(given, self.device) or 0.0


def _groups(
    block: Block, first: int, readers: Mapping[str, set[int]], usable: Callable[[Call], bool]
) -> Iterator[list[Call]]:
    """Yield the call of a binding with more and more of those that follow it, in order.

    Only the last one's result is read by others.

    Parameters
    ----------
    readers : mapping of str to set of int
        Tensor -> the bindings that read it.
    """
    at, calls = first, list[Call]()
    waiting = set[int]()  # bindings that read what was passed on, and are not among the calls
    while block.fences[at] == block.fences[first]:  # what is written in place does not come between
        if (call := block.bounds[at].call) is None or not usable(call):
            return
        calls.append(call)
        waiting.discard(at)
        if not waiting and len(calls) > 1:
            yield list(calls)
        waiting |= readers.get(call.writes[0], set())
        if not waiting or call.writes[0] in block.kept or len(calls) == CALLS:
            return
        at = min(waiting)


def _names(calls: Sequence[Call]) -> str:
    return "_".join(call.function.removeprefix("fused_") for call in calls)


def _bytes(buffer: Any) -> int:
    return prod(number(e) or 0 for e in buffer.shape) * tvm.DataType(str(buffer.dtype)).itemsize
