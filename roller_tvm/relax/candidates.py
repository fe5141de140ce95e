"""Candidates of a PrimFunc as TensorIR schedules."""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from typing import Any

from ..codegen.apply_tensorir import apply_steps_tir
from ..codegen.kernel_cache import kept_answer
from ..codegen.tensorir_packing import constant_parameters
from ..device import DeviceSpec
from ..roller.features import Features
from ..tir.nodes import AlreadyScheduled
from ..tir.read import read_prim_func
from ..tuning.candidates import Candidates, Operator, Steps, find_candidates
from .structures import Function

#: Plans asked for of a kernel that is only priced: as many as `ScheduleWithRoller` does, which then finds them in the
#: plan cache.
TOP = 4


def seconds_alone(func: Any, device: DeviceSpec) -> float | None:
    """Return the predicted seconds of a PrimFunc as a kernel of its own; None if it cannot be planned.

    Examples
    --------
    >>> seconds_alone(func, device) > 0
    True
    """
    return _alone(Function(func), device)


@lru_cache(maxsize=1024)
def _alone(function: Function, device: DeviceSpec) -> float | None:
    def made() -> float | None:
        constants = constant_parameters(function.func)
        plans = make_candidates(function.func, device, TOP, constants, enough=1).plans
        return plans[0].ranked.seconds if plans else None

    known: float | None = kept_answer(made, "alone", function.text, device.name, device.digest())
    return known


def make_candidates(
    func: Any, device: DeviceSpec, top: int = 10, constants: Collection[str | int] = (), name: str | None = None,
    tf32: bool = False, enough: int | None = None,
) -> Candidates:  # fmt: skip
    """Plan a PrimFunc. Nothing is raised if that fails: the result contains the reason.

    Parameters
    ----------
    func : PrimFunc
        A function that is not scheduled yet.
    device : DeviceSpec
    top : int
        Plans wanted.
    constants : collection of str or int
        Parameters whose values are known at build time.
    name : str, optional
        Name of the operator, in plans and messages.
    tf32 : bool
        True if products of float32 may be rounded to tf32, for tensor cores.
    enough : int, optional
        Plans of these that are lowered; by default all.

    Examples
    --------
    >>> found = make_candidates(func, device, top=3)
    >>> candidate, schedule = next(found.schedules())
    """

    def read() -> Operator:
        reading = read_prim_func(func, name=name, constants=constants)

        features = Features.of_tensor_ir(device, tf32)
        room = features.shared_limit(device) if device.kind == "gpu" else None

        def apply(steps: Steps) -> Any:
            return apply_steps_tir(func, reading, steps, room)

        return Operator(reading.expression, features, apply, reading)

    found = find_candidates(name or "a function", read, device, top, enough=enough)
    found.scheduled = isinstance(found.refused, AlreadyScheduled)
    return found
