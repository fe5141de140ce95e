"""vDevice: the device as parallel virtual execution units (Rammer, section 3.2)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ..device import DeviceSpec
from ..device.arch import launch_cost
from ..errors import BadInput
from ..micro_perf.occupancy import occupancy
from .roperator import Phase, RKernel

#: Ways to launch kernels: one by one into a stream, or as nodes of a CUDA graph.
LAUNCHES = ("stream", "graph")


@dataclass(frozen=True)
class Costs:
    """Times of a device that a fused plan saves or spends.

    Parameters
    ----------
    signal_seconds : float
        Time from the end of an rTask until others on the device can know.
    poll_seconds : float
        Time of a barrier whose rTasks ended long ago.
    """

    launch_seconds: float
    signal_seconds: float
    poll_seconds: float

    @classmethod
    def of(cls, device: DeviceSpec, launch: str = "stream") -> Costs:
        """Return the costs from the spec, and from measurements on its architecture.

        A step counter is written to, and read from, the memory that units share. Round trips to it: one until an
        rTask's results are acknowledged, half of one for the step, half for a poll just before it; then the poll
        that sees it, and the fence against stale reads. If whole barriers were measured on the architecture and
        took longer, the difference counts as the signal's.

        Examples
        --------
        >>> from roller_tvm.device import load_device
        >>> costs = Costs.of(load_device("v100"))
        >>> costs.launch_seconds, round((costs.signal_seconds + costs.poll_seconds) * 1e6, 2)
        (2.6e-06, 1.33)
        """
        if launch not in LAUNCHES:
            raise ValueError(f"launch must be one of {', '.join(LAUNCHES)} (got {launch!r})")
        if device.kind == "cpu":  # to wait is to leave one parallel region and open another
            return cls(device.launch_overhead_us * 1e-6, device.launch_overhead_us * 1e-6, 0.0)
        shared = device.level("l2") if device.has("l2") else device.far
        unit = device.level("shared") if device.has("shared") else device.near
        trips = 2 * shared.latency_ns * 1e-9 + unit.latency_ns * 1e-9
        measured = launch_cost("barrier", device.arch)
        return cls(launch_seconds(device, launch), max(trips, (measured or 0.0) * 1e-6 - trips), trips)


def launch_seconds(device: DeviceSpec, launch: str) -> float:
    """Return the seconds to start a kernel, from a stream or, if the architecture has graphs, as a node of a graph.

    Examples
    --------
    >>> from roller_tvm.device import load_device
    >>> h200 = load_device("h200")
    >>> [round(launch_seconds(h200, launch) * 1e6, 2) for launch in LAUNCHES]
    [2.5, 1.26]
    """
    stream = device.launch_overhead_us
    node = launch_cost("graph", device.arch) if launch == "graph" else None
    return min(stream, node if node is not None else stream) * 1e-6


@dataclass(frozen=True)
class VDevice:
    """`units` x `per_unit` vEUs, each a block of `threads` that stays on its unit and runs rTask after rTask.

    Parameters
    ----------
    units : int
        Number of units; vEU number v is on unit v modulo this.
    threads, registers, shared_bytes : int
        Resources of a vEU: the most that any of its rTasks takes.
    limit : str
        Resource that prevents more vEUs on a unit.
    regions : bool
        True if rTasks wait only through the end of one parallel region and the launch of the next, as on a CPU with its
        worker threads of one vEU each.
    """

    name: str
    units: int
    per_unit: int
    threads: int
    registers: int
    shared_bytes: int
    limit: str
    costs: Costs
    regions: bool = False

    def __post_init__(self) -> None:
        if self.units < 1 or self.per_unit < 1:
            raise ValueError(f"a vDevice needs units and vEUs (got {self.units} x {self.per_unit})")

    @classmethod
    def of(
        cls, device: DeviceSpec, kernels: Iterable[RKernel], launch: str = "stream", before: VDevice | None = None
    ) -> VDevice:
        """Return the vDevice on which all of these rKernels fit, with as many vEUs as are resident at a time.

        All that fits on `before` fits on it too.

        Raises
        ------
        BadInput
            If an rKernel does not fit on a unit; names it and the limit.
        """
        if device.kind == "cpu":
            return cls(device.name, device.units, 1, 1, 0, 0, "", Costs.of(device, launch), True)
        phases = [(k.name, p) for k in kernels for p in k.phases]
        for name, phase in phases:
            _fits(device, name, phase)
        threads = max([p.threads for _, p in phases] + [before.threads if before else device.vector_width])
        registers = max([p.registers for _, p in phases] + [before.registers if before else 0])
        shared = max([p.shared_bytes for _, p in phases] + [before.shared_bytes if before else 0])
        resident, limit = occupancy(device, threads, registers, shared)
        if not resident:
            raise BadInput(f"vEUs of {threads} threads, {registers} registers a thread and {shared} B of shared memory "
                           f"do not fit on a unit ({limit})", where=f"fused plan on {device.name}",
                           remedy="put rKernels with many threads and those with many registers in different plans")
        return cls(device.name, device.units, resident, threads, registers, shared, limit, Costs.of(device, launch))

    @property
    def veus(self) -> int:
        return self.units * self.per_unit

    def unit(self, veu: int) -> int:
        return veu % self.units

    def __str__(self) -> str:
        if self.regions:
            return f"{self.name}: {self.units} worker threads"
        limit = f", limited by {self.limit}" if self.limit else ""
        return (f"{self.name}: {self.units} units x {self.per_unit} vEUs of {self.threads} threads, {self.registers} "
                f"registers, {self.shared_bytes} B shared{limit}")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> VDevice:
        return cls(**{**data, "costs": Costs(**data["costs"])})


def _fits(device: DeviceSpec, name: str, phase: Phase) -> None:
    limits = device.limits
    bounds = (
        (phase.threads, limits.max_threads_per_block, "threads"),
        (phase.shared_bytes, limits.shared_per_block_optin_bytes or limits.shared_per_block_bytes,
         "bytes of shared memory"),
        (phase.registers, limits.max_registers_per_thread, "registers a thread"),
    )
    for needed, limit, what in bounds:
        if limit is not None and needed > limit:
            raise BadInput(f"an rTask needs {needed} {what}, a block of {device.name} has {limit} at most",
                           where=f"rKernel '{name}'", remedy="give the operator an rKernel that fits the device")
