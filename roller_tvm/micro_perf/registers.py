"""Registers of register tiles: do they fit without spilling, and how many will the compiler take?

A tile is a column of a table (see ``gpu_nest``). The fitted numbers describe the compiler (``constants``); a device's
limits come from its spec.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..device import DeviceSpec
from ..roller.alignment import divisors
from .gpu_constants import (
    ACCUMULATORS,
    ADDRESSES,
    BASE,
    FETCHED_MOST,
    FETCHES,
    PER_ACCUMULATOR,
    PER_FETCH,
    PER_FETCHED,
    PER_FETCHED_ELEMENT,
    PER_FRAGMENT,
    PER_PREFETCHED,
    PREFETCHED_MOST,
    REGISTERS_LEAST,
    ROUNDED_TO,
    STATEMENTS,
    USABLE,
    WINDOW_STATEMENTS,
)
from .gpu_nest import Array, GpuNest, ceil_div

#: More registers than any thread has: the limit of a device that names none.
UNLIMITED = 1 << 30


def words(element_bytes: int) -> int:
    """Return the registers of one element; a half takes a whole one unless the compiler pairs it."""
    return max(1, element_bytes // 4)


@dataclass(frozen=True)
class RegisterTiles:
    """Registers of N threads' tiles, a column each.

    Parameters
    ----------
    accumulators : array
        Registers that hold a thread's outputs.
    fragments : array of (operands, N)
        Each operand's registers for a thread's reads in one reduction step.
    """

    nest: GpuNest
    accumulators: Array
    fragments: Array

    @classmethod
    def of(cls, nest: GpuNest, thread: Array) -> RegisterTiles:
        held = nest.outputs(thread) * words(nest.geometry.accumulator_bytes)
        return cls(nest, held, nest.over_own_axes(thread[nest.outer]) * np.maximum(1, nest.element_bytes // 4))

    @property
    def operands(self) -> Array:
        """Registers of all fragments."""
        return np.add.reduce(self.fragments, axis=0)

    def needed(self, device: DeviceSpec) -> Array:
        """Return the number of registers below which the tiles spill.

        The arithmetic registers of an IPU's workers hold no addresses.
        """
        return self.accumulators + self.operands + (ADDRESSES if device.kind == "gpu" else 0)

    def unspilled(self, read: Array, fetched: Array, rolled: Array | bool = False) -> Array:
        """Return the registers that a thread needs so that none spills.

        Parameters
        ----------
        read : array of (operands, N)
            Elements of each operand that the unrolled code reads; they are read ahead.
        fetched : array
            Elements that a thread fetches in a step.
        rolled : array
            True if a loop indexes the register tile, which therefore cannot be in registers.
        """
        held = self.accumulators if rolled is False else np.where(rolled, 0, self.accumulators)
        ahead = PER_PREFETCHED * np.minimum(PREFETCHED_MOST, np.add.reduce(read, axis=0))
        coming = PER_FETCHED_ELEMENT * np.minimum(FETCHED_MOST, fetched)
        least = np.minimum.reduce(self.fragments) if len(self.fragments) else 0
        return held + least + 1 + ADDRESSES + ahead.astype(np.int64) + coming.astype(np.int64)

    def predicted(
        self, device: DeviceSpec, read: Array, threads: Array, fetches: Array | None = None,
        vectors: Array | None = None,
    ) -> Array:  # fmt: skip
        """Return the registers that the compiler is expected to take, for occupancy.

        Parameters
        ----------
        read : array of (operands, N)
            Elements of each operand that the unrolled code reads.
        threads : array
            Threads of a block.
        fetches, vectors : array of (operands, N), optional
            A thread's fetches in a step, and the elements of each.
        """
        cap = register_caps(device, threads)
        if device.kind != "gpu":
            return np.minimum(self.accumulators + self.operands, cap)
        ahead = np.minimum(read * np.maximum(1, self.nest.element_bytes // 4), PREFETCHED_MOST)
        smaller = self.operands - np.maximum.reduce(self.fragments)
        raw = BASE + PER_ACCUMULATOR * self.accumulators + PER_FRAGMENT * smaller
        raw = raw + PER_PREFETCHED * np.add.reduce(ahead, axis=0)
        if fetches is not None and vectors is not None:
            raw = raw + PER_FETCH * np.add.reduce(fetches, axis=0)
            raw = raw + PER_FETCHED * np.add.reduce(fetches * vectors, axis=0)
        raw = np.maximum(raw, REGISTERS_LEAST)
        return np.minimum(np.ceil(raw / ROUNDED_TO).astype(np.int64) * ROUNDED_TO, cap)


def register_cap(device: DeviceSpec, threads: int) -> int | None:
    """Return the most registers per thread with which a block of `threads` fits; None if no limit is known.

    Never above the limit that kernels are compiled with (`Limits.compiled_registers`).

    Examples
    --------
    >>> from roller_tvm.device import load_device
    >>> [register_cap(load_device("a100"), t) for t in (256, 448, 640, 784)]
    [255, 128, 96, 72]
    """
    cap = int(register_caps(device, np.array(threads)))
    return None if cap == UNLIMITED else cap


def register_caps(device: DeviceSpec, threads: Array) -> Array:
    """Return ``register_cap`` of each block; UNLIMITED if no limit is known."""
    return np.minimum(_shares(device, threads), device.limits.compiled_registers or UNLIMITED)


def usable_limits(device: DeviceSpec, threads: Array) -> Array:
    """Return the upper limit for ``RegisterTiles.needed`` of each block; UNLIMITED if the device's is unknown."""
    shares = _shares(device, threads)
    return np.where(shares == UNLIMITED, shares, (USABLE * shares).astype(np.int64))


