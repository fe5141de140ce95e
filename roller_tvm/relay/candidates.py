"""Turns a task into candidates: reads, plans and lowers its operator to States that a record can hold."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from roller_tvm.device import DeviceSpec
from roller_tvm.errors import MeasureError, UnsupportedOperator
from roller_tvm.measure.session import CHECK, PACKED
from roller_tvm.relay.apply_state import apply_steps_state
from roller_tvm.relay.loops import TeProgram
from roller_tvm.relay.measure import layout_mode
from roller_tvm.relay.packing import keep_layout, layout_free
from roller_tvm.relay.tasks import Task
from roller_tvm.roller.steps import CacheWrite, Reorder, Split, Step


@dataclass
class Candidates:
    """Plans of one task, fastest predicted first, and the States made of them.

    Parameters
    ----------
    plans : list of RankedPlan
    states : list of (State, index of its plan)
    steps : list of the steps of each State
    failures : list of str
        Plans whose steps did not apply.
    reason : str
        Why there is no plan, or ''.
    plan_ms : float
        Time of reading and construction, milliseconds.
    """

    plans: list[Any] = field(default_factory=list)
    states: list[tuple[Any, int]] = field(default_factory=list)
    steps: list[tuple[Step, ...]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    reason: str = ""
    plan_ms: float = 0.0
    flops: float = 0.0


def make_candidates(task: Task, device: DeviceSpec, top: int) -> Candidates:
    """Return a task's candidates; on an error the result holds the reason, nothing is raised."""
    from roller_tvm import planner as planning
    from roller_tvm.planner.gpu_variants import plan_variants
    from roller_tvm.planner.lower import lower
    from roller_tvm.roller.features import Features
    from roller_tvm.te.read import read_te

    result = Candidates(flops=task.flops)
    dag = task.search_task.compute_dag
    mode = layout_mode(task.search_task)
    packs = mode == PACKED
    start = time.perf_counter()
    try:
        reading = read_te(dag, name=task.name, constants=packed_operands(dag) if packs else ())
        result.flops = float(reading.expression.flops) or task.flops
        result.plans = list(planning.construct(reading.expression, device, top, Features.of_te(device)).plans)
        if device.kind == "gpu":  # last of all, for where every plan spills
            result.plans += plan_variants(result.plans[0])
    except UnsupportedOperator as error:
        result.reason = f"{error.what}" + (f" ({error.where})" if error.where else "")
        return result
    except Exception as error:  # a defect of the planner must not stop the other operators
        result.reason = f"planner error: {type(error).__name__}: {str(error)[:200]}"
        return result
    finally:
        result.plan_ms = (time.perf_counter() - start) * 1e3
    program = TeProgram.of_reading(reading, list(dag.tensors))
    for number, ranked in enumerate(result.plans):
        try:
            steps = tuple(lower(ranked.plan))
            variants = [steps]
            if packs:
                packed, kept = packable(program, steps), keep_layout(dict(program.ops), steps)
                # The best plan in both forms, should TVM refuse to pack.
                variants = [*([steps] if packed else []), *([] if packed and number else [kept])]
            elif mode == CHECK:  # TVM would transform the operand in each run, one element after the other
                variants = [keep_layout(dict(program.ops), steps)]
            for variant in variants:
                if variant in result.steps:  # another plan comes to the same kernel
                    continue
                result.states.append((apply_steps_state(dag, program, variant), number))
                result.steps.append(variant)
        except MeasureError as error:
            result.failures.append(error.what)
        except Exception as error:  # a defect of one recipe must not stop the other plans
            result.failures.append(f"lowering: {type(error).__name__}: {str(error)[:200]}")
    if not result.states:
        result.reason = f"no plan could be lowered: {result.failures[0] if result.failures else 'none made'}"
    return result


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
