"""Traces of MetaSchedule, ours among them, as the scripts that people read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from .. import foreign
from ..codegen.flat import kind_of, number_of
from ..codegen.intrinsics import register
from ..ir import TensorExpression
from ..schedules.from_trace import INLINE, ROOT, Digits, Event, LoopAt, script_of_trace
from ..schedules.names import Loops
from ..schedules.renaming import names_in
from ..schedules.script import Script
from ..tir.nodes import buffer_of, key
from ..tir.read import TirReading
from ..tuning.record_rules import check_trace
from .record_files import intrinsics_of


def script_of_line(
    mod: Any, line: str, reading: TirReading, where: str = "trace", names: TensorExpression | None = None
) -> Script:
    """Return a record's trace as a script.

    Parameters
    ----------
    mod : IRModule
        The workload; its function is ``main``.
    line : str
        The record, as a database's file has it.
    reading : TirReading
        Of the function.
    names : TensorExpression, optional
        Another reading of the same operator: stages and loops are called as there.

    Raises
    ------
    ScheduleError
        An instruction that the script has no command for.
    ValueError
        The trace holds something that no tuner emits.
    """
    from tvm.s_tir.meta_schedule.database import TuningRecord, Workload

    check_trace(foreign.loads(line))
    for name in intrinsics_of(line):
        register(name)
    return script_of(mod, TuningRecord.from_json(json.loads(line), Workload(mod)).trace, reading, where, names)


def script_of(
    mod: Any, trace: Any, reading: TirReading, where: str = "trace", names: TensorExpression | None = None
) -> Script:
    """Return a trace as a script, by following it on its workload.

    Examples
    --------
    >>> from tvm import s_tir, te
    >>> a = te.placeholder((8,), name="a")
    >>> func = te.create_prim_func([a, te.compute((8,), lambda i: a[i] + 1.0, name="b")])
    >>> schedule = s_tir.Schedule(func)
    >>> schedule.parallel(schedule.get_loops(schedule.get_sblock("b"))[0])
    >>> from roller_tvm.tir import read_prim_func
    >>> print(script_of(s_tir.Schedule(func).mod, schedule.trace, read_prim_func(func)))
    b.parallel(i)  # II  hardware
    """
    from tvm import s_tir

    schedule = s_tir.Schedule(mod)
    watch = _Watch(schedule, reading)
    trace.apply_to_schedule(schedule, False, watch)
    watch.close()
    stages: dict[str, Loops] = {t.name: len(t.shape) for t in reading.expression.inputs}
    called, stages = names_in(stages | reading.own_loops(), reading.expression, names or reading.expression)
    events = [replace(event, tensor=called.get(event.tensor, event.tensor)) for event in watch.events]
    return script_of_trace(events, stages, {called[s]: block for s, block in reading.blocks.items()}, where)


#: Decisions about where a stage is computed that name no loop.
_NOWHERE = {-1: ROOT, -2: INLINE}


class _Watch:
    """Sees each instruction before it is carried out."""

    def __init__(self, schedule: Any, reading: TirReading) -> None:
        self.schedule, self.events = schedule, list[Event]()
        self.stage_of = {key(b): name for name, buffers in reading.buffers.items() for b in buffers}
        self.stages = {str(b.name): name for name, buffers in reading.buffers.items() for b in buffers}
        self.nowhere = ""
        self.root = schedule.get_sblock("root")
        self.blocks = self._blocks()

    def __call__(self, inst: Any, inputs: Sequence[Any], attrs: Sequence[Any], decision: Any) -> Any:
        self.close()
        kind = str(inst.kind.name)
        if kind == "SampleComputeLocation":
            self.nowhere = _NOWHERE.get(number_of(decision) or 0, "")
        read = tuple(self._input(value) for value in inputs)
        tensor, digits = self._tensor(kind, inputs, attrs)
        self.events.append(Event(kind, read, tuple(map(_plain, attrs)), (), tensor, digits))
        return decision

    def close(self) -> None:
        """Note which blocks the last instruction made."""
        now = self._blocks()
        if self.events and (made := tuple(name for name in now if name not in self.blocks)):
            last = self.events[-1]
            self.events[-1] = Event(last.kind, last.inputs, last.attrs, made, last.tensor, last.digits)
        self.blocks = now

    def _blocks(self) -> list[str]:
        return [str(self.schedule.get(b).name_hint) for b in self.schedule.get_child_blocks(self.root)]

    def _input(self, value: Any) -> Any:
        kind = type(value).__name__
        if kind in ("SBlockRV", "BlockRV"):
            return str(self.schedule.get(value).name_hint)
        if kind == "LoopRV":
            return self._place(value)
        if kind_of(value) == "Var":
            return number_of(self.schedule.get(value))
        return _plain(value, self._input)

    def _place(self, value: Any) -> Any:
        try:
            loop = self.schedule.get(value)
        except TypeError:  # what stands for no loop
            return self.nowhere
        for block in self.schedule.get_child_blocks(self.root):
            around = [self.schedule.get(own) for own in self.schedule.get_loops(block)]
            for at, own in enumerate(around):
                if own.same_as(loop):
                    name = str(self.schedule.get(block).name_hint)
                    return LoopAt(name, at, len(around), number_of(loop.extent) or 0)
        return ""

    def _tensor(self, kind: str, inputs: Sequence[Any], attrs: Sequence[Any]) -> tuple[str, Digits]:
        """Return the tensor of a copy or of a new layout, and the digits of this layout."""
        if kind not in ("CacheRead", "TransformLayout"):
            return "", ()
        regions = self.schedule.get(inputs[0]).reads
        if kind == "CacheRead":
            return self._name(buffer_of(regions[int(attrs[0])])), ()
        number, is_read = int(attrs[0]), not int(attrs[1])
        if not is_read:
            return "", ()
        buffer = buffer_of(regions[number])
        return self._name(buffer), _digits(inputs[1], [number_of(e) or 0 for e in buffer.shape])

    def _name(self, buffer: Any) -> str:
        """Return the stage or input of a buffer; copies of it are called after it."""
        if key(buffer) in self.stage_of:
            return self.stage_of[key(buffer)]
        found = [name for name in self.stages if str(buffer.name).startswith(f"{name}_")]
        return self.stages[max(found, key=len)] if found else str(buffer.name)


def _digits(layout: Any, shape: Sequence[int]) -> Digits:
    """Return (old dimension, length) of each new dimension of an IndexMap; () if it does more than take digits."""
    old = {hash(var): at for at, var in enumerate(layout.initial_indices)}
    found = []
    for index in layout.final_indices:
        high = 0
        if kind_of(index) == "FloorMod":
            index, high = index.a, number_of(index.b) or 0
        low = 1
        if kind_of(index) == "FloorDiv":
            index, low = index.a, number_of(index.b) or 0
        if kind_of(index) == "FloorMod":
            index, inner = index.a, number_of(index.b) or 0
            high = inner // low if low else 0
        if hash(index) not in old or not low:
            return ()
        dim = old[hash(index)]
        found.append((dim, high or -(-shape[dim] // low)))
    return tuple(found)


def _plain(value: Any, inner: Any = None) -> Any:
    """Return a value of TVM as one of Python; an IndexMap stays."""
    if value is None or isinstance(value, (int, float, str, bool)):
        return str(value).strip('"') if isinstance(value, str) else value
    if (number := number_of(value)) is not None:
        return number
    if hasattr(value, "__len__") and not hasattr(value, "initial_indices"):
        return tuple((inner or _plain)(v) for v in value)
    return value
