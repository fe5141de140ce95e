"""Estimates of N kernels of one nest, a column each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .estimate import LevelTime, ProgramEstimate
from .gpu_nest import Array
from .occupancy import RESOURCES


@dataclass(frozen=True)
class Times:
    """Estimates of N kernels (see ``ProgramEstimate``).

    Parameters
    ----------
    seconds : array
    bound : array of str
    compute : array
        Seconds at the peak rate of the units, without wave quantisation.
    levels : dict
        Memory level, far to near -> (bytes, seconds), an array each.
    flops : int
    blocks, waves, threads, registers, shared_bytes : array
    resident, limit : array
        Blocks on a unit at a time (0 if none fits), and which of ``occupancy.RESOURCES`` limits them.
    utilisation : array
    """

    seconds: Array
    bound: Array
    compute: Array
    levels: dict[str, tuple[Array, Array]]
    flops: int
    blocks: Array
    waves: Array
    resident: Array
    limit: Array
    threads: Array
    registers: Array
    shared_bytes: Array
    utilisation: Array

    def take(self, rows: Sequence[int] | Array) -> Times:
        """Return some of them."""
        at = np.asarray(rows, np.int64)
        return Times(
            self.seconds[at], self.bound[at], self.compute[at],
            {level: (moved[at], taken[at]) for level, (moved, taken) in self.levels.items()}, self.flops,
            self.blocks[at], self.waves[at], self.resident[at], self.limit[at], self.threads[at], self.registers[at],
            self.shared_bytes[at], self.utilisation[at],
        )  # fmt: skip

    @property
    def fastest_first(self) -> Array:
        """Numbers of the kernels that fit, in the order of their times."""
        order = np.argsort(self.seconds, kind="stable")
        return order[self.resident[order] > 0]

    def estimate(self, n: int) -> ProgramEstimate:
        """Return one kernel's estimate."""
        levels = [LevelTime(name, float(moved[n]), float(taken[n])) for name, (moved, taken) in self.levels.items()]
        return ProgramEstimate(
            float(self.seconds[n]), float(self.compute[n]), tuple(levels), str(self.bound[n]), self.flops,
            int(self.blocks[n]), int(self.waves[n]), int(self.resident[n]), RESOURCES[int(self.limit[n])],
            int(self.threads[n]), int(self.registers[n]), int(self.shared_bytes[n]), float(self.utilisation[n]),
        )  # fmt: skip
