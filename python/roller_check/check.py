"""Check a GPU function without a GPU: execute it, as far as time allows, and compare it with a reference."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from roller_check.function import Function
from roller_check.pocl import OpenClFunction
from roller_tvm.errors import WrongAnswer
from roller_tvm.tuning.numerics import difference

#: Least floating-point operations per second of emulation with every access checked.
SLOWEST_FLOPS_S = 1e8
#: Least fraction of the elements expected from sampled blocks if all blocks wrote equally many (blocks at an edge write
#: fewer).
FEWEST = 0.25


@dataclass(frozen=True)
class Checked:
    """Report on a function that was executed without a fault and gave the right results."""

    kernels: int
    #: Number of blocks run, and of all blocks.
    blocks: int
    of_blocks: int
    #: Number of elements compared, and of all elements of the results.
    elements: int
    of_elements: int
    seconds: float  # seconds of the emulation, without the reference
    witness: str = "on the CPU"  # means of execution, as in 'on the CPU'

    def __str__(self) -> str:
        part = "all" if self.blocks == self.of_blocks else f"{self.blocks} of {self.of_blocks}"
        compared = "all" if self.elements == self.of_elements else f"{self.elements} of {self.of_elements}"
        return (
            f"executed {self.witness}: {self.kernels} {'kernel' if self.kernels == 1 else 'kernels'}, {part} blocks, "
            f"{compared} elements agree with the reference ({self.seconds:.1f} s)"
        )


def check(
    function: Function, arrays: Sequence[Any], expected: Sequence[np.ndarray[Any, Any]], terms: int, flops: float = 0.0,
    budget_s: float = 20.0,
) -> Checked:  # fmt: skip
    """Execute a function, compare its results with the expected ones, and return a report.

    Parameters
    ----------
    arrays : sequence
        Arguments as for `Function.run`: None for a result.
    expected : sequence of array
        Expected results, in order.
    terms : int
        Number of terms in the sums (see ``measure.numerics``).
    flops : float
        FLOPs of the whole function. If they would take longer than `budget_s`, only some blocks of a single kernel run.
    budget_s : float
        Time for the emulation in seconds.

    Raises
    ------
    KernelFault
        A kernel misbehaved.
    WrongAnswer
        A result is wrong; the message says where and by how much.
    """
    sample, blocks = 0, function.blocks
    if len(function.launches) == 1 and flops > budget_s * SLOWEST_FLOPS_S:
        sample = max(2, int(blocks * budget_s * SLOWEST_FLOPS_S / flops))
    sample = sample if sample < blocks else 0
    start = time.perf_counter()
    results = function.run(arrays, sample=sample)
    seconds = time.perf_counter() - start
    compared, whole = _compare(results, expected, terms, str(function))
    if sample and compared < FEWEST * whole * sample / blocks:
        told = f"{sample} of {blocks} blocks wrote {compared} elements of {whole}"
        raise WrongAnswer(f"{told}: far fewer than their share", where=str(function))
    return Checked(len(function.launches), sample or blocks, blocks, compared, whole, seconds)


def check_values(
    compute: Callable[[list[Any]], Sequence[np.ndarray[Any, Any]]], arrays: Sequence[Any],
    expected: Sequence[np.ndarray[Any, Any]], terms: int,
) -> Checked:  # fmt: skip
    """Compare the results of a function that was compiled for this CPU; return a report.

    Parameters
    ----------
    compute : function of the inputs
    arrays, expected, terms
        As for `check`.

    Raises
    ------
    WrongAnswer
        A result is wrong.
    """
    start = time.perf_counter()
    results = compute([array for array in arrays if array is not None])
    seconds = time.perf_counter() - start
    compared, whole = _compare(results, expected, terms, "a kernel for this CPU")
    return Checked(1, 1, 1, compared, whole, seconds)


def check_on_pocl(
    function: OpenClFunction, arrays: Sequence[Any], expected: Sequence[np.ndarray[Any, Any]], terms: int
) -> Checked:
    """Execute the same schedule in OpenCL on PoCL, all blocks; compare its results and return a report.

    Raises
    ------
    ToolchainError
        PoCL is missing.
    WrongAnswer
        A result is wrong.
    """
    start = time.perf_counter()
    results = function.run(arrays)
    seconds = time.perf_counter() - start
    compared, whole = _compare(results, expected, terms, str(function))
    launches = function.host.launches
    blocks = sum(prod(launch.grid) for launch in launches)
    return Checked(len(launches), blocks, blocks, compared, whole, seconds, "in OpenCL by PoCL")


def _compare(
    results: Sequence[np.ndarray[Any, Any]], expected: Sequence[np.ndarray[Any, Any]], terms: int, where: str
) -> tuple[int, int]:
    """Compare the results; return (number of elements compared, number of all elements)."""
    compared = 0
    for number, (got, wanted) in enumerate(zip(results, expected, strict=True)):
        seen = ~np.ma.getmaskarray(got)
        values = np.ma.getdata(got)[seen]
        if str(wanted.dtype) == "bfloat16":  # of ml_dtypes; emulated memory has its bits
            values = values.view(wanted.dtype)
        compared += values.size
        wrong = difference(values, np.asarray(wanted)[seen], terms)
        if wrong:
            raise WrongAnswer(f"result {number}: {wrong}", where=where)
    return compared, sum(prod(np.shape(e)) for e in expected)
