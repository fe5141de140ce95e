"""Numbers known before anything is detected or measured: `data/_cpu.toml` and `data/_cuda.toml`, checked and typed."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from roller_tvm.device.files import read_shipped
from roller_tvm.device.quantity import read_quantity

#: File -> table -> key -> dimension of its unit.
DIMENSIONS = {
    "_cpu": {"estimate": {
        "least_gain": "ratio", "clock": "frequency", "fma_per_cycle": "fma", "fma_latency": "cycles",
        "dispatch": "issue", "dispatch_shared": "ratio", "reorder_window": "instructions", "stores_per_cycle": "issue",
        "page": "size", "page_walk": "cycles",
        "l1_bandwidth": "loads", "l2_bandwidth": "bandwidth", "l3_bandwidth": "bandwidth",
        "dram_bandwidth": "bandwidth", "l1_latency": "cycles", "l2_latency": "cycles", "l3_latency": "cycles",
        "dram_latency": "time_ns", "launch_overhead": "time_us", "launch_software": "time_us",
        "l1_capacity": "size", "l2_capacity": "size", "l2_largest": "size", "memory": "size", "line": "size",
        "prefetch_distance": "size", "scheduler": "instructions", "in_flight": "size",
    }, "sanity": {
        "fma_per_cycle_max": "fma", "fma_per_cycle_min": "fma", "clock_min": "frequency", "clock_max": "frequency",
        "loads_per_cycle_max": "loads", "launch_max": "time_us", "dispatch_max": "issue",
    }},
    "_cuda": {"sanity": {
        "clock_share_min": "ratio", "clock_share_max": "ratio", "fma_lanes_min": "fma", "fma_lanes_max": "fma",
        "fma_latency_min": "cycles", "fma_latency_max": "cycles", "memory_share_min": "ratio",
        "memory_share_max": "ratio", "shared_min": "bytes_per_cycle", "shared_max": "bytes_per_cycle",
        "launch_max": "time_us",
    }},
}  # fmt: skip


def canonical(entry: Any, where: str, dimension: str, clock_ghz: float = 1.0) -> float | int:
    """Return the number of an entry of a shipped file, which must have a source, in its dimension's canonical unit."""
    return read_quantity(entry, where, True).canonical(dimension, where, clock_ghz, 1)


@functools.lru_cache(maxsize=256)
def _known(file: str, table: str, key: str, clock_ghz: float = 1.0) -> float:
    dimension = DIMENSIONS[file][table][key]
    return float(canonical(read_shipped(file)[table][key], f"{file}.toml: {table}.{key}", dimension, clock_ghz))


def estimate(key: str, clock_ghz: float = 1.0) -> float:
    """Return a CPU's assumed value of `key` if nothing can be measured; per-clock numbers are given at `clock_ghz`.

    Examples
    --------
    >>> estimate("l2_bandwidth", clock_ghz=2.0)  # GB/s of one core
    64.0
    """
    return _known("_cpu", "estimate", key, clock_ghz)


def sanity(kind: str, key: str) -> float:
    """Return a bound that no plausible measurement of a 'cpu' or a 'cuda' device crosses.

    Examples
    --------
    >>> sanity("cuda", "fma_lanes_min") < 64 < 128 < sanity("cuda", "fma_lanes_max")
    True
    """
    return _known(f"_{kind}", "sanity", key)


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
    tuned: bool = False  # LLVM's order of instructions for `mcpu` serves all its CPUs best
    streams: bool = False  # without prefetches, cores are faster at what streams through


@functools.lru_cache(maxsize=1)
def simd_table() -> tuple[Simd, ...]:
    """Return the known SIMD instruction sets, the widest of each machine first."""

    def read(row: dict[str, Any]) -> Simd:
        where = f"_cpu.toml: {row['name']}"
        vector = int(canonical(row["vector"], where, "size"))
        registers = int(canonical(row["registers"], where, "registers"))
        return Simd(row["name"], row["machine"], frozenset(row["flags"]), row["mattr"], row["mcpu"],
                    frozenset(row["cpus"]), vector, registers, row["fma"], row.get("tuned", False),
                    row.get("streams", False))  # fmt: skip

    return tuple(map(read, read_shipped("_cpu")["simd"]))


def simd_named(name: str) -> Simd | None:
    """Return the instruction set of that name; None if it is unknown."""
    return next((s for s in simd_table() if s.name == name), None)


def simd_of_mcpu(mcpu: str) -> Simd | None:
    """Return the widest instruction set that LLVM uses for this -mcpu; None for a CPU that is not listed."""
    return next((s for s in simd_table() if mcpu == s.mcpu or mcpu in s.cpus), None)


def tuned_name(cpu: str) -> str:
    """Return the CPU whose instruction order LLVM is to choose for a CPU of this name, with the same vectors.

    Examples
    --------
    >>> tuned_name("znver3"), tuned_name("sapphirerapids")
    ('core-avx2', 'sapphirerapids')
    """
    own = simd_of_mcpu(cpu)
    return own.mcpu if own is not None and own.tuned else cpu


def register_file_bytes() -> int:
    """Return the bytes of all vector registers of the widest instruction set: the limit for a CPU's register tile.

    Examples
    --------
    >>> register_file_bytes()
    2048
    """
    return max(s.vector_bytes * s.registers for s in simd_table())
