"""A script in the names of another reading of the same operator: TVM calls stages and axes as it likes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from ..ir import TensorExpression
from ..roller.loops import source_loops
from ..roller.steps import CacheRead, CacheWrite, ComputeAt, RFactor, Step
from .names import Loops
from .script import ScheduleError, Script


def renamed(script: Script, old: TensorExpression, new: TensorExpression) -> Script:
    """Return a script for `old` as one for `new`, whose stages are the same in the same order.

    Raises
    ------
    ScheduleError
        The two are not stage by stage the same.

    Examples
    --------
    >>> from roller_tvm.ir.operators import operator
    >>> one, other = operator("relu", shape=(4, 8)), operator("transpose", shape=(8, 4), perm=(1, 0))
    >>> print(renamed(Script.read("relu.parallel(i0)"), one, other))
    transpose.parallel(i0)  # II  hardware
    """
    names = _names(old, new, "write the script in the names of --line's own plan: --measure --schedule")
    loops = {
        x.name: dict(zip(source_loops(x.axes), source_loops(y.axes), strict=True))
        for x, y in zip(old.stages, new.stages, strict=True)
    }
    steps = []
    for step in script.steps:
        steps.append(_renamed(step, names, loops))
        if isinstance(step, (CacheWrite, RFactor)):
            loops.setdefault(step.name, loops.get(step.stage, {}))
    return Script(tuple(steps))


def names_in(
    own: Mapping[str, Loops], old: TensorExpression, new: TensorExpression
) -> tuple[dict[str, str], dict[str, Loops]]:  # fmt: skip
    """Return the names of stages in another reading of the same operator, and its stages and loops by these names.

    Parameters
    ----------
    own : mapping
        Stage or input, in the order wanted -> its loops, or its dimensions.
    old, new : TensorExpression
        The reading that `own` is of, and the other one, which may be the same.

    Raises
    ------
    ScheduleError
        The two are not stage by stage the same.

    Examples
    --------
    >>> from roller_tvm.ir.operators import operator
    >>> names_in({"data": 2, "relu": (["a", "b"], [])}, *[operator("relu", shape=(4, 8))] * 2)[1]
    {'data': 2, 'relu': (['i0', 'i1'], [])}
    """
    names = _names(old, new, "leave out --of: its own names are right for comparing records of one tuner")
    made: dict[str, Loops] = {}
    for name, loops in own.items():
        made[names.get(name, name)] = loops
        if isinstance(loops, int) or name not in names:
            continue
        stage = new.stage(names[name])
        named = source_loops(stage.spatial), source_loops(stage.reduce)
        if [len(part) for part in named] == [len(part) for part in loops]:
            made[names[name]] = named
    return names, made


def _names(old: TensorExpression, new: TensorExpression, remedy: str) -> dict[str, str]:
    """Return the names of one reading's stages and inputs in the other."""
    extents = [[[axis.extent for axis in stage.axes] for stage in reading.stages] for reading in (old, new)]
    if extents[0] != extents[1] or len(old.inputs) != len(new.inputs):
        raise ScheduleError("TVM reads this operator in other stages than 'plan' does without it", old.name, remedy)
    inputs = {x.name: y.name for x, y in zip(old.inputs, new.inputs, strict=True)}
    return inputs | {x.name: y.name for x, y in zip(old.stages, new.stages, strict=True)}


def _renamed(step: Step, names: dict[str, str], loops: dict[str, dict[str, str]]) -> Step:
    changed: dict[str, Any] = {}
    for field in fields(step):
        value = getattr(step, field.name)
        stage = field.name in ("stage", "target", "readers", "reader", "left", "right", "output")
        own = names if stage else loops.get(step.target if isinstance(step, ComputeAt) else step.stage, {})
        if isinstance(value, str) and not (field.name == "name" and isinstance(step, (CacheRead, CacheWrite, RFactor))):
            changed[field.name] = own.get(value, value)
        elif isinstance(value, tuple) and value and isinstance(value[0], str) and field.name != "names":
            changed[field.name] = tuple(own.get(v, v) for v in value)
    return replace(step, **changed)
