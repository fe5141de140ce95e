"""Kernels of open extents, executed on this CPU at sizes, beside their unscheduled loops."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import numpy as np
import tvm

from roller_check.check import check_values
from roller_tvm.errors import RollerError
from roller_tvm.models.size_checks import condition, names_of
from roller_tvm.relax.reference import reference_module
from roller_tvm.relax.tasks import output_positions
from roller_tvm.tir.nodes import tensors_of
from roller_tvm.tuning.numerics import reference_on

#: Most elements of all tensors at the sizes that are executed, and the largest size where no check says less.
MOST_ELEMENTS, LARGEST = 1 << 24, 64


class NotBound(RollerError):
    """A size of a kernel follows from none of its tensors."""


@dataclass(frozen=True)
class _Tensor:
    shape: tuple[int, ...]
    dtype: str


def check_open(plain: Any, scheduled: Any, checks: Sequence[str]) -> str:
    """Execute a scheduled function of open extents at its smallest sizes, its largest ones and between; compare.

    Parameters
    ----------
    plain, scheduled : PrimFunc
    checks : sequence of str
        What its sizes meet: ``n <= 512``.

    Raises
    ------
    WrongAnswer
    NotBound
        No sizes are executed.
    """
    names = {str(v.name): v for b in tensors_of(plain) for v in b.shape if type(v).__name__ == "Var"}
    done = []
    loops = reference_module(tvm.IRModule({"main": plain.with_attr("global_symbol", "main")}))["main"]
    runs = [_compiled(func) for func in (loops, scheduled)]
    for sizes in _sizes(sorted(names), checks):
        tensors = [_Tensor(tuple(_extent(e, sizes) for e in b.shape), str(b.dtype)) for b in tensors_of(plain)]
        if sum(prod(t.shape) for t in tensors) > MOST_ELEMENTS:
            continue
        made = set(output_positions(plain))
        own, other = (_computed(run, plain, tensors, made, sizes) for run in runs)
        feeds, expected = reference_on([t for n, t in enumerate(tensors) if n not in made], own)
        values = iter(feeds)
        arrays = [None if n in made else next(values) for n in range(len(tensors))]
        most = max((prod(t.shape) for t in tensors), default=1)
        check_values(other, arrays, expected, most)
        done.append(", ".join(f"{name}={size}" for name, size in sizes.items()))
    if not done:
        raise NotBound("its sizes are open", "prove", f"sizes of at most {MOST_ELEMENTS} elements are executed")
    return f"all elements agree with the reference at {'; '.join(done)}"


def _sizes(names: Sequence[str], checks: Iterable[str]) -> Iterator[dict[str, int]]:
    """Yield the smallest sizes that meet the checks, some between and the largest."""
    ranges = []
    for name in names:
        own = [c for c in checks if names_of(c) == {name}]
        fit = [n for n in range(1, LARGEST * LARGEST + 1) if all(condition(c, {name: n}) for c in own)]
        most = [n for n in fit if n <= LARGEST] if not own else fit
        ranges.append([most[0], most[len(most) // 2], most[-1]] if most else [])
    every = [dict(zip(names, sizes, strict=True)) for sizes in zip(*ranges, strict=True)]
    every += [dict(zip(names, sizes, strict=True)) for sizes in product(*ranges)]
    known = [s for s in every if all(condition(c, s) for c in checks if names_of(c) <= set(names))]
    yield from (dict(pairs) for pairs in list(dict.fromkeys(tuple(s.items()) for s in known))[:3])


def _extent(extent: Any, sizes: Mapping[str, int]) -> int:
    """Return an extent of a tensor for sizes."""
    kind = type(extent).__name__
    if kind == "IntImm" or isinstance(extent, int):
        return int(extent)
    if kind == "Var" and str(extent.name) in sizes:
        return sizes[str(extent.name)]
    raise NotBound(f"the extent {extent} is no size alone", "prove", "its proof")


def _compiled(func: Any) -> Any:
    cpu = tvm.get_global_func("target.llvm_get_system_cpu")()
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    return tvm.compile(mod, target=tvm.target.Target({"kind": "llvm", "mcpu": str(cpu)}))


def _computed(
    run: Any, func: Any, tensors: Sequence[_Tensor], made: Collection[int], sizes: Mapping[str, int]
) -> Callable[[Sequence[np.ndarray]], list[np.ndarray]]:
    """Return a function from inputs to results, at sizes."""
    buffers = {hash(buffer): n for n, buffer in enumerate(tensors_of(func))}

    def compute(feeds: Sequence[np.ndarray]) -> list[np.ndarray]:
        values = iter(feeds)
        arrays = [np.zeros(t.shape, t.dtype) if n in made else next(values) for n, t in enumerate(tensors)]
        memory = [tvm.runtime.tensor(array) for array in arrays]
        run(*(memory[buffers[hash(p)]] if hash(p) in buffers else sizes[str(p.name)] for p in func.params))
        return [memory[n].numpy() for n in sorted(made)]

    return compute
