"""Check a fused kernel in OpenCL on PoCL: every operator in it against TVM's own loops of that operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from roller_check.check import Checked, check_on_pocl
from roller_check.pocl import OpenClFunction
from roller_tvm.codegen.errors import NotEmulated
from roller_tvm.codegen.host_code import BufferSpec
from roller_tvm.errors import RollerError, last_line
from roller_tvm.tuning.numerics import reference_on

Arrays = list[np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Member:
    """An operator of a fused kernel."""

    #: Tensors by their names in the graph, with the shapes that the operator sees; the last ones are written.
    tensors: tuple[BufferSpec, ...]
    compute: Callable[[Arrays], Arrays]  # returns the operator's results, given the tensors that it reads
    terms: int  # number of terms in its sums (see ``measure.numerics``)
    outputs: int = 1

    @property
    def read(self) -> tuple[BufferSpec, ...]:
        return self.tensors[: len(self.tensors) - self.outputs]

    @property
    def written(self) -> tuple[BufferSpec, ...]:
        return self.tensors[len(self.tensors) - self.outputs :]


def check_together(function: OpenClFunction, members: Sequence[Member]) -> Checked:
    """Execute the kernel of independent operators, compare all their results, and return a report.

    Parameters
    ----------
    function : OpenClFunction
        Function of one launch; its parameters have the names and numbers of elements of the graph's tensors.

    Raises
    ------
    WrongAnswer
        A result is wrong.
    NotEmulated, ToolchainError
        PoCL cannot run the kernel, or is missing.
    """
    read = {spec.name: spec for member in members for spec in member.read}
    written = [spec.name for member in members for spec in member.written]

    def compute(feeds: Sequence[np.ndarray]) -> list[np.ndarray]:
        fed, made = dict(zip(read, feeds, strict=True)), []
        for member in members:
            made += member.compute([fed[spec.name].reshape(spec.shape) for spec in member.read])
        return made

    feeds, results = reference_on([*map(_Tensor, read.values())], compute)
    values, expected = dict(zip(read, feeds, strict=True)), dict(zip(written, results, strict=True))
    parameters = [p for p in function.host.parameters if isinstance(p, BufferSpec)]
    arrays = [values[p.name].reshape(p.shape) if p.name in values else None for p in parameters]
    due = [expected[p.name].reshape(p.shape) for p in parameters if p.name in written]
    return check_on_pocl(function, arrays, due, max(member.terms for member in members))


def witnessed(check: Callable[[], Checked]) -> Checked | RollerError:
    """Run the check of a fused kernel; return its report, or the error that ended it.

    Returns
    -------
    Checked or RollerError
        `WrongAnswer`: a result is wrong. `CannotFuse`: its blocks wait, or its OpenCL cannot be put into another
        kernel. `NotEmulated`: PoCL lacks a type, or failed unexpectedly.

    Examples
    --------
    >>> def check():
    ...     raise RollerError("its blocks wait", "rtasks_0")
    >>> witnessed(check).what
    'its blocks wait'
    >>> witnessed(lambda: 1 / 0).what
    'ZeroDivisionError: division by zero'
    """
    try:
        return check()
    except RollerError as error:
        return error
    except Exception as error:  # the kernel stays among the results, with what happened
        return NotEmulated(f"{type(error).__name__}: {last_line(error)}", "PoCL")


@dataclass(frozen=True)
class _Tensor:
    """A buffer spec with the attributes that `reference_on` needs."""

    spec: BufferSpec

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(map(int, self.spec.shape))

    @property
    def dtype(self) -> str:
        return self.spec.dtype
