"""Operands that relay.build would repack: kept as they are, or packed and right."""

import pytest

tvm = pytest.importorskip("tvm")
pytestmark = pytest.mark.tvm

from tvm import auto_scheduler, te  # noqa: E402

from roller_tvm.codegen.apply_te import TeProgram, apply_steps_state, keep_layout  # noqa: E402
from roller_tvm.device import load_device  # noqa: E402
from roller_tvm.planner import construct  # noqa: E402
from roller_tvm.planner.lower import lower  # noqa: E402
from roller_tvm.relay.candidates import packable  # noqa: E402
from roller_tvm.relay.worker_side import packs_weights  # noqa: E402
from roller_tvm.roller.steps import Fuse, Parallel, Reorder, Split, Vectorize  # noqa: E402
from roller_tvm.te import read_te  # noqa: E402
from roller_tvm.tuning.supervise import Pool  # noqa: E402
from tests.relay.test_measure import measured  # noqa: E402

PACK = auto_scheduler.LayoutRewriteOption.REWRITE_FOR_PRE_TRANSFORMED


def dense(axes):
    x, w = te.placeholder((32, 64), name="x"), te.placeholder((48, 64), name="w")
    k = te.reduce_axis((0, 64), "k")
    i, j = axes
    body = eval(f"lambda {i}, {j}: te.sum(x[{i}, k] * w[{j}, k], axis=k)", {"te": te, "x": x, "w": w, "k": k})
    return [x, w, te.compute((32, 48), body, name="D", attrs={"layout_free_placeholders": [w]})]


def search_task(axes):
    key = auto_scheduler.workload_registry.register_workload_tensors(f"roller_test_dense_{axes}", dense(axes))
    target = tvm.target.Target("llvm -num-cores 2")
    return auto_scheduler.SearchTask(workload_key=key, target=target, layout_rewrite_option=PACK)


def steps(axes):
    i, j = axes
    return [Split("D", i, (1, 1, 4), ("a0", "a1", "a2", "a3")),
            Split("D", j, (1, 1, 16), ("b0", "b1", "b2", "b3")),
            Split("D", "k", (8,), ("k0", "k1")),
            Reorder("D", ("a0", "b0", "a1", "b1", "k0", "a2", "b2", "k1", "a3", "b3")),
            Fuse("D", ("a0", "b0"), "outer"), Parallel("D", "outer"), Vectorize("D", "b3")]  # fmt: skip


@pytest.mark.parametrize("axes, packs", [(("i", "j"), True), (("i0", "i1"), False)])
def test_axis_names_with_digits_cannot_be_packed_but_kept(axes, packs):
    task = search_task(axes)
    assert packs_weights(task)
    program = TeProgram.of_reading(read_te(task.compute_dag), task.compute_dag.tensors)
    as_is = apply_steps_state(task.compute_dag, program, steps(axes))
    kept = apply_steps_state(task.compute_dag, program, keep_layout(program.ops, steps(axes)))
    with Pool(1, threads=1) as pool:
        result = measured(pool, task, [as_is, kept])
    packed, plain = result.outcomes
    assert (packed.kind == "ok") == packs, packed
    assert plain.ok and result.winner is not None and result.outcomes[result.winner].checked
    same = task.compute_dag.rewrite_layout_from_state(kept).workload_key() == task.compute_dag.workload_key()
    assert same
    if packs:
        shapes = [tuple(map(int, t.shape)) for t in task.compute_dag.rewrite_layout_from_state(as_is).tensors]
        assert shapes[1] != (48, 64)
    else:
        assert packed.kind == "layout error"


def test_tiles_over_an_edge_are_none_of_a_layout():
    dag = search_task(("i", "j")).compute_dag
    program = TeProgram.of_reading(read_te(dag), dag.tensors)
    over = [Split("D", "j", (1, 1, 32), s.names) if getattr(s, "axis", "") == "j" else s for s in steps(("i", "j"))]
    assert packable(program, steps(("i", "j"))) and not packable(program, over)


def conv(channels):
    x, w = te.placeholder((1, 7, 7, 16), name="x"), te.placeholder((3, 3, 16, channels), name="w")
    pad = te.compute(
        (1, 9, 9, 16),
        lambda n, h, w, c: te.if_then_else(te.all(h > 0, h < 8, w > 0, w < 8), x[n, h - 1, w - 1, c], 0.0),
        name="pad",
    )
    rc, ry, rx = (te.reduce_axis((0, e), n) for e, n in ((16, "rc"), (3, "ry"), (3, "rx")))
    body = lambda nn, yy, xx, ff: te.sum(pad[nn, yy + ry, xx + rx, rc] * w[ry, rx, rc, ff], axis=[ry, rx, rc])  # noqa: E731
    return [x, w, te.compute((1, 7, 7, channels), body, name="conv", attrs={"layout_free_placeholders": [w]})]


@pytest.mark.nightly
def test_weights_are_packed_whatever_the_order_of_the_loops():
    key = auto_scheduler.workload_registry.register_workload_tensors("roller_test_conv", conv(96))
    target = tvm.target.Target("llvm -num-cores 2")
    task = auto_scheduler.SearchTask(workload_key=key, target=target, layout_rewrite_option=PACK)
    reading = read_te(task.compute_dag)
    program = TeProgram.of_reading(reading, list(task.compute_dag.tensors))
    plans = construct(reading.expression, load_device("cpu"), top=10).plans
    outermost, states = set(), []
    for ranked in plans:
        steps = lower(ranked.plan)
        order = ranked.plan.programs[-1].choices_of("order")
        assert packable(program, steps)
        if order and min(order, key=order.get) not in outermost:
            outermost.add(min(order, key=order.get))
            states.append(apply_steps_state(task.compute_dag, program, steps))
    assert len(outermost) > 1
    with Pool(1, threads=1) as pool:
        outcomes = measured(pool, task, states).outcomes
    assert [o.kind for o in outcomes] == ["ok"] * len(states)
