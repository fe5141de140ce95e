"""A GPU function checked without a GPU: executed, as far as time allows, and compared with a reference."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from roller_tvm.emulate.function import Function
from roller_tvm.emulate.opencl import OpenClFunction
from roller_tvm.errors import WrongAnswer
from roller_tvm.measure.numerics import difference

#: Floating-point operations a second that emulation reaches at least, every access checked.
SLOWEST_FLOPS_S = 1e8
#: Of the elements that so many blocks would write if all wrote as many: fewer than this share, and they write too
#: little (those at an edge write few).
FEWEST = 0.25


@dataclass(frozen=True)
class Checked:
    """A function that was executed, misbehaved nowhere and computed what it should.

    Attributes
    ----------
    kernels : int
    blocks, of_blocks : int
        How many were run, of how many.
    elements, of_elements : int
        How many of the results were compared.
    seconds : float
        Of the emulation, the reference not included.
    witness : str
        What executed it.
    """

    kernels: int
    blocks: int
    of_blocks: int
    elements: int
    of_elements: int
    seconds: float
    witness: str = "on the CPU"

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
    """Execute a function and compare its results.

    Parameters
    ----------
    function : Function
    arrays : sequence
        As for `Function.run`: None for a result.
    expected : sequence of array
        Of the results, in order.
    terms : int
        Terms that the sums have (see ``measure.numerics``).
    flops : float
        Of the whole function. Where they take longer than `budget_s`, a single kernel is run in part.
    budget_s : float

    Raises
    ------
    KernelFault
        It misbehaved.
    WrongAnswer
        It computed something else; says where and by how much.
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
        raise WrongAnswer(f"{told}: far from their share", where=str(function))
    return Checked(len(function.launches), sample or blocks, blocks, compared, whole, seconds)


def check_on_pocl(
    function: OpenClFunction, arrays: Sequence[Any], expected: Sequence[np.ndarray[Any, Any]], terms: int
) -> Checked:
    """As `check`, by the second witness: the same schedule in OpenCL, on PoCL; all of it.

    Raises
    ------
    ToolchainError
        There is no PoCL.
    WrongAnswer
        It computed something else.
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
    """(elements compared, elements there are)."""
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
