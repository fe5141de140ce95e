"""A cache folder of their own for all device tests, and a CPU that is the same on every machine."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import pytest

from roller_tvm.device import cpu_profile
from roller_tvm.device.cpu_detect import Cache, CpuFacts
from roller_tvm.device.known import simd_named
from roller_tvm.device.rates import Rates, Request


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """No test reads or writes the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(cpu_profile, "_remembered", {})


def make_facts(**changes) -> CpuFacts:
    """Four AVX2 cores with hyper-threads at 3 GHz."""
    values = dict(
        model="Test CPU",
        machine="x86-64",
        simd=simd_named("avx2"),
        logical=8,
        cores=4,
        machine_logical=8,
        quota=None,
        clock_ghz=2.0,
        caches=(Cache(1, 32 << 10, 64, 8, 1), Cache(2, 512 << 10, 64, 8, 1), Cache(3, 16 << 20, 64, 16, 4)),
        memory_bytes=16 << 30,
        flags=frozenset({"avx2", "fma"}),
        cpus=tuple(range(8)),
    )
    return CpuFacts(**{**values, **changes})


@pytest.fixture
def facts() -> CpuFacts:
    return make_facts()


class FakeMachine:
    """Answers requests as a 3 GHz machine would; `change` may spoil the rate, or give the repeats, of a request."""

    def __init__(self, facts: CpuFacts, change=None) -> None:
        self.facts, self.change, self.calls = facts, change, 0

    def __call__(self, vector_bytes: int, cpus: Sequence[int]):
        return contextlib.nullcontext(self.run)

    def run(self, requests: Sequence[Request]) -> Rates:
        self.calls += 1
        return {r: self._repeats(r) for r in requests if r.kind not in ("fma16", "matrix")}  # no such units

    def _repeats(self, r: Request) -> list[float]:
        rate = self._rate(r)
        if self.change is not None:
            rate = self.change(r, rate, self.calls)
        if isinstance(rate, list):
            return rate
        return [rate * f for f in (0.9, 1.0, 0.95, 0.7)] if rate else []

    def _rate(self, r: Request) -> float:
        lanes = self.facts.simd.vector_bytes // 4
        cores = min(r.threads, self.facts.cores)
        core = 3.0 * 2 * 2 * lanes
        if r.kind == "read":
            sizes = {1: 100.0, 2: 50.0, 3: 25.0}
            for cache in self.facts.caches:
                if r.bytes * (1 if cache.level < 3 else min(r.threads, cache.shared_by)) <= cache.bytes:
                    return sizes[cache.level] * cores
            return min(10.0 * cores, 20.0)
        if r.kind == "chase":
            return 1 / (1 + r.bytes / (1 << 20))
        if r.kind == "launch":
            return 1 / 400
        return {"clock": 3.0, "latency32": 0.75, "begin": 18.0, "fma32": core * cores, "fma64": core * cores / 2}.get(
            r.kind, 0.0
        )


@pytest.fixture
def fake(facts) -> FakeMachine:
    return FakeMachine(facts)
