"""A level of the memory hierarchy, and the limits on concurrency: each field with its dimension in spec files."""

from __future__ import annotations

import math
import re
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from roller_tvm.device.frozen import check, is_int, positive

SCOPES = ("device", "unit", "thread")


def _number(dimension: str, default: Any = MISSING, key: str = "") -> Any:
    """Return a dataclass field that spec files give as a quantity of `dimension` (`quantity.UNITS`)."""
    return field(default=default, metadata={"dimension": dimension, "key": key})


def _limit(dimension: str) -> Any:
    """Return the field of a limit; None if it does not apply to the device or is unknown."""
    return _number(dimension, None)


@dataclass(frozen=True)
class MemoryLevel:
    """One level of the memory hierarchy."""

    #: 'dram', 'l2', 'shared', 'register' on GPUs; 'dram', 'l3', 'l2', 'l1', 'register' on CPUs.
    name: str
    #: Sharer of one instance: the 'device', a 'unit' (SM, core, tile), or a 'thread'.
    scope: str
    #: Bytes of one instance.
    capacity_bytes: int = _number("size")
    #: Read bandwidth in GB/s (1e9), all instances of the device together.
    bandwidth_gbps: float = _number("bandwidth")
    #: Bytes of the smallest transfer, and of the line that it is a part of.
    transaction_bytes: int = _number("size")
    line_bytes: int = _number("size")
    #: Number of banks, and bytes of one bank's width; 0 if the level is not banked.
    banks: int = _number("banks", 0)
    bank_bytes: int = _number("size", 0, "bank_width")
    #: Nanoseconds of one dependent load; 0 if unknown.
    latency_ns: float = _number("time_ns", 0.0)

    def __post_init__(self) -> None:
        at = f"level {self.name!r}"
        check(bool(self.name), "a memory level needs a name", "levels")
        check(self.scope in SCOPES, f"scope {self.scope!r} is not one of {', '.join(SCOPES)}", f"{at}.scope")
        for key in ("capacity_bytes", "transaction_bytes", "line_bytes"):
            value = getattr(self, key)
            check(is_int(value) and value > 0, f"{key} must be a whole number above 0, not {value!r}", at)
        check(positive(self.bandwidth_gbps), f"bandwidth must be above 0, not {self.bandwidth_gbps!r}", at)
        split = f"a transaction of {self.transaction_bytes} B does not divide the line of {self.line_bytes} B"
        check(self.line_bytes % self.transaction_bytes == 0, split, at, "make the line a multiple of the transaction")
        for key in ("banks", "bank_bytes"):
            value = getattr(self, key)
            check(is_int(value) and value >= 0, f"{key} must be a whole number from 0, not {value!r}", at)
        half = f"{self.banks} banks of {self.bank_bytes} B: give both, or 0 for both (not banked)"
        check((self.banks == 0) == (self.bank_bytes == 0), half, at)
        known = math.isfinite(self.latency_ns) and self.latency_ns >= 0
        check(known, f"latency must be 0 or more, not {self.latency_ns!r}", at)

    def transaction_elements(self, element_bytes: int) -> int:
        """Return the number of elements in one transaction, at least 1."""
        return max(1, self.transaction_bytes // element_bytes)

    def instances(self, units: int) -> int:
        """Return the number of instances on a device of `units` units; thread scope counts one per unit."""
        return 1 if self.scope == "device" else units


@dataclass(frozen=True)
class Limits:
    """Limits on concurrency, and related costs; None if a value does not apply to the device or is unknown."""

    # Threads, registers and shared memory of a GPU's units and blocks.
    max_threads_per_block: int | None = _limit("threads")
    max_threads_per_unit: int | None = _limit("threads")
    max_blocks_per_unit: int | None = _limit("blocks")
    registers_per_unit: int | None = _limit("registers")  # of 32 bits, as in the next three
    max_registers_per_block: int | None = _limit("registers")
    max_registers_per_thread: int | None = _limit("registers")
    register_granularity: int | None = _limit("registers")  # a warp's are allocated in multiples of this
    schedulers_per_unit: int | None = _limit("schedulers")
    shared_per_block_bytes: int | None = _limit("size")  # by default
    shared_per_block_optin_bytes: int | None = _limit("size")  # if a kernel opts in to more
    shared_reserved_bytes: int | None = _limit("size")  # of the unit, which each block costs in addition
    shared_granularity_bytes: int | None = _limit("size")  # shared memory is allocated in multiples of this
    #: Vector registers of a CPU core.
    vector_registers: int | None = _limit("registers")
    #: Vector registers that compiled code needs at a time for values broadcast to several vectors (CPU). None: it may
    #: hold all such values of a register tile at once.
    broadcast_registers: int | None = _limit("registers")
    #: Elements computed at a time in a vector over the edge of an axis (CPU): 1 if TVM alone builds kernels, None if
    #: Roller does, which checks whole tiles (``EdgeVectors``).
    lanes_checked: int | None = _limit("lanes")
    #: Cycles until a multiply-add's result can be used.
    fma_latency_cycles: float | None = _limit("cycles")
    #: Vector (or warp) multiply-adds of a unit per cycle.
    fma_per_cycle: float | None = _limit("fma")
    #: Instructions that a core begins per cycle.
    dispatch_per_cycle: float | None = _limit("issue")
    #: Share of the time in which another machine's thread on the core begins half of them; None if there is none.
    dispatch_shared: float | None = _limit("ratio")
    #: Instructions that a core begins before the oldest of them is done; independent work after a chain of dependent
    #: sums starts within this window.
    reorder_window: int | None = _limit("instructions")
    #: Vector stores of a core per cycle.
    stores_per_cycle: float | None = _limit("issue")
    #: Bytes covered by one entry of the TLB.
    page_bytes: int | None = _limit("size")
    #: Cycles of reading from another page at each step, beyond the caches'.
    page_walk_cycles: float | None = _limit("cycles")
    # Associativity of a CPU's caches.
    l1_ways: int | None = _limit("ways")
    l2_ways: int | None = _limit("ways")
    l3_ways: int | None = _limit("ways")
    #: Most registers per thread if kernels are compiled for the largest block, whatever block is launched (GPU).
    compiled_registers: int | None = _limit("registers")
    #: Bytes of the per-unit cache for spilled registers (GPU).
    local_cache_bytes: int | None = _limit("size")
    #: Bytes of the per-unit cache for global loads; None if loads bypass it (GPU).
    global_cache_bytes: int | None = _limit("size")
    #: Warp instructions that a unit issues per cycle; None for one per scheduler.
    issue_per_cycle: float | None = _limit("issue")
    #: Nanoseconds between the starts of two blocks on the whole device, however many units wait; None if blocks start
    #: as fast as units take them.
    block_interval_ns: float | None = _limit("time_ns")

    def __post_init__(self) -> None:
        for f in fields(self):
            value, at = getattr(self, f.name), f"limits.{f.name}"
            if value is None:
                continue
            zero_ok = f.name == "shared_reserved_bytes" and value == 0
            check(positive(value) or zero_ok, f"{f.name} must be above 0, not {value!r}", at)
            if "float" not in str(f.type):
                check(is_int(value), f"{f.name} must be a whole number, not {value!r}", at)
        default, optin = self.shared_per_block_bytes, self.shared_per_block_optin_bytes
        if default is not None and optin is not None:
            below = f"the opt-in limit {optin} B is below the default limit {default} B"
            check(optin >= default, below, "limits.shared_per_block_optin_bytes")

    @property
    def most_threads(self) -> int:
        """Threads of the largest block: 1024, as CUDA's, if the device names no limit."""
        return self.max_threads_per_block or 1024


@dataclass(frozen=True)
class FileNumber:
    """A number of a spec file: the field it gives, and the dimension of its unit."""

    field: str
    dimension: str
    optional: bool


def file_numbers(table: type) -> dict[str, FileNumber]:
    """Return the numbers of a table of spec files by key: the field's name without its unit.

    Examples
    --------
    >>> list(file_numbers(MemoryLevel))
    ['capacity', 'bandwidth', 'transaction', 'line', 'banks', 'bank_width', 'latency']
    """
    return {
        f.metadata["key"] or re.sub(r"_(bytes|gbps|cycles|ns)$", "", f.name):
            FileNumber(f.name, f.metadata["dimension"], f.default is not MISSING)
        for f in fields(table) if f.metadata
    }  # fmt: skip


#: Keys of the tables [level.NAME] and [limits].
LEVEL, LIMITS = file_numbers(MemoryLevel), file_numbers(Limits)
