"""Memory that a plan keeps alive: the outputs of all its operators, at once, until its kernel ends.

One by one, a buffer is free again after its last reader; in a fused kernel it is not. The rule: with the plan, the
whole program's worst moment may need the bytes of the one-by-one program plus the device's last-level cache. Buffers
beyond the cache go to memory and back whether operators are fused or not; those within it are small compared to the
memory. The plan may never need more than the device has, unless the operators one by one need more already.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from ..device import DeviceSpec
from .partition import topological
from .roperator import DataFlowGraph


@dataclass(frozen=True)
class MemoryRule:
    """Limit on the bytes of intermediate buffers that may be alive at a time.

    Parameters
    ----------
    peak_bytes : int
        Most bytes alive at a time if the operators run one by one, in the graph's order.
    cache : str
        Name of the level next to the device's memory.
    cache_bytes, device_bytes : int
        Capacity of that level, and of the device's memory without the part that others use.

    Examples
    --------
    >>> MemoryRule(3 << 20, "l2", 6 << 20, 16 << 30).limit_bytes >> 20
    9
    """

    peak_bytes: int
    cache: str
    cache_bytes: int
    device_bytes: int

    @classmethod
    def of(
        cls, graph: DataFlowGraph, device: DeviceSpec, kept: Collection[str] = (), resident_bytes: int = 0
    ) -> MemoryRule:
        """Return the rule for a graph on a device; see ``plan_graph`` for `kept` and `resident_bytes`."""
        cache = device.levels[1]
        shared = cache.capacity_bytes if cache.scope == "device" else cache.capacity_bytes * device.units
        peak = peak_bytes(graph, [(name,) for name in in_order(graph)], kept)
        return cls(peak, cache.name, shared, max(0, device.far.capacity_bytes - resident_bytes))

    @property
    def limit_bytes(self) -> int:
        return max(self.peak_bytes, min(self.device_bytes, self.peak_bytes + self.cache_bytes))

    def __str__(self) -> str:
        return (f"{size(self.limit_bytes)} at most: {size(self.peak_bytes)} one by one, and beside that the "
                f"{size(self.cache_bytes)} of {self.cache}; the device has {size(self.device_bytes)}")


@dataclass
class Live:
    """Bytes alive while plans are made one after the other.

    Examples
    --------
    >>> from roller_tvm.rammer import Phase, RKernel, ROperator
    >>> k = (RKernel("k", (Phase(1, 1e-6, 1e-6),), 1e-6),)
    >>> graph = DataFlowGraph((ROperator("a", k, buffer_bytes=8), ROperator("b", k, ("a",), 4)))
    >>> live = Live(graph)
    >>> live.with_(["a"]), live.with_(["a", "b"])
    (8, 12)
    >>> live.add(["a", "b"])
    >>> live.close()
    >>> live.before
    4
    """

    graph: DataFlowGraph
    kept: frozenset[str] = frozenset()
    before: int = 0  # of earlier plans, still to be read
    written: int = 0  # by the plan that is open
    _open: list[str] = field(default_factory=list)
    _left: dict[str, int] = field(default_factory=dict)  # readers that have not run

    def __post_init__(self) -> None:
        self.kept = frozenset(self.kept)
        self._left = {name: len(readers) for name, readers in self.graph.consumers.items()}

    def with_(self, names: Iterable[str]) -> int:
        """Return the bytes alive if these operators joined the open plan."""
        return self.before + self.written + sum(self.graph.by_name[n].buffer_bytes for n in names)

    def alone(self, names: Iterable[str]) -> int:
        """Return the most bytes alive at a time if these operators began a plan."""
        return self.with_(names) - self._freed()

    def _freed(self) -> int:
        """Return the bytes, of those alive now, that nobody reads after the open plan."""
        left: dict[str, int] = {}
        for name in self._open:
            for producer in {e.producer for e in self.graph.by_name[name].inputs}:
                left[producer] = left.get(producer, self._left[producer]) - 1
        return sum(self._bytes(p) for p, count in left.items() if not count)

    def _bytes(self, name: str) -> int:
        """Return the bytes freed after an operator's last reader has run: 0 for results and kept tensors."""
        return 0 if name in self.kept else self.graph.by_name[name].buffer_bytes

    def add(self, names: Iterable[str]) -> None:
        """Add operators to the open plan."""
        for name in names:
            self._open.append(name)
            self.written += self.graph.by_name[name].buffer_bytes

    def close(self) -> None:
        """End the open plan: it has run."""
        self.before += self.written - self._freed()
        for name in self._open:
            for producer in {e.producer for e in self.graph.by_name[name].inputs}:
                self._left[producer] -= 1
        self.written = 0
        self._open.clear()


def peak_bytes(graph: DataFlowGraph, groups: Iterable[Sequence[str]], kept: Collection[str] = ()) -> int:
    """Return the most bytes alive at a time if groups of operators run one after the other, each as one kernel.

    Parameters
    ----------
    kept : collection of str
        Operators whose results are read outside of the graph too.
    """
    live, worst = Live(graph, frozenset(kept)), 0
    for group in groups:
        live.add(group)
        worst = max(worst, live.before + live.written)
        live.close()
    return worst


def in_order(graph: DataFlowGraph) -> tuple[str, ...]:
    """Return the graph's operators, each after those it reads from; in the given order if that is one."""
    names = [o.name for o in graph.operators]
    place = {name: n for n, name in enumerate(names)}
    before = [{place[e.producer] for e in o.inputs} for o in graph.operators]
    return tuple(names[n] for n in topological(before))


def size(count: int) -> str:
    """Return bytes as text.

    Examples
    --------
    >>> size(512), size(6 << 20), size(1536)
    ('512 B', '6.0 MiB', '1.5 KiB')
    """
    for unit, step in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= step:
            return f"{count / step:.1f} {unit}"
    return f"{count} B"