def _shares(device: DeviceSpec, threads: Array) -> Array:
    """Return a thread's share of the register file: each scheduler of a unit has its own part, and its own warps."""
    limits = device.limits
    most = limits.max_registers_per_thread or UNLIMITED
    file = limits.max_registers_per_block or limits.registers_per_unit
    if not file:
        return np.full_like(threads, most)
    schedulers = limits.schedulers_per_unit or 1
    warps = ceil_div(ceil_div(threads, device.vector_width), schedulers) * schedulers
    granularity = max(1, (limits.register_granularity or 1) // device.vector_width)
    return np.minimum(file // (warps * device.vector_width) // granularity * granularity, most)


def within_cap(device: DeviceSpec, registers: Array, threads: Array) -> Array:
    """Return registers, at most what a thread of blocks of so many threads can have."""
    cap = register_caps(device, threads)
    return np.where(cap > 0, np.minimum(registers, cap), registers)


def body_of(nest: GpuNest, thread: Array, unrolled: Array) -> Array:
    """Return the extents of a thread's unrolled code: its tile, and along reductions the unrolled iterations."""
    body = thread.copy()
    body[nest.inner] = unrolled[nest.inner]
    return body


def unrolled_steps(nest: GpuNest, thread: Array, step: Array) -> Array:
    """Return, per axis, how many of a step's reduction iterations are unrolled: inner axes first, dividing the step.

    Examples
    --------
    >>> from roller_tvm.ir.operators import matmul
    >>> from .geometry import Geometry
    >>> from .gpu_nest import columns
    >>> nest = GpuNest.of(Geometry.of(matmul(m=1024, n=1024, k=1024), "matmul"))
    >>> unrolled_steps(nest, columns([(8, 8, 1)], 3), columns([(64, 64, 32)], 3)).ravel().tolist()
    [1, 1, 8]
    """
    body = nest.outputs(thread)
    result = np.ones_like(step)
    for i in reversed(nest.reduce):
        most = WINDOW_STATEMENTS if i in nest.geometry.window else STATEMENTS
        result[i] = largest_divisors(step[i], most // body)
        body = body * result[i]
    return result


def largest_divisors(lengths: Array, most: Array) -> Array:
    """Return the largest divisors of lengths up to `most`; at least 1.

    Examples
    --------
    >>> largest_divisors(np.array([12, 12, 7]), np.array([5, 0, 9])).tolist()
    [4, 1, 7]
    """
    result = np.ones_like(lengths)
    for length in set(lengths.tolist()) - {1}:
        own = np.array(divisors(length))
        place = np.maximum(np.searchsorted(own, most, side="right"), 1) - 1
        np.copyto(result, own[place], where=lengths == length)
    return result


__all__ = [
    "ACCUMULATORS", "ADDRESSES", "BASE", "FETCHES", "PER_ACCUMULATOR", "PER_FETCH", "PER_FETCHED", "PER_FRAGMENT",
    "PER_PREFETCHED", "PREFETCHED_MOST", "ROUNDED_TO", "STATEMENTS", "UNLIMITED", "USABLE", "RegisterTiles",
    "body_of", "largest_divisors", "register_cap", "register_caps", "unrolled_steps", "usable_limits", "within_cap",
]  # fmt: skip
