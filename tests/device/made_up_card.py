"""A CUDA card that is made up: its truth is known, and launches take the time that follows from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from roller_tvm.device.cuda_bench import measure
from roller_tvm.device.cuda_driver import CudaFacts
from roller_tvm.device.rates import Rates, Request

FACTS = CudaFacts(
    ordinal=0, name="NVIDIA Toy 100", driver=12090, memory_bytes=80 << 30, major=9, minor=0, units=100, warp=32,
    max_threads_per_block=1024, max_threads_per_unit=2048, max_blocks_per_unit=32, registers_per_unit=65536,
    registers_per_block=65536, shared_per_block=48 << 10, shared_per_block_optin=227 << 10, shared_per_unit=228 << 10,
    shared_reserved=1024, l2_bytes=40 << 20, clock_khz=1_700_000, memory_clock_khz=2_000_000, memory_bus_bits=5120,
)  # fmt: skip


class MadeUpCard:
    """1.5 GHz, 128 lanes a unit, DRAM 2200, L2 6000 GB/s, shared memory 128 B a unit and cycle, launches 2.5 us."""

    GHZ, LANES, DRAM, L2, LAUNCH_NS = 1.5, 128, 2200.0, 6000.0, 2500.0
    LATENCY_CYCLES = {"latency32": 4, "shared_chase": 30}

    def __init__(self, facts: CudaFacts = FACTS) -> None:
        self.facts = facts
        self.held: dict[int, int] = {}
        self.words: dict[int, int] = {}
        self.next = 1 << 32
        self.most = 0

    def alloc(self, size: int) -> int:
        assert size > 0
        self.next += 1 << 36
        self.held[self.next] = size
        self.most = max(self.most, sum(self.held.values()))
        return self.next

    def free(self, address: int) -> None:
        del self.held[address]

    def write(self, address: int, value: int) -> None:
        self.words[address] = value

    def read(self, address: int) -> int:
        return self.words[address]

    def time(self, kernel, grid, block, args, times=1, behind=None) -> float:
        assert block <= self.facts.max_threads_per_block and grid >= 1
        if kernel == "nothing":
            assert behind is not None and behind[0] == "latency32"  # else this process would be measured
            assert self._ns("latency32", 1, 1, behind[1]) > times * 2 * self.LAUNCH_NS
            return times * self.LAUNCH_NS
        return self.LAUNCH_NS + self._ns(kernel, grid, block, args)

    def _ns(self, kernel, grid, block, args) -> float:
        values = [a.value for a in args]
        rounds, threads, units = values[0], grid * block, self.facts.units
        resident = units * self.facts.max_threads_per_unit
        assert threads <= resident, "one wave"
        lanes = units * self.LANES * self.GHZ  # multiply-adds a nanosecond
        if kernel in ("fma32", "fma64", "fma16", "int32"):
            share = {"fma32": 1, "fma64": 0.5, "fma16": 2, "int32": 0.5}[kernel]
            width = 2 if kernel == "fma16" else 1
            return 16 * width * threads * rounds / (lanes * share)
        if kernel == "clock_cycles":
            assert grid == units
            self.words[values[4]] = rounds * 16
            return rounds * 16 / self.GHZ
        if kernel == "read":
            _, memory, count, _ = values
            size = self.held[memory]
            assert count * 16 <= size
            return rounds * count * 16 / (self.L2 if size <= self.facts.l2_bytes else self.DRAM)
        if kernel == "shared_read":
            return rounds * 8 * 16 * threads / (128 * units * self.GHZ)
        if kernel == "chase":
            (size,) = [s for a, s in self.held.items() if a == self.words[values[1]]]
            return rounds * (200 if size <= self.facts.l2_bytes else 600)
        if kernel == "make_cycle":
            memory, lines, words = values
            assert lines & (lines - 1) == 0 and lines * words * 8 <= self.held[memory]
            return 1.0
        return rounds * self.LATENCY_CYCLES[kernel] / self.GHZ


class MadeUpRunner:
    """What `CudaRunner` is to a card; `change` may spoil the rates of a request, seeing the number of the call."""

    def __init__(self, card: MadeUpCard | None = None, change=None) -> None:
        self.card, self.change, self.calls = card or MadeUpCard(), change, 0

    def facts(self) -> CudaFacts:
        return self.card.facts

    def __call__(self, requests: Sequence[Request]) -> Rates:
        self.calls += 1
        rates = measure(self.card, requests)
        if self.change is None:
            return rates
        return {r: self.change(r, values, self.calls) for r, values in rates.items()}


def facts(**changes) -> CudaFacts:
    return replace(FACTS, **changes)
