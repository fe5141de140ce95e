"""Candidates of a Relay task as States that a record can hold, and the forms of a plan whose weights are packed."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from roller_tvm.codegen.apply_te import TeProgram, apply_steps_state, keep_layout, layout_free
from roller_tvm.device import DeviceSpec
from roller_tvm.errors import MeasureError
from roller_tvm.ir.stage import dtype_bytes
from roller_tvm.relay.tasks import Task
from roller_tvm.relay.worker_side import layout_mode
from roller_tvm.roller.features import Features
from roller_tvm.roller.steps import CacheWrite, Reorder, Split, Step
from roller_tvm.te.read import read_te
from roller_tvm.tuning.candidates import Candidates, Operator, Steps, find_candidates
from roller_tvm.tuning.session import CHECK, PACKED


def make_candidates(task: Task, device: DeviceSpec, top: int) -> Candidates:
    """Return a task's candidates; if there are none the result holds the reason, nothing is raised."""
    dag, mode = task.search_task.compute_dag, layout_mode(task.search_task)

    def read() -> Operator:
        features = Features.of_te(device)
        reading = read_te(dag, name=task.name, constants=packed_operands(dag) if mode == PACKED else ())
        program = TeProgram.of_reading(reading, list(dag.tensors))

        def forms(steps: Steps, number: int) -> Sequence[Steps]:
            if mode == PACKED:
                kept = keep_layout(dict(program.ops), steps)
                if not packable(program, steps):
                    return (kept,)
                return (steps,) if number else (steps, kept)  # the best one in both, should TVM refuse to pack
            if mode == CHECK:  # TVM would transform the operand in each run, one element after the other
                return (keep_layout(dict(program.ops), steps),)
            return (steps,)

        def apply(steps: Steps) -> Any:
            state = apply_steps_state(dag, program, steps)
            _check_room(dag, state, features.shared_limit(device) if device.kind == "gpu" else None)
            return state

        return Operator(reading.expression, features, apply, reading, forms)

    return find_candidates(task.name, read, device, top, task.flops)


def _check_room(dag: Any, state: Any, shared: int | None) -> None:
    """Refuse copies for which a block has no room: TVM copies all of a tensor where it sees no part of it.

    Copies of one kernel count together.
    """
    if not shared or not any(str(stage.op.name).endswith(".shared") for stage in state.stages):
        return
    made: dict[str, list[tuple[int, str]]] = {}
    placed = dag.apply_steps_from_state(state)[0].stages
    for stage, own in zip(dag.infer_bound_from_state(state).stages, placed, strict=True):
        if own.scope == "shared":
            size = prod(int(loop.range.extent) for loop in stage.iters) * dtype_bytes(str(stage.op.output(0).dtype))
            made.setdefault(_kernel(own), []).append((size, str(stage.op.name)))
    for copies in made.values():
        if (size := sum(own for own, _ in copies)) > shared:
            names = "', '".join(name for _, name in copies)
            told = f"TVM copies {size} B to '{names}', a block has {shared} B of shared memory"
            raise MeasureError(told, kind="schedule error")


def _kernel(stage: Any) -> str:
    """Return the name of the stage in whose loops a te.Stage is computed, after all."""
    while stage.attach_stage is not None:
        stage = stage.attach_stage
    return str(stage.op.name)


def packed_operands(dag: Any) -> list[Any]:
    """Return the tensors that ``relay.build`` repacks by the schedule, except those read over axes with digits in their
    names.
    """
    return [
        tensor
        for op in dag.ops
        for tensor in (getattr(op, "attrs", None) or {}).get("layout_free_placeholders", ())
        if not any(c.isdigit() for a in (*op.axis, *op.reduce_axis) for c in a.var.name)
    ]


def packable(program: TeProgram, steps: Sequence[Step]) -> bool:
    """Return whether ``relay.build`` can repack the constant operand for these steps.

    It repacks in the order of the anchor's loops. It needs each spatial axis split into four, each reduction axis into
    two, the order S S R S R S (any order within a group), and axis names without digits.
    """
    computes = {s.stage: s.name for s in steps if isinstance(s, CacheWrite)}
    for _, own in layout_free(dict(program.ops)):
        op, stage = program.ops[own], computes.get(own, own)
        if any(c.isdigit() for a in (*op.axis, *op.reduce_axis) for c in a.var.name):
            return False
        splits = {s.axis: s for s in steps if isinstance(s, Split) and s.stage == stage}
        order = next((s.axes for s in steps if isinstance(s, Reorder) and s.stage == stage), ())
        names = program.loops[own]
        spatial, reduce = names[: len(op.axis)], names[len(op.axis) :]
        if set(splits) != set(names):
            return False
        if any(len(splits[a].names) != 4 for a in spatial) or any(len(splits[a].names) != 2 for a in reduce):
            return False
        extents = {a: int(axis.dom.extent) for a, axis in zip(names, (*op.axis, *op.reduce_axis), strict=True)}
        if any(extents[a] % prod(splits[a].lengths) for a in names):  # tiles over an edge
            return False
        bands = [(spatial, 0), (spatial, 1), (reduce, 0), (spatial, 2), (reduce, 1), (spatial, 3)]
        start = 0
        for axes, level in bands:
            band = order[start : start + len(axes)]
            if sorted(band) != sorted(splits[a].names[level] for a in axes):
                return False
            start += len(axes)
    return True
