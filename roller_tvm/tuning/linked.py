"""A worker that checks kernels of a model's library, each beside the reference, before one of them may serve.

A kernel that crashes or hangs ends only the worker.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from . import worker
from .line import worker_side
from .numerics import difference, load, reference_on, shape_of
from .supervise import Call, Pool
from .worker import poisoned

#: Seconds that the check of one operator may take: the reference is compiled, and slow.
LIMIT_S = 120.0
MODULE = "roller_tvm.tuning.linked"

Kernel = TypeVar("Kernel")


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


@dataclass(frozen=True)
class Answers:
    """Inputs of a task and the right outputs.

    Parameters
    ----------
    tensors : list of (shape, dtype)
        In the order of the task's arguments.
    outputs, terms
        As of ``line.Workload``.
    known : dict of int to array
        Inputs by position.
    expected : list of array
        Outputs, by TVM's plain loops.
    """

    tensors: list[tuple[tuple[int, ...], str]]
    outputs: tuple[int, ...]
    terms: int
    known: Mapping[int, np.ndarray]
    expected: Sequence[np.ndarray]

    def save(self, path: Path) -> None:
        """Write them as numpy's archive."""
        told = {"tensors": self.tensors, "outputs": self.outputs, "terms": self.terms}
        arrays = {f"known_{n}": v for n, v in self.known.items()}
        arrays |= {f"expected_{n}": v for n, v in enumerate(self.expected)}
        np.savez_compressed(path, told=np.frombuffer(json.dumps(told).encode(), "uint8"), **arrays)

    @classmethod
    def load(cls, path: Path) -> Answers:
        """Read what `save` wrote."""
        with np.load(path) as arrays:
            told = json.loads(arrays["told"].tobytes())
            known = {int(k.removeprefix("known_")): arrays[k] for k in arrays.files if k.startswith("known_")}
            expected = [arrays[f"expected_{n}"] for n in range(len(told["outputs"]))]
        tensors = [(tuple(shape), dtype) for shape, dtype in told["tensors"]]
        return cls(tensors, tuple(told["outputs"]), told["terms"], known, expected)


def check_linked(library: str, task: LinkedTask) -> list[str]:
    """Return for each kernel of a CPU's library why its results are not right, or ''."""
    import tvm

    side, answers = worker_side(), answers_of(task)
    make = partial(side.tensor, device=side.device("llvm"))
    module = tvm.runtime.load_module(library)
    return [wrong(module[kernel.name], kernel, answers, make) for kernel in task.kernels]


def make_answers(task: LinkedTask, path: str) -> None:
    """Write what a task's kernels are to compute."""
    answers_of(task).save(Path(path))


def answers_of(task: LinkedTask) -> Answers:
    """Return what a task's kernels are to compute."""
    workload = worker_side().open(task.text, task.target, task.weights)
    given = [n for n in range(len(workload.tensors)) if n not in workload.outputs]
    fixed = {n: np.asarray(load_as(path, workload.tensors[n])) for n, path in task.values.items()}
    compute = workload.reference()

    def with_weights(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        return [fixed.get(n, values) for n, values in zip(given, inputs, strict=True)]

    inputs, expected = reference_on([workload.tensors[n] for n in given], lambda made: compute(with_weights(made)))
    known = dict(zip(given, with_weights(inputs), strict=True))
    tensors = [(shape_of(t), str(t.dtype)) for t in workload.tensors]
    return Answers(tensors, tuple(workload.outputs), workload.terms, known, expected)


def load_as(path: str, tensor: Any) -> np.ndarray:
    """Return the values of a file as a tensor has them."""
    return load(Path(path), str(tensor.dtype))


def wrong(function: Any, kernel: LinkedKernel, answers: Answers, make: Callable[[np.ndarray], Any]) -> str:
    """Return why a kernel's results are not right, or ''; `make` makes a tensor of the device."""
    arguments = []
    for n, (shape, dtype) in enumerate(answers.tensors):
        if n in kernel.constants:
            values = load(Path(kernel.constants[n]), dtype)
        elif n in kernel.places:
            values = poisoned(kernel.places[n][0], dtype)
            if n in answers.known:
                values[_part(kernel, n, shape)] = answers.known[n]
        else:
            values = answers.known[n] if n in answers.known else poisoned(shape, dtype)
        arguments.append(make(values))
    function(*(arguments[n] for n in kernel.order or range(len(arguments))))
    for n, right in zip(answers.outputs, answers.expected, strict=True):
        got, (shape, dtype) = arguments[n].numpy(), answers.tensors[n]
        if n in kernel.places:
            part = _part(kernel, n, shape)
            inside, got = got[part], got.copy()
            got[part] = poisoned(inside.shape, dtype)
            untouched = np.isnan(got) if _floats(got) else got == poisoned((1,), dtype)
            if not untouched.all():
                return "it writes beside its part of a tensor"
            got = inside
        if why := difference(got, right, answers.terms):
            return why
    return ""


def _floats(values: np.ndarray) -> bool:
    return bool(np.issubdtype(values.dtype, np.floating))


def _part(kernel: LinkedKernel, at: int, shape: Sequence[int]) -> tuple[slice, ...]:
    _, start = kernel.places[at]
    return tuple(slice(s, s + e) for s, e in zip(start, shape, strict=True))


def check_all(pool: Pool, library: str, tasks: Sequence[LinkedTask], limit_s: float = LIMIT_S) -> list[list[str]]:
    """Return for each task and kernel why it must not run, or ''."""

    def call(number: int, kernels: tuple[LinkedKernel, ...]) -> Call:
        return "check_linked", (library, replace(tasks[number], kernels=kernels)), limit_s

    return each_kernel(pool, [task.kernels for task in tasks], call)


def each_kernel(
    pool: Pool, kernels: Sequence[tuple[Kernel, ...]], call: Callable[[int, tuple[Kernel, ...]], Call]
) -> list[list[str]]:
    """Return what a worker's function says of each kernel of each task; a task whose check fails as a whole is tried
    kernel by kernel."""
    first = [reply for _, _, reply in pool.map([call(n, own) for n, own in enumerate(kernels)])]
    found: list[list[str]] = []
    for n, (own, reply) in enumerate(zip(kernels, first, strict=True)):
        if reply.ok:
            found.append(list(reply.value))
            continue
        replies = [r for _, _, r in pool.map([call(n, (kernel,)) for kernel in own])]
        found.append([r.value[0] if r.ok else f"{r.kind}: {r.text}" for r in replies])
    return found


FUNCTIONS = {f.__name__: f for f in (worker.hello, check_linked, make_answers)}


if __name__ == "__main__":
    worker.main(FUNCTIONS)
