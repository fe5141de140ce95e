"""Time a built kernel on given arguments: in shared memory, weights out of the caches, slow kernels given up early.

A kernel run repeatedly on the same weights has them in its nearest cache; in a network all other layers' weights are
read in between. Plans suffer differently from cold weights (7x7x512 to 512, 3x3: one plan takes 445 us warm and 872 us
cold, another 497 us and 622 us). So each run of a candidate gets another copy of its weights, with as many copies as
make up the model's bytes of weights.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:  # workers need nothing of it
    from roller_tvm.device import DeviceSpec

#: Size of all copies as a multiple of the last cache, unless the model has fewer bytes of weights.
OF_CACHE = 2
#: Least share of a run spent on reading weights for which they are rotated.
SHARE = 0.02
#: Runs on cold weights per repeat on warm ones: a single run is noisier than a repeat of many.
COLD_RUNS = 2
#: Number of calls of an empty function to measure the cost of a call.
CALLS = 20
#: Least seconds of a kernel, after the cost of the call is subtracted.
SHORTEST = 1e-7


@dataclass(frozen=True)
class Kernel:
    """A kernel, its arguments, and its TVM's functions for timing.

    Parameters
    ----------
    call : function
        Runs the kernel on the arguments.
    arguments : sequence of tensor
    sync : function
        Waits until the device is done.
    evaluate : function of (int, int)
        Takes (runs, repeats); returns the mean seconds of a run in each repeat.
    weights : tuple of int
        Positions of arguments that are weights (see `Rotation`).
    nothing : function or None
        Function that does nothing, whatever its arguments; None if there is none.
    """

    call: Callable[..., Any]
    arguments: Sequence[Any]
    sync: Callable[[], Any]
    evaluate: Callable[[int, int], Sequence[float]]
    weights: tuple[int, ...] = ()
    nothing: Callable[..., Any] | None = None


def run_timed(
    kernel: Kernel,
    best: float,
    options: dict[str, Any],
    rotations: dict[tuple[int, ...], Rotation],
    make: Callable[[Any], Any],
    first_s: float = 0.0,
) -> dict[str, Any]:
    """Time a kernel, or give it up if it is far slower than the best so far.

    Parameters
    ----------
    kernel : Kernel
    best : float
        Seconds of the best kernel so far.
    options : dict
        Options of ``Limits.options``, and those of `cold_options`.
    rotations : dict
        Copies of weights, kept for the next candidates.
    make : function of array
        Returns a tensor of these values.
    first_s : float
        Seconds of its first run, perhaps including a cold start.

    Returns
    -------
    dict
        'repeats': seconds of each repeat; 'pruned': True if it was given up; 'wrong': ''.
    """
    # No cold start is that slow, and more single runs would take longer than everything else.
    if first_s > max(best * options["give_up"] ** 2, options["budget_s"]):
        return {"repeats": [first_s], "pruned": True, "wrong": ""}
    once, call = float("inf"), _call_s(kernel.nothing, kernel.arguments)
    for _ in range(int(options["tries"])):  # one slow run may be another process's fault
        start = time.perf_counter()
        kernel.call(*kernel.arguments)
        kernel.sync()
        once = min(once, max(time.perf_counter() - start - call, SHORTEST))
        if once <= best * options["give_up"] + call:  # a single run cannot tell times below a call's cost
            break
    else:
        return {"repeats": [once], "pruned": True, "wrong": ""}
    where = kernel.weights
    size = sum(kernel.arguments[n].numpy().nbytes for n in where)
    if where and size * options["read_s_per_byte"] >= SHARE * once:
        rotation = rotations.setdefault(where, Rotation(where, options["footprint_bytes"], make))
        return {"repeats": _timed_cold(kernel, rotation.lists(kernel.arguments), options, once, call), "pruned": False,
                "wrong": ""}  # fmt: skip
    number = max(1, ceil(options["repeat_s"] / once))
    repeats = int(min(options["repeats"], max(1.0, options["budget_s"] // (once * number))))
    return {"repeats": [float(s) for s in kernel.evaluate(number, repeats)], "pruned": False, "wrong": ""}


def _timed_cold(
    kernel: Kernel, lists: Iterator[list[Any]], options: dict[str, Any], once: float, call: float
) -> list[float]:
    """Time single runs, each on other weights, without the cost of a call."""
    taken: list[float] = []
    for _ in range(int(min(options["repeats"] * COLD_RUNS, max(1.0, options["budget_s"] // once)))):
        arguments = next(lists)
        start = time.perf_counter()
        kernel.call(*arguments)
        taken.append(max(time.perf_counter() - start - call, call))
    return taken


def _call_s(nothing: Callable[..., Any] | None, arguments: Sequence[Any]) -> float:
    """Return the seconds of calling a function that does nothing with these arguments; 0.0 without one."""
    if nothing is None:
        return 0.0
    taken = []
    for _ in range(CALLS):
        start = time.perf_counter()
        nothing(*arguments)
        taken.append(time.perf_counter() - start)
    return min(taken)


def cold_options(weight_bytes: int, device: DeviceSpec) -> dict[str, Any]:
    """Return the options of `run_timed` for a model with so many bytes of weights; none where weights are timed warm.

    'footprint_bytes' are read between two uses of one weight; 'read_s_per_byte' is the time of reading from memory.
    """
    if device.kind != "cpu" or not weight_bytes:
        return {}
    footprint = min(weight_bytes, OF_CACHE * max(level.capacity_bytes for level in device.levels[1:]))
    return {"footprint_bytes": footprint, "read_s_per_byte": 1e-9 / device.far.bandwidth_gbps}


@dataclass
class Rotation:
    """Argument lists of a kernel with different copies of some operands, used in turns.

    Parameters
    ----------
    where : tuple of int
        Positions of the operands.
    footprint_bytes : int
        Least bytes of all copies together.
    make : function of array
        Returns a tensor of these values.
    """

    where: tuple[int, ...]
    footprint_bytes: int
    make: Callable[[Any], Any]
    _copies: dict[tuple[tuple[int, ...], ...], list[list[Any]]] = field(default_factory=dict)
    _next: int = 0

    def lists(self, arguments: Sequence[Any]) -> Iterator[list[Any]]:
        """Yield the arguments with the next copies, without end; each call has ended before the next begins."""
        own = [arguments[n] for n in self.where]
        shapes = tuple(tuple(int(e) for e in a.shape) for a in own)
        if shapes not in self._copies:
            values = [a.numpy() for a in own]
            count = ceil(self.footprint_bytes / max(1, sum(v.nbytes for v in values)))
            self._copies[shapes] = [[self.make(v) for v in values] for _ in range(max(2, count))]
        copies = self._copies[shapes]
        while True:
            chosen = list(arguments)
            for n, copy in zip(self.where, copies[self._next % len(copies)], strict=True):
                chosen[n] = copy
            self._next += 1
            yield chosen


class Memory:
    """Tensors by their position among a kernel's arguments, their type and their size.

    A tensor's pages decide how well caches keep it: a product with 4 MB of weights takes 21 to 31 us. Compared kernels
    get the same pages, each in the shape of its packed weights; if packing pads, the size and so the pages differ.

    Examples
    --------
    >>> memory = Memory()
    >>> plain = memory.of(1, weights, to_device)
    >>> packed = memory.of(1, weights.reshape(4, -1, 8), to_device)
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[int, str, int], Any] = {}

    def of(self, place: int, values: np.ndarray, made: Callable[[np.ndarray], Any]) -> Any:
        """Return a tensor with these values, valid until the next one of this position, type and size.

        Parameters
        ----------
        place : int
        values : array
        made : function of array -> tensor
            Copies an array to the device; the tensor has ``_create_view`` and ``copyfrom``, as in both lines of TVM.
        """
        values = np.asarray(values, order="C")
        if not values.size:
            return made(values)
        key = place, str(values.dtype), values.size
        if key not in self._kept:
            self._kept[key] = made(values.reshape(-1))
        tensor = self._kept[key]._create_view(values.shape)
        tensor.copyfrom(values)
        return tensor
