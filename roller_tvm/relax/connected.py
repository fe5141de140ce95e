"""ConnectTiles: calls whose results are large and read once become one kernel that keeps them in the cache.

As in Welder (OSDI'23), operators are connected by their tiles: a parallel loop goes over blocks of the axes that they
share (`tir.shared_axes`). In a block all of them are computed, one after the other, each as planned for one core and
the block's extents. Their results are as large as a block and never leave the core's cache. Attention is such a chain:
scores, softmax, product. Which calls are connected, and in which blocks, follows from the predicted times alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, relax, tirx
from tvm.s_tir import renew_defs

from ..device import DeviceSpec
from ..errors import RollerError
from ..micro_perf.cpu_constants import CACHE_SHARE, SERIAL_LAUNCH
from ..rammer.functions import Call
from ..rammer.rkernels import part_of
from ..tir.nodes import digits, key, parameters
from ..tir.open_axes import number
from ..tir.shared_axes import SharedAxes, shared_axes
from ..tuning.model_report import plan_words
from .candidates import make_candidates, seconds_alone
from .dataflow import Block, read_blocks
from .devices import device_of, find_target
from .fused_calls import FusedCall
from .marks import CONNECTED
from .rewrites import MARKS
from .rtask_fusion import in_dataflow, put
from .rtask_regions import plain
from .schedule import Function, Note, kernel_like

#: Most calls of a chain.
CALLS = 4
#: How much faster a chain must be predicted than its calls one by one: the model's error.
GAIN = 1.1
#: Least bytes between the calls, in those that they read and write beside: what connecting them saves, at most.
BETWEEN = 0.5
#: Times that a tensor that leaves the core's caches is moved: read before it is written, written, read.
PASSES = 3
#: Fewest elements of a block along the axis that is cut.
ROWS = 8


@dataclass(frozen=True)
class Chain:
    """Calls to be connected: their common kernel, and its predicted seconds.

    Parameters
    ----------
    calls : tuple of Call
    func : PrimFunc
        Scheduled; its parameters are the tensors `reads`, then the last call's result.
    """

    calls: tuple[Call, ...]
    func: Any
    reads: tuple[str, ...]
    seconds: float
    plan: str


class ConnectTiles:
    """Connects calls of a prepared module for a CPU; see the module.

    Parameters
    ----------
    target, device
        As of ``ScheduleWithRoller``.
    without : collection of str
        Functions that stay kernels of their own.

    Attributes
    ----------
    notes : list of Note
        What was connected.
    """

    def __init__(
        self, target: Any = None, device: DeviceSpec | str | None = None, without: Collection[str] = ()
    ) -> None:
        self.device, self.without = device_of(device, find_target(target)), without
        self.notes: list[Note] = []
        self._alone: dict[Any, float | None] = {}
        self._made: dict[Any, tuple[Any, float, str] | None] = {}

    def __call__(self, mod: Any) -> Any:
        """Return the module with chains of calls as one kernel each."""
        if self.device.kind != "cpu":
            return mod
        given, mod = mod, in_dataflow(mod)
        builder, blocks = relax.BlockBuilder(mod), list[tuple[Block, list[FusedCall]]]()
        known: dict[int, Any] = {}
        for block in read_blocks(mod):
            own = []
            for chain in self._chains(block):
                name = "connected_" + "_".join(call.function.removeprefix("fused_") for call in chain.calls)
                if key(chain.func) not in known:
                    known[key(chain.func)] = builder.add_func(chain.func, name)
                    told = str(known[key(chain.func)].name_hint)
                    self.notes.append(Note(told, "connected", chain.seconds * 1e6, plan=chain.plan))
                own.append(FusedCall(chain.calls, known[key(chain.func)], chain.reads, chain.calls[-1].writes))
            blocks.append((block, own))
        return put(builder.get(), blocks) if known else given

    def _chains(self, block: Block) -> Iterator[Chain]:
        """Yield the chains of a block, no two with a call in common."""
        readers: dict[str, list[Call | None]] = {}
        for bound in block.bounds:
            for tensor in set(bound.reads):
                readers.setdefault(tensor, []).append(bound.call)
        taken: set[str] = set()
        for bound in block.bounds:
            call, calls = bound.call, list[Call]()
            while call is not None and call.name not in taken and not call.effect and len(calls) < CALLS:
                if len(call.writes) > 1 or call.function in self.without:
                    break
                calls.append(call)
                if call.writes[0] in block.kept or len(readers.get(call.writes[0], ())) != 1:
                    break
                call = readers[call.writes[0]][0]
            for length in range(len(calls), 1, -1):  # the longest first: each that is connected saves its passing
                if (found := self._chain(calls[:length])) is not None:
                    taken.update(one.name for one in found.calls)
                    yield found
                    break

    def _chain(self, calls: Sequence[Call]) -> Chain | None:
        """Return calls as a chain if that is predicted to pay."""
        if any(len(call.writes) != 1 for call in calls):  # a split, whose parts others read
            return None
        passed = [call.writes[0] for call in calls[:-1]]
        if any(call.reads.count(t) != 1 for call, t in zip(calls[1:], passed, strict=True)):
            return None
        reads = tuple(dict.fromkeys(t for call in calls for t in call.reads if t not in passed))
        # Chains that differ in their tensors alone are one kernel.
        names = {t: n for n, t in enumerate([*passed, *reads, calls[-1].writes[0]])}
        tensors = tuple(tuple(str(names[t]) for t in call.tensors) for call in calls)
        asked = (tuple(Function(call.func) for call in calls), tensors)
        if asked not in self._made:
            try:
                self._made[asked] = self._best([call.func for call in calls], tensors, calls)
            except RollerError:  # a function of a form that is not planned, or whose schedule has no plain loops
                self._made[asked] = None
        made = self._made[asked]
        return None if made is None else Chain(tuple(calls), made[0], reads, made[1], made[2])

    def _best(self, funcs: list[Any], tensors: Any, calls: Sequence[Call]) -> tuple[Any, float, str] | None:
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
        apart = sum(map(self._seconds, calls))
        apart += sum(passing_seconds(sizes[name][0] / self.device.units, self.device) for name in passed)
        best: tuple[float, tuple[int, ...], list[Any]] | None = None
        core = part_of(self.device, self.device.units)
        for extents in self._blocks(shared, between):
            count = prod(whole // part for whole, part in zip(shared.extents, extents, strict=True))
            found = [make_candidates(func, core, 1) for func in shared.blocks(extents)]
            if not all(one.plans for one in found):
                continue
            own = sum(one.plans[0].ranked.seconds - SERIAL_LAUNCH for one in found)
            # All that lies between the calls of a block shares the cache.
            own += passing_seconds(between / count, self.device)
            seconds = -(-count // self.device.units) * own + self.device.launch_overhead_us * 1e-6
            if seconds * GAIN < apart and (best is None or seconds < best[0]):
                best = seconds, extents, found
        if best is None:
            return None
        seconds, extents, found = best
        applied = [next(one.schedules(), None) for one in found]
        if any(one is None for one in applied):  # no plan of a call could be applied: it is a kernel of its own
            return None
        parts = [plain(one[1].mod["main"]) for one in applied if one is not None]
        plan = f"blocks of {'x'.join(map(str, extents))}: "
        plan += "; ".join(plan_words(one.plans[0].ranked.plan) for one in found)
        return _together(shared, extents, tensors, parts), seconds, plan

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

    def _seconds(self, call: Call) -> float:
        """Return the predicted seconds of a call as a kernel of its own."""
        func = Function(call.func)
        if func not in self._alone:
            self._alone[func] = seconds_alone(call.func, self.device)
        return self._alone[func] or 0.0


def passing_seconds(size: float, device: DeviceSpec) -> float:
    """Return the seconds that a core takes to hand a tensor of its own on to its next kernel, beside both kernels.

    What fits its own caches costs nothing. Else it is written to the nearest memory that holds it, which reads each
    line before (write-allocate), and read again. Plans count such traffic as hidden behind arithmetic; of stores it is
    not (measured on an Intel server: scores of 8 x 1500 x 1500 and their softmax, 72 MB each, take 33.4 ms where the
    plans say 16.6 and this adds 13.5).

    Parameters
    ----------
    size : float
        Bytes a core.

    Examples
    --------
    >>> from roller_tvm.device import device_for_target
    >>> device = device_for_target("llvm -mcpu=haswell -num-cores=2")
    >>> passing_seconds(1000, device), passing_seconds(1e9, device) == 3e9 * 2 / device.far.bandwidth_gbps / 1e9
    (0.0, True)
    """
    for level in reversed(device.levels[:-1]):
        own = level.capacity_bytes / (device.units if level.scope == "device" else 1)
        if own * CACHE_SHARE >= size:
            if level.scope != "device":
                return 0.0
            return PASSES * size * device.units / level.bandwidth_gbps / 1e9
    return PASSES * size * device.units / device.far.bandwidth_gbps / 1e9


def _bytes(buffer: Any) -> int:
    return prod(number(e) or 0 for e in buffer.shape) * tvm.DataType(str(buffer.dtype)).itemsize


def _together(shared: SharedAxes, extents: Sequence[int], tensors: Any, parts: Sequence[Any]) -> Any:
    """Return one function of all blocks.

    Parameters
    ----------
    parts : sequence of PrimFunc
        The functions of one block, scheduled, without blocks of TensorIR.
    """
    counts = [whole // part for whole, part in zip(shared.extents, extents, strict=True)]
    passed, last = [names[-1] for names in tensors[:-1]], tensors[-1][-1]
    block = tirx.Var("block", "int64")
    at = digits(block, counts)
    starts = [digit * extent if extent > 1 else digit for digit, extent in zip(at, extents, strict=True)]
    given: dict[str, Any] = {}  # tensor -> the whole of it
    for axes, names in zip(shared.functions, tensors, strict=True):
        for buffer, name in zip(parameters(axes.func), names, strict=True):
            if name not in passed:
                given.setdefault(name, tirx.decl_buffer(list(buffer.shape), buffer.dtype, f"t{name}"))
    local: dict[str, Any] = {}
    bodies: list[Any] = []
    for axes, names, part in zip(shared.functions, tensors, parts, strict=True):
        part = renew_defs(part)
        moved: dict[int, tuple[Any, list[Any]]] = {}
        for buffer, own, name in zip(parameters(axes.func), parameters(part), names, strict=True):
            if name in passed:
                local.setdefault(name, tirx.decl_buffer(list(own.shape), own.dtype, f"between{name}"))
                moved[key(own)] = local[name], [0] * len(own.shape)
            else:
                at = axes.dims(buffer)
                moved[key(own)] = given[name], [0 if n is None or counts[n] == 1 else starts[n] for n in at]
        bodies.append(_moved(part.body, moved))
    body = tirx.SeqStmt([*(tirx.AllocBuffer(buffer) for buffer in local.values()), *_flat(bodies)])
    loop = tirx.For(block, tirx.const(0, "int64"), tirx.const(prod(counts), "int64"), tirx.ForKind.PARALLEL, body)
    order = list(dict.fromkeys(name for names in tensors for name in names if name not in passed and name != last))
    params = [*(given[name] for name in order), given[last]]
    return kernel_like(shared.functions[0].func, params, loop, {CONNECTED: True, MARKS["edge_vectors"]: True})


def _flat(bodies: Sequence[Any]) -> Iterator[Any]:
    for body in bodies:
        yield from body.seq if type(body).__name__ == "SeqStmt" else [body]


def _moved(body: Any, moved: dict[int, tuple[Any, list[Any]]]) -> Any:
    """Return loops of one block with whole tensors in the place of its parameters, and no loop in parallel."""

    def load(node: Any) -> Any:
        found = moved.get(key(node.source))
        return node if found is None else tirx.BufferLoad(found[0], _added(node.indices, found[1]))

    def store(node: Any) -> Any:
        found = moved.get(key(node.buffer))
        return node if found is None else tirx.BufferStore(found[0], node.value, _added(node.indices, found[1]))

    def serial(loop: Any) -> Any:
        if int(loop.kind) != tirx.ForKind.PARALLEL:
            return loop
        return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, loop.body)

    kinds = [(ir.TensorLoad, load), (tirx.BufferStore, store), (tirx.For, serial)]
    return tvm_ffi.structural_map(body, kinds, order="post")


def _added(indices: Any, starts: Sequence[Any]) -> list[Any]:
    return [
        index if isinstance(start, int) and start == 0 else start + _like(index)
        for index, start in zip(indices, starts, strict=True)
    ]


def _like(index: Any) -> Any:
    return index if str(index.ty.dtype) == "int64" else tirx.Cast("int64", index)

