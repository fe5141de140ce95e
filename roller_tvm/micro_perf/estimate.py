"""Results of the micro-performance model for a plan: values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from ..roller.candidates import Column


@dataclass(frozen=True)
class LevelTime:
    """Traffic into one level and the time that it takes at the level's bandwidth (whole device)."""

    level: str
    bytes: float
    seconds: float

    def __str__(self) -> str:
        return f"{self.level} {self.bytes / 1e6:.2f} MB {self.seconds * 1e6:.1f} us"


@dataclass(frozen=True)
class ProgramEstimate:
    """Predicted behaviour of one rProgram.

    Parameters
    ----------
    seconds : float
        Predicted time, launch included.
    compute_seconds : float
        Seconds at the peak rate of the units, without wave quantisation.
    levels : tuple of LevelTime
        Traffic of each memory level, far to near.
    bound : str
        Limit of the program: a level, 'compute', 'issue' or 'latency'.
    blocks, waves : int
        Parallel tiles, and rounds of them over the units.
    occupancy : int
        Blocks resident on one unit.
    occupancy_limit : str
        Resource that limits the occupancy.
    threads : int
        Threads per block (1 on a CPU).
    registers : int
        Predicted registers per thread (vector registers on a CPU).
    shared_bytes : int
        Bytes that a block stages in shared memory; on a CPU, bytes in the nearest cache.
    utilisation : float
        Share of the units' time in use, considering wave quantisation alone.
    """

    seconds: float
    compute_seconds: float
    levels: tuple[LevelTime, ...]
    bound: str
    flops: int
    blocks: int
    waves: int
    occupancy: int = 1
    occupancy_limit: str = ""
    threads: int = 1
    registers: int = 0
    shared_bytes: int = 0
    utilisation: float = 1.0

    def repeated(self, count: int, rounds: int) -> ProgramEstimate:
        """Return the estimate of the program done `count` times, in some rounds over the units."""
        levels = tuple(LevelTime(e.level, e.bytes * count, e.seconds * rounds) for e in self.levels)
        return replace(
            self, seconds=self.seconds * rounds, compute_seconds=self.compute_seconds * rounds, levels=levels,
            flops=self.flops * count, blocks=self.blocks * count, waves=self.waves * rounds,
        )  # fmt: skip

    def level(self, name: str) -> LevelTime:
        for entry in self.levels:
            if entry.level == name:
                return entry
        raise KeyError(f"no level '{name}' in the estimate (has {[e.level for e in self.levels]})")

    @property
    def intensity(self) -> float:
        """FLOP per byte from the farthest level."""
        return self.flops / max(1.0, self.levels[0].bytes) if self.levels else float("inf")


@dataclass(frozen=True)
class LevelColumn:
    """Traffic into one level of N candidates, and its time: a column each, or one number for all."""

    level: str
    bytes: Column
    seconds: Column


@dataclass(frozen=True)
class Times:
    """Predicted behaviour of N candidates, a column a field of ``ProgramEstimate``; `bound` is a place in `bounds`."""

    seconds: Column
    compute_seconds: Column
    levels: tuple[LevelColumn, ...]
    bounds: tuple[str, ...]
    bound: Column
    flops: int
    blocks: Column
    waves: Column
    registers: Column
    shared_bytes: Column
    utilisation: Column

    def row(self, n: int) -> ProgramEstimate:
        """Return the estimate of one candidate."""

        def at(column: Column) -> Any:
            found = column[n] if np.ndim(column) else column
            return found.item() if isinstance(found, np.generic | np.ndarray) else found

        levels = tuple(LevelTime(level.level, at(level.bytes), at(level.seconds)) for level in self.levels)
        return ProgramEstimate(
            at(self.seconds), at(self.compute_seconds), levels, self.bounds[at(self.bound)], self.flops,
            at(self.blocks), at(self.waves), registers=at(self.registers), shared_bytes=at(self.shared_bytes),
            utilisation=at(self.utilisation),
        )  # fmt: skip


@dataclass(frozen=True)
class Estimate:
    """Predicted time of a plan: the sum of its programs."""

    programs: tuple[ProgramEstimate, ...]

    @property
    def seconds(self) -> float:
        return sum(p.seconds for p in self.programs)

    @property
    def bound(self) -> str:
        return max(self.programs, key=lambda p: p.seconds).bound

    @property
    def flops(self) -> int:
        return sum(p.flops for p in self.programs)

    @property
    def gflops(self) -> float:
        return self.flops / self.seconds / 1e9

    def to_json(self) -> dict[str, Any]:
        return {"programs": [asdict(p) for p in self.programs]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Estimate:
        return cls(tuple(
            ProgramEstimate(**{**p, "levels": tuple(LevelTime(**e) for e in p["levels"])}) for p in data["programs"]
        ))  # fmt: skip
