"""Rates of one core of a CPU, per clock cycle, from the device's levels and limits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from ..device import DeviceSpec
from ..device.known import estimate
from .cpu_constants import CACHE_SHARE, PORTS
from .geometry import Geometry


@dataclass(frozen=True)
class CpuRates:
    """Numbers of one core, per clock cycle."""

    cycle: float  # seconds
    lanes: int  # elements of a vector register
    fma: float  # vector multiply-adds
    latency: float  # of a multiply-add
    loads: float  # vector loads
    registers: int
    line: int
    caches: tuple[
        tuple[str, float, float], ...
    ]  # near to far: name, bytes a core can count on, bytes per cycle into the level before
    far: float  # bytes per cycle and core from memory
    ways: int  # of the nearest cache
    way_bytes: int
    stores: float  # vector stores
    page_bytes: int
    page_walk: float  # cycles of one more page that the inner loop reads from
    broadcasts: int | None = None  # registers that broadcast values take at a time
    window: int = 0  # instructions begun before the oldest is done
    dispatch: float | None = None  # instructions begun
    shared: float = 0.0  # share of the time in which another thread begins half of them
    scheduler: float = 0.0  # instructions that wait for operands
    fill_buffers: float = 0.0  # lines on their way into the nearest cache
    edge_vectors: bool = True  # of vectors over an edge, all but the last tile's are whole
    ports: float = 4.0  # see `cpu_constants.PORTS`

    @classmethod
    def of(cls, device: DeviceSpec, geometry: Geometry) -> CpuRates:
        """Return the rates for a nest; the widest dtype along its vector axis sets the lanes of a register."""
        return of_bytes(device, geometry.widest_bytes)


@lru_cache(maxsize=16)
def of_bytes(device: DeviceSpec, element_bytes: int) -> CpuRates:
    """Return the rates for vectors of elements of a size."""
    hertz = device.clock_ghz * 1e9
    per_core = 1e9 / hertz / device.units
    caches = []
    for level in reversed(device.levels[1:-1]):
        share = level.capacity_bytes / (device.units if level.scope == "device" else 1)
        caches.append((level.name, share * CACHE_SHARE, level.bandwidth_gbps * per_core))
    nearest = caches[0][2]
    first = device.levels[-2]
    held = first.capacity_bytes // (device.units if first.scope == "device" else 1)
    page = device.limits.page_bytes or int(estimate("page"))
    # Caches that are looked up while the address is still being translated have ways of a page.
    ways = device.limits.l1_ways or max(1, held // page)
    return CpuRates(
        1 / hertz, device.vector_bytes // element_bytes, device.limits.fma_per_cycle or estimate("fma_per_cycle"),
        device.limits.fma_latency_cycles or estimate("fma_latency"), nearest / device.vector_bytes,
        device.limits.vector_registers or 16,
        device.far.line_bytes, tuple(caches), device.far.bandwidth_gbps * per_core, ways, held // ways,
        device.limits.stores_per_cycle or estimate("stores_per_cycle"), page,
        device.limits.page_walk_cycles or estimate("page_walk"), device.limits.broadcast_registers,
        device.limits.reorder_window or 0, device.limits.dispatch_per_cycle,
        device.limits.dispatch_shared or 0.0, estimate("scheduler"), estimate("in_flight") / device.far.line_bytes,
        device.limits.lanes_checked is None, PORTS.get(device.vector_bytes, max(PORTS.values())),
    )  # fmt: skip
