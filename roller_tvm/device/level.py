"""A level of the memory hierarchy, and the limits on what runs at a time."""

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
        Who shares one instance: the 'device', a 'unit' (SM, core, tile), or a 'thread'.
    capacity_bytes : int
        Of one instance.
    bandwidth_gbps : float
        Read bandwidth in GB/s (1e9), all instances of the device together.
    transaction_bytes, line_bytes : int
        Smallest transfer, and the line that it is a part of.
    banks, bank_bytes : int
        0 banks: the level is not banked.
    latency_ns : float
        Of one dependent load.
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
        """Elements in one transaction, at least 1."""
        return max(1, self.transaction_bytes // element_bytes)

    def instances(self, units: int) -> int:
        """How many of this level a device of `units` units has, counting one a unit for thread scope."""
        return 1 if self.scope == "device" else units


@dataclass(frozen=True)
class Limits:
    """Limits on what runs at a time; None where the word means nothing on the device.

    `shared_per_block_bytes` is the default limit, `shared_per_block_optin_bytes` what a kernel may ask for.
    A block also costs `shared_reserved_bytes` of its unit; allocations round up to `shared_granularity_bytes`
    for shared memory and, for registers, to `register_granularity` registers a warp.

    `reorder_window` is how many instructions a core begins before the oldest of them is done: what follows a chain of
    sums that wait for one another is begun while they do. `page_bytes` are what one entry of the table of addresses
    covers, `page_walk_cycles` what reading from another page at each step costs beyond the caches.

    `broadcast_registers` is a fact of the code generator beside a CPU: the vector registers that it needs at a time for
    values broadcast to several vectors; unknown, it may hold every value of a register tile that long.

    `lanes_checked` is another: where a vector may stand over the edge of an axis, how many of its elements are computed
    at a time. 1 where TVM alone builds kernels; None where Roller does, which checks tiles instead (``EdgeVectors``).

    `compiled_registers` is one beside a GPU: the registers that a thread gets at most where kernels are compiled for
    the largest block, whatever they are launched with.

    `local_cache_bytes` is the cache of a GPU's unit that holds spilled registers, `global_cache_bytes` that which holds
    what it loads; None where loads pass it by. `issue_per_cycle` are the instructions of whole warps that a unit issues
    a cycle, where that is not one for each scheduler. `block_interval_ns` passes from the start of one block to that of
    the next on the whole device, however many units wait for one; unknown, blocks start as fast as units take them.
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
