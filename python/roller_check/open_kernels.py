"""Kernels of open extents, executed on this CPU at sizes, beside their unscheduled loops."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
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

#: Most elements of all tensors at the sizes that are executed.
MOST_ELEMENTS = 1 << 24
#: The largest size that is tried, and how many where no check bounds a size: where all hold for sizes of ENDLESS.
LARGEST, UNBOUNDED, ENDLESS = 4096, 256, 1 << 20
#: Values of outputs before a run: each sum, maximum or minimum without its start shows one, so does no write at all.
_FLOATS, _INTEGERS = (float("nan"), float("inf"), float("-inf")), (0x55, ~0x55)


class NotBound(RollerError):
    """A size of a kernel follows from none of its tensors."""


@dataclass(frozen=True)
class _Tensor:
    shape: tuple[int, ...]
    dtype: str


def check_open(plain: Any, scheduled: Any, checks: Sequence[str]) -> str:
    """Execute a scheduled function of open extents at its smallest sizes, its largest ones and between; compare.

    Outputs start as values that no result has. None of the largest sizes could grow alone: the checks bound it, or
    MOST_ELEMENTS, or LARGEST; a size that no check bounds takes the first UNBOUNDED.

    Parameters
    ----------
    plain, scheduled : PrimFunc
    checks : sequence of str
        What its sizes meet: ``n <= 512``.

    Raises
    ------
    WrongAnswer
    NotBound
        No sizes that were tried meet the checks, so nothing is executed.
    """
    names = {str(v.name): v for b in tensors_of(plain) for v in b.shape if type(v).__name__ == "Var"}
    done: list[str] = []
    loops = reference_module(tvm.IRModule({"main": plain.with_attr("global_symbol", "main")}))["main"]
    runs = [_compiled(func) for func in (loops, scheduled)]
    made = set(output_positions(plain))

    def tensors_at(sizes: Mapping[str, int]) -> list[_Tensor]:
        return [_Tensor(tuple(_extent(e, sizes) for e in b.shape), str(b.dtype)) for b in tensors_of(plain)]

    def fits(sizes: Mapping[str, int]) -> bool:
        return sum(prod(t.shape) for t in tensors_at(sizes)) <= MOST_ELEMENTS

    for sizes in _sizes(sorted(names), checks, fits):
        tensors = tensors_at(sizes)
        own, other = (_computed(run, plain, tensors, made, sizes, len(done)) for run in runs)
        feeds, expected = reference_on([t for n, t in enumerate(tensors) if n not in made], own)
        values = iter(feeds)
        arrays = [None if n in made else next(values) for n in range(len(tensors))]
        most = max((prod(t.shape) for t in tensors), default=1)
        check_values(other, arrays, expected, most)
        done.append(", ".join(f"{name}={size}" for name, size in sizes.items()))
    if not done:
        told = f"its sizes are open, none that were tried meet {' and '.join(checks) or 'its limits'}"
        raise NotBound(told, "prove", f"up to {LARGEST}, of at most {MOST_ELEMENTS} elements, are executed")
    return f"all elements agree with the reference at {'; '.join(done)}"


def _sizes(
    names: Sequence[str], checks: Sequence[str], fits: Callable[[Mapping[str, int]], bool]
) -> list[dict[str, int]]:
    """Return the smallest sizes that meet the checks, some between and the largest, each once."""
    known = [c for c in checks if names_of(c) <= set(names)]
    ranges = {}
    for name in names:
        alone = [c for c in known if names_of(c) == {name}]
        ranges[name] = [n for n in range(1, LARGEST + 1) if all(condition(c, {name: n}) for c in alone)]
    if not all(ranges.values()):
        return []
    joint = [c for c in known if len(names_of(c)) > 1]

    def good(sizes: Mapping[str, int]) -> bool:
        return fits(sizes) and all(condition(c, sizes) for c in joint)

    def at(step: int, apart: int = 0) -> dict[str, int]:
        """All sizes so many steps along their ranges, each so many behind the one before."""
        places = [max(0, step - apart * n) for n in range(len(names))]
        return {name: own[min(place, len(own) - 1)] for (name, own), place in zip(ranges.items(), places, strict=True)}

    steps = range(max(map(len, ranges.values()), default=1))
    first = next((at(step) for step in steps if good(at(step))), None)
    if first is not None:
        endless = dict.fromkeys(names, ENDLESS)
        for name in names:
            if all(condition(c, endless) for c in known if name in names_of(c)):
                ranges[name] = [n for n in ranges[name] if n < first[name] + UNBOUNDED]
        found = [step for step in steps[: max(map(len, ranges.values()), default=1)] if good(at(step))]
        middle, largest = found[len(found) // 2], at(found[-1])
        for name, own in ranges.items():
            largest[name] = next(n for n in reversed(own) if good({**largest, name: n}))
        every = [first, at(middle, 1) if good(at(middle, 1)) else at(middle), largest]
    else:
        ends = product(*([own[0], own[len(own) // 2], own[-1]] for own in ranges.values()))
        every = [s for s in (dict(zip(names, sizes, strict=True)) for sizes in ends) if good(s)][:3]
    return [sizes for n, sizes in enumerate(every) if sizes not in every[:n]]


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
    run: Any, func: Any, tensors: Sequence[_Tensor], made: Collection[int], sizes: Mapping[str, int], turn: int
) -> Callable[[Sequence[np.ndarray]], list[np.ndarray]]:
    """Return a function from inputs to results, at sizes; outputs start otherwise each turn."""
    buffers = {hash(buffer): n for n, buffer in enumerate(tensors_of(func))}

    def compute(feeds: Sequence[np.ndarray]) -> list[np.ndarray]:
        values = iter(feeds)
        arrays = [_unwritten(t, turn) if n in made else next(values) for n, t in enumerate(tensors)]
        memory = [tvm.runtime.tensor(array) for array in arrays]
        run(*(memory[buffers[hash(p)]] if hash(p) in buffers else sizes[str(p.name)] for p in func.params))
        return [memory[n].numpy() for n in sorted(made)]

    return compute


def _unwritten(tensor: _Tensor, turn: int) -> np.ndarray:
    """Return an output before a run."""
    values = np.roll(np.array(_FLOATS if tensor.dtype.startswith(("float", "bfloat")) else _INTEGERS), turn)
    return np.resize(values % 2 if tensor.dtype == "bool" else values, tensor.shape).astype(tensor.dtype)
