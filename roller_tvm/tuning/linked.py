"""A worker that checks kernels of a model's library, each beside the reference, before one of them may serve.

A kernel that crashes or hangs ends only the worker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from . import worker
from .line import worker_side
from .numerics import difference, load, reference_on, shape_of
from .supervise import Call, Pool
from .worker import poison

#: Seconds that the check of one operator may take: the reference is compiled, and slow.
LIMIT_S = 120.0
MODULE = "roller_tvm.tuning.linked"


@dataclass(frozen=True)
class LinkedKernel:
    """A kernel of a library, with what its arguments have beyond those of the task that it computes.

    Parameters
    ----------
    name : str
    constants : dict of int to str
        Position -> file of the values that the kernel wants there.
    places : dict of int to (shape, start)
        Position -> shape of a larger tensor, of which the task's own is the part from `start`.
    order : tuple of int
        The task's tensors in the order of the parameters; () if that is theirs.
    """

    name: str
    constants: Mapping[int, str] = field(default_factory=dict)
    places: Mapping[int, tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=dict)
    order: tuple[int, ...] = ()


@dataclass(frozen=True)
class LinkedTask:
    """A task, its weights' values as files, and the kernels that are to compute it."""

    text: str
    target: str
    weights: tuple[Any, ...]
    values: Mapping[int, str]
    kernels: tuple[LinkedKernel, ...]


def check_linked(library: str, task: LinkedTask) -> list[str]:
    """Return for each kernel why its results are not right, or ''."""
    import tvm

    workload = worker_side().open(task.text, task.target, task.weights)
    given = [n for n in range(len(workload.tensors)) if n not in workload.outputs]
    fixed = {n: np.asarray(load_as(path, workload.tensors[n])) for n, path in task.values.items()}
    compute = workload.reference()

    def with_weights(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        return [fixed.get(n, values) for n, values in zip(given, inputs, strict=True)]

    inputs, expected = reference_on([workload.tensors[n] for n in given], lambda made: compute(with_weights(made)))
    known = dict(zip(given, with_weights(inputs), strict=True))
    module = tvm.runtime.load_module(library)
    return [_wrong(module[kernel.name], kernel, workload, known, expected) for kernel in task.kernels]


def load_as(path: str, tensor: Any) -> np.ndarray:
    """Return the values of a file as a tensor has them."""
    return load(Path(path), str(tensor.dtype))


def _wrong(function: Any, kernel: LinkedKernel, workload: Any, known: Mapping[int, Any], expected: Any) -> str:
    side = worker_side()
    device = side.device("llvm")
    arguments = []
    for n, tensor in enumerate(workload.tensors):
        if n in kernel.constants:
            values = load_as(kernel.constants[n], tensor)
        elif n in kernel.places:
            shape, _ = kernel.places[n]
            values = np.full(shape, poison(tensor).flat[0]).astype(str(tensor.dtype))
            if n in known:
                values[_part(kernel, n, tensor)] = known[n]
        else:
            values = known[n] if n in known else poison(tensor)
        arguments.append(side.tensor(values, device))
    function(*(arguments[n] for n in kernel.order or range(len(arguments))))
    for n, right in zip(workload.outputs, expected, strict=True):
        got = arguments[n].numpy()
        if n in kernel.places:
            part = _part(kernel, n, workload.tensors[n])
            inside, got = got[part], got.copy()
            got[part] = np.full_like(inside, poison(workload.tensors[n]).flat[0])
            if not np.array_equal(got, np.full_like(got, got.flat[0] if got.size else 0), equal_nan=_floats(got)):
                untouched = np.isnan(got) if _floats(got) else got == poison(workload.tensors[n]).flat[0]
                if not untouched.all():
                    return "it writes beside its part of a tensor"
            got = inside
        if why := difference(got, right, workload.terms):
            return why
    return ""


def _floats(values: np.ndarray) -> bool:
    return bool(np.issubdtype(values.dtype, np.floating))


def _part(kernel: LinkedKernel, at: int, tensor: Any) -> tuple[slice, ...]:
    _, start = kernel.places[at]
    return tuple(slice(s, s + e) for s, e in zip(start, shape_of(tensor), strict=True))


def check_all(pool: Pool, library: str, tasks: Sequence[LinkedTask], limit_s: float = LIMIT_S) -> list[list[str]]:
    """Return for each task and kernel why it must not run, or ''; a task that fails as a whole is tried kernel by
    kernel."""
    first = [reply for _, _, reply in pool.map([_call(library, task, limit_s) for task in tasks])]
    found: list[list[str]] = []
    for task, reply in zip(tasks, first, strict=True):
        if reply.ok:
            found.append(list(reply.value))
            continue
        alone = [LinkedTask(task.text, task.target, task.weights, task.values, (k,)) for k in task.kernels]
        replies = [r for _, _, r in pool.map([_call(library, one, limit_s) for one in alone])]
        found.append([r.value[0] if r.ok else f"{r.kind}: {r.text}" for r in replies])
    return found


def _call(library: str, task: LinkedTask, limit_s: float) -> Call:
    return "check_linked", (library, task), limit_s


FUNCTIONS = {f.__name__: f for f in (worker.hello, check_linked)}


if __name__ == "__main__":
    worker.main(FUNCTIONS)
