"""A level of the memory hierarchy, and the limits on concurrency."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from roller_tvm.device.frozen import check, is_int, positive

SCOPES = ("device", "unit", "thread")


@dataclass(frozen=True)
class MemoryLevel:
    """One level of the memory hierarchy.

    Attributes
    ----------
    name : str
        'dram', 'l2', 'shared', 'register' on GPUs; 'dram', 'l3', 'l2', 'l1', 'register' on CPUs.
    scope : str
        Sharer of one instance: the 'device', a 'unit' (SM, core, tile), or a 'thread'.
    capacity_bytes : int
        Capacity of one instance.
    bandwidth_gbps : float
        Read bandwidth in GB/s (1e9), all instances of the device together.
    transaction_bytes, line_bytes : int
        Smallest transfer, and the line that it is a part of.
    banks, bank_bytes : int
        Number of banks and their width; 0 if the level is not banked.
    latency_ns : float
        Latency of one dependent load; 0 if unknown.
    """

    name: str
    scope: str
    capacity_bytes: int
    bandwidth_gbps: float
    transaction_bytes: int
    line_bytes: int
    banks: int = 0
    bank_bytes: int = 0
    latency_ns: float = 0.0

    def __post_init__(self) -> None:
        at = f"level {self.name!r}"
        check(bool(self.name), "a memory level needs a name", "levels")
        check(self.scope in SCOPES, f"scope {self.scope!r} is not one of {', '.join(SCOPES)}", f"{at}.scope")
        for key in ("capacity_bytes", "transaction_bytes", "line_bytes"):
            value = getattr(self, key)
            check(is_int(value) and value > 0, f"{key} must be a whole number above 0, not {value!r}", at)
        check(positive(self.bandwidth_gbps), f"bandwidth must be above 0, not {self.bandwidth_gbps!r}", at)
        check(
            self.line_bytes % self.transaction_bytes == 0,
            f"a transaction of {self.transaction_bytes} B does not divide the line of {self.line_bytes} B",
            at,
            "make the line a multiple of the transaction",
        )
        for key in ("banks", "bank_bytes"):
            value = getattr(self, key)
            check(is_int(value) and value >= 0, f"{key} must be a whole number from 0, not {value!r}", at)
        check(
            (self.banks == 0) == (self.bank_bytes == 0),
            f"{self.banks} banks of {self.bank_bytes} B: give both, or 0 for both (not banked)",
            at,
        )
        check(
            math.isfinite(self.latency_ns) and self.latency_ns >= 0,
            f"latency must be 0 or more, not {self.latency_ns!r}",
            at,
        )

    def transaction_elements(self, element_bytes: int) -> int:
        """Return the number of elements in one transaction, at least 1."""
        return max(1, self.transaction_bytes // element_bytes)

    def instances(self, units: int) -> int:
        """Return the number of instances on a device of `units` units; thread scope counts one per unit."""
        return 1 if self.scope == "device" else units


@dataclass(frozen=True)
class Limits:
    """Limits on concurrency, and related costs; None if a value does not apply to the device or is unknown.

    Attributes
    ----------
    max_threads_per_block, max_threads_per_unit, max_blocks_per_unit : int
    registers_per_unit, max_registers_per_block, max_registers_per_thread : int
        32-bit registers.
    register_granularity : int
        Registers of a warp are allocated in multiples of this.
    schedulers_per_unit : int
    shared_per_block_bytes, shared_per_block_optin_bytes : int
        Shared memory per block: default limit, and the limit that a kernel can opt in to.
    shared_reserved_bytes : int
        Shared memory of the unit that each block costs in addition.
    shared_granularity_bytes : int
        Shared memory is allocated in multiples of this.
    vector_registers : int
        Vector registers of a CPU core.
    broadcast_registers : int
        Vector registers that compiled code needs at a time for values broadcast to several vectors (CPU). None: it may
        hold all such values of a register tile at once.
    lanes_checked : int
        Elements computed at a time in a vector over the edge of an axis (CPU): 1 if TVM alone builds kernels, None if
        Roller does, which checks whole tiles (``EdgeVectors``).
    fma_latency_cycles : float
    fma_per_cycle : float
        Vector (or warp) multiply-adds of a unit per cycle.
    reorder_window : int
        Instructions that a core begins before the oldest of them is done; independent work after a chain of dependent
        sums starts within this window.
    stores_per_cycle : float
    page_bytes : int
        Bytes covered by one entry of the TLB.
    page_walk_cycles : float
        Cost of reading from another page at each step, beyond the caches'.
    l1_ways, l2_ways, l3_ways : int
        Associativity of the caches.
    compiled_registers : int
        Most registers per thread if kernels are compiled for the largest block, whatever block is launched (GPU).
    local_cache_bytes : int
        Per-unit cache for spilled registers (GPU).
    global_cache_bytes : int
        Per-unit cache for global loads; None if loads bypass it (GPU).
    issue_per_cycle : float
        Warp instructions that a unit issues per cycle; None for one per scheduler.
    block_interval_ns : float
        Time between the starts of two blocks on the whole device, however many units wait; None if blocks start as fast
        as units take them.
    """

    max_threads_per_block: int | None = None
    max_threads_per_unit: int | None = None
    max_blocks_per_unit: int | None = None
    registers_per_unit: int | None = None
    max_registers_per_block: int | None = None
    max_registers_per_thread: int | None = None
    register_granularity: int | None = None
    schedulers_per_unit: int | None = None
    shared_per_block_bytes: int | None = None
    shared_per_block_optin_bytes: int | None = None
    shared_reserved_bytes: int | None = None
    shared_granularity_bytes: int | None = None
    vector_registers: int | None = None
    broadcast_registers: int | None = None
    lanes_checked: int | None = None
    fma_latency_cycles: float | None = None
    fma_per_cycle: float | None = None
    reorder_window: int | None = None
    stores_per_cycle: float | None = None
    page_bytes: int | None = None
    page_walk_cycles: float | None = None
    l1_ways: int | None = None
    l2_ways: int | None = None
    l3_ways: int | None = None
    compiled_registers: int | None = None
    local_cache_bytes: int | None = None
    global_cache_bytes: int | None = None
    issue_per_cycle: float | None = None
    block_interval_ns: float | None = None

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if value is None:
                continue
            zero_ok = f.name == "shared_reserved_bytes"
            check(
                positive(value) or (zero_ok and value == 0),
                f"{f.name} must be above 0, not {value!r}",
                f"limits.{f.name}",
            )
            if "float" not in str(f.type):
                check(is_int(value), f"{f.name} must be a whole number, not {value!r}", f"limits.{f.name}")
        default, optin = self.shared_per_block_bytes, self.shared_per_block_optin_bytes
        if default is not None and optin is not None:
            check(
                optin >= default,
                f"the opt-in limit {optin} B is below the default limit {default} B",
                "limits.shared_per_block_optin_bytes",
            )
