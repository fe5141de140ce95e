"""TE programs planned, lowered to schedule steps, built for llvm and run beside TVM's own schedule."""

import numpy as np

from roller_tvm.codegen.apply_te import TeProgram, apply_steps_state, apply_steps_te, keep_layout
from roller_tvm.planner import construct
from roller_tvm.planner.lower import lower
from roller_tvm.relay.rewrites import as_tvm, cpu_code
from roller_tvm.roller.features import Features
from roller_tvm.te import read_te
from roller_tvm.tuning.numerics import shape_of

from ..plan.devices import device
from ..plan.examples import over_edges
from ..sampling import NIGHTLY


def reading_of(tensors, name="op"):
    import tvm

    return read_te(tvm.auto_scheduler.ComputeDAG(tensors), name)


def poison(tensor):
    """What an output holds before the run, so that elements which are not written show."""
    kind = str(tensor.dtype)
    value = np.nan if kind.startswith("float") else 1 if kind == "bool" else 77
    return np.full(shape_of(tensor), value, kind)


def inputs_of(tensors, seed=0):
    import tvm

    rng = np.random.default_rng(seed)
    result = []
    for t in tensors:
        if isinstance(t.op, tvm.te.PlaceholderOp):
            result.append(rng.standard_normal([int(e) for e in t.shape]).astype(t.dtype))
    return result


def run(module, arrays, outputs):
    import tvm

    given = [tvm.nd.array(a) for a in arrays]
    empty = [tvm.nd.empty([int(e) for e in t.shape], t.dtype) for t in outputs]
    # Outputs that are not written at all must not look right by chance.
    for e in empty:
        e.copyfrom(np.full(e.shape, 77, e.dtype))
    module(*given, *empty)
    return [e.numpy() for e in empty]


def kind_of(plan):
    """What tells plans apart beside the sizes of their tiles."""
    programs = tuple(
        (p.recipe, p.anchor, p.staged, p.inlined, min(2, p.choice("parallel")), p.choice("vector") > 1,
         len(p.choices_of("order")) > 1, bool(p.choices_of("unroll")))
        for p in plan.programs
    )  # fmt: skip
    return programs, plan.split_reductions


def varied(plans, most):
    """Up to `most` plans, the best of each kind."""
    return list({kind_of(p.plan): p.plan for p in reversed(plans)}.values())[::-1][:most]


def plans_of(tensors, on="avx2", most=4):
    return varied(construct(reading_of(tensors).expression, device(on), 40, Features.of_te(device(on))).plans, most)


def check(tensors, on="avx2", most=4 if NIGHTLY else 3, as_tvm_builds=True):
    """Plans of each kind compute what TVM's default schedule does; returns them.

    Code that takes long to compile is built as Roller does alone: not `as_tvm_builds`. In ``make nightly``
    each plan over an edge is built as TVM does too.
    """
    import tvm

    tensors = list(tensors)
    outputs = [t for t in tensors if not isinstance(t.op, tvm.te.PlaceholderOp)]
    arrays = inputs_of(tensors)
    plain = tvm.te.create_schedule([t.op for t in outputs])
    expected = run(tvm.build(plain, tensors, "llvm"), arrays, outputs)
    dag = tvm.auto_scheduler.ComputeDAG(tensors)
    reading = read_te(dag, "op")
    plans = plans_of(tensors, on, most)
    for number, plan in enumerate(plans):
        steps = lower(plan)
        program = TeProgram.of_reading(reading, tensors)
        schedule, args = apply_steps_te(program, steps)
        half = any(str(t.dtype) == "float16" for t in tensors)
        tolerance = dict(rtol=2e-2, atol=2e-2) if half else dict(rtol=1e-4, atol=1e-4)
        kernels = [(as_tvm, schedule, args)]
        # The same steps make an Ansor State, which is what records hold.
        program = TeProgram.of_reading(reading, dag.tensors)
        steps = keep_layout(program.ops, steps)
        schedule, args = dag.apply_steps_from_state(apply_steps_state(dag, program, steps))
        tvm.lower(schedule, args)
        if not number or over_edges(plan):  # as Roller builds it; the first by either way
            ours, through_state = [(cpu_code, *kernels[0][1:])], [(cpu_code, schedule, args)]
            if NIGHTLY or (as_tvm_builds and not number):
                kernels = kernels + ours + through_state if as_tvm_builds else ours + through_state
            else:
                kernels = ours
        for code, schedule, args in kernels:
            with code():
                got = run(tvm.build(schedule, args, "llvm"), arrays, outputs)
            for mine, theirs in zip(got, expected, strict=True):
                np.testing.assert_allclose(mine, theirs, err_msg=str(plan), **tolerance)
    return plans
