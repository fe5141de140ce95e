"""Known numbers of CPUs before anything is detected or measured: `data/_cpu.toml`, checked and typed."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from roller_tvm.device.load import read_shipped
from roller_tvm.device.quantity import read_quantity

_FILE = "_cpu.toml"
_ESTIMATES = {
    "side_by_side_gain": "ratio",
    "clock": "frequency",
    "fma_per_cycle": "fma",
    "fma_latency": "cycles",
    "reorder_window": "instructions",
    "stores_per_cycle": "issue",
    "page": "size",
    "page_walk": "cycles",
    "l1_bandwidth": "loads",
    "l2_bandwidth": "bandwidth",
    "l3_bandwidth": "bandwidth",
    "dram_bandwidth": "bandwidth",
    "l1_latency": "cycles",
    "l2_latency": "cycles",
    "l3_latency": "cycles",
    "dram_latency": "time_ns",
    "launch_overhead": "time_us",
    "launch_software": "time_us",
    "l1_capacity": "size",
    "l2_capacity": "size",
    "memory": "size",
    "line": "size",
}
_SANITY = {
    "fma_per_cycle_max": "fma",
    "fma_per_cycle_min": "fma",
    "clock_min": "frequency",
    "clock_max": "frequency",
    "loads_per_cycle_max": "loads",
    "launch_max": "time_us",
}


@dataclass(frozen=True)
class Simd:
    """A SIMD instruction set: its registers, and LLVM's names for it."""

    name: str
    machine: str
    flags: frozenset[str]
    mattr: str
    mcpu: str
    cpus: frozenset[str]
    vector_bytes: int
    registers: int
    fma: bool


@functools.lru_cache(maxsize=1)
def _document() -> dict[str, Any]:
    return read_shipped("_cpu")


@functools.lru_cache(maxsize=1)
def simd_table() -> tuple[Simd, ...]:
    """Return the known SIMD instruction sets, the widest of each machine first."""
    rows = []
    for row in _document()["simd"]:
        where = f"{_FILE}: {row['name']}"
        vector = read_quantity(row["vector"], where, True).canonical("size", where, 1.0, 1)
        registers = read_quantity(row["registers"], where, True).canonical("registers", where, 1.0, 1)
        rows.append(
            Simd(
                row["name"],
                row["machine"],
                frozenset(row["flags"]),
                row["mattr"],
                row["mcpu"],
                frozenset(row["cpus"]),
                int(vector),
                int(registers),
                row["fma"],
            )
        )
    return tuple(rows)


def simd_named(name: str) -> Simd | None:
    """Return the instruction set of that name; None if it is unknown."""
    return next((s for s in simd_table() if s.name == name), None)


def register_file_bytes() -> int:
    """Return the bytes of all vector registers of the widest instruction set: the limit for a CPU's register tile.

    Examples
    --------
    >>> register_file_bytes()
    2048
    """
    return max(s.vector_bytes * s.registers for s in simd_table())


def simd_of_mcpu(mcpu: str) -> Simd | None:
    """Return the widest instruction set that LLVM uses for this -mcpu; None for a CPU that is not listed."""
    return next((s for s in simd_table() if mcpu == s.mcpu or mcpu in s.cpus), None)


@functools.lru_cache(maxsize=64)
def estimate(key: str, clock_ghz: float = 1.0) -> float:
    """Return the assumed value of `key` if nothing can be measured; per-clock numbers are given at `clock_ghz`.

    Examples
    --------
    >>> estimate("l2_bandwidth", clock_ghz=2.0)  # GB/s of one core
    64.0
    """
    where = f"{_FILE}: estimate.{key}"
    quantity = read_quantity(_document()["estimate"][key], where, True)
    return float(quantity.canonical(_ESTIMATES[key], where, clock_ghz, 1))


@functools.lru_cache(maxsize=64)
def sanity(key: str) -> float:
    """Return a bound that no plausible measurement crosses."""
    where = f"{_FILE}: sanity.{key}"
    quantity = read_quantity(_document()["sanity"][key], where, True)
    return float(quantity.canonical(_SANITY[key], where, 1.0, 1))
