"""Vectors over the edge of an axis: the same numbers, whole vectors where a function is marked, and in what builds."""

import re

import numpy as np
import pytest

pytestmark = [pytest.mark.relax, pytest.mark.optimised]
tvm = pytest.importorskip("tvm")

from tvm import relax, te, tirx  # noqa: E402

from roller_tvm.codegen.dialect import dialect_here  # noqa: E402
from roller_tvm.codegen.flat import Memory  # noqa: E402
from roller_tvm.codegen.rewrites.edge_vectors import with_whole_vectors  # noqa: E402
from roller_tvm.relax import EdgeVectors, build  # noqa: E402
from roller_tvm.relax.pipeline import prepare, schedule  # noqa: E402
from roller_tvm.relax.rewrites import MARKS  # noqa: E402

from ..relax.networks import LLVM, module  # noqa: E402

WIDE = {"kind": "llvm", "mcpu": "core-avx2"}


def product(columns, tile, vector, rows=6, depth=5, dtype="float32", after=None, outermost="j"):
    """A product in register tiles of 3 rows and `tile` columns, the last of which may stand over the edge."""
    a, b = te.placeholder((rows, depth), dtype, "a"), te.placeholder((depth, columns), dtype, "b")
    k = te.reduce_axis((0, depth), "k")
    c = te.compute((rows, columns), lambda i, j: te.sum(a[i, k] * b[k, j], k), "c")
    out = te.compute((rows, columns), lambda i, j: after(c[i, j], i, j), "out") if after else c
    sch = tvm.s_tir.Schedule(te.create_prim_func([a, b, out]))
    block = sch.get_sblock("c")
    last = sch.get_sblock("out") if after else sch.cache_write(block, 0, "local")
    i, j = sch.get_loops(last)
    im, ii = sch.split(i, [None, 3])
    jm, jn, ji = sch.split(j, [None, tile // vector, vector])
    outer, inner = (jm, im) if outermost == "j" else (im, jm)
    sch.reorder(outer, inner, ii, jn, ji)
    sch.parallel(outer)
    sch.unroll(jn)
    sch.vectorize(ji)
    sch.compute_at(block, inner)
    i, j, k = sch.get_loops(block)[-3:]
    n, v = sch.split(j, [None, vector])
    sch.reorder(k, i, n, v)
    sch.unroll(i)
    sch.unroll(n)
    sch.vectorize(v)
    sch.decompose_reduction(block, k)
    if after:
        sch.set_scope(block, 0, "local")
    return tvm.IRModule({"main": sch.mod["main"].with_attr("global_symbol", "main")})


def marked(mod):
    return tvm.transform.Sequential([EdgeVectors()])(mod)


def answer(mod, *given, shape):
    out = tvm.runtime.tensor(np.full(shape, 77, given[0].dtype))
    tvm.compile(mod, WIDE)["main"](*(tvm.runtime.tensor(g) for g in given), out)
    return out.numpy()


@pytest.mark.parametrize("terms", ["columns", "product"])
@pytest.mark.parametrize("order", ["ijkv", "jikv", "ikjv", "kijv"])
def test_sums_whose_initial_value_stands_in_the_loop(terms, order):
    """What is set first and what is summed up are loops over the same variables until they are given other names."""
    k = te.reduce_axis((0, 7), "k")
    a = te.placeholder((3, 7), name="a")
    b = te.placeholder((7, 100), name="b")
    c = te.compute((3, 100), lambda i, j: te.sum(b[k, j] if terms == "columns" else a[i, k] * b[k, j], axis=k), "c")
    sch = tvm.s_tir.Schedule(te.create_prim_func([a, b, c]))
    i, j, k = sch.get_loops(sch.get_sblock("c"))
    j, v = sch.split(j, [None, 16])
    loops = {"i": i, "j": j, "k": k, "v": v}
    sch.reorder(*(loops[name] for name in order))
    sch.vectorize(v)
    mod = marked(tvm.IRModule({"main": sch.mod["main"].with_attr("global_symbol", "main")}))
    rng = np.random.default_rng(3)
    x, y = (rng.standard_normal(s).astype("float32") for s in ((3, 7), (7, 100)))
    expected = np.broadcast_to(y.sum(0), (3, 100)) if terms == "columns" else x @ y
    np.testing.assert_allclose(answer(mod, x, y, shape=(3, 100)), expected, rtol=1e-5, atol=1e-5)


def test_whole_vectors_and_those_of_the_last_tile():
    """37 columns in vectors of 8: of the last tile 5 are read and written, and all 8 summed up in its registers."""
    texts = [tvm.compile(mod, WIDE).mod.inspect_source("ll") for mod in (product(37, 8, 8), marked(product(37, 8, 8)))]
    widths = [set(re.findall(r"call [^@]*@llvm.fmuladd.(v?\d*f\d+)\(", text)) for text in texts]
    assert "v8f32" not in widths[0] and widths[1] == {"v8f32"}


def test_what_a_choice_guards_is_read_where_it_is_chosen():
    a, c = (tirx.decl_buffer((64,), "float32", name=name) for name in "ac")
    t, n = tirx.Var("t", "int32"), tirx.Var("n", "int32")
    at, zero = t * 8 + n, tirx.const(0, "float32")

    def lanes_of(condition, chosen):
        store = tirx.BufferStore(c, tirx.if_then_else(condition, chosen, zero), [at])
        checked = tirx.IfThenElse(at < 61, store, None)
        return tirx.For(t, 0, 8, tirx.ForKind.SERIAL, tirx.For(n, 0, 8, tirx.ForKind.SERIAL, checked))

    value = tirx.BufferLoad(a, [at])
    guarded = tirx.if_then_else(at < 5, value, zero)
    assert with_whole_vectors(lanes_of(value > zero, value), dialect_here()) is not None
    assert with_whole_vectors(lanes_of(guarded > zero, value), dialect_here()) is None
    called = tirx.call_extern("float32", "sinf", zero)
    assert with_whole_vectors(lanes_of(value > zero, called), dialect_here()) is None


def lanes(step):
    """Eight lanes of eight tiles, the last of which has 5: each element made of the one `step` before it."""
    a, t, n = tirx.decl_buffer((72,), "float32"), tirx.Var("t", "int32"), tirx.Var("n", "int32")
    at = t * 8 + n
    value = tirx.BufferLoad(a, [at]) + tirx.const(1, "float32")
    store = tirx.IfThenElse(at < 61, tirx.BufferStore(a, value, [at + step]), None)
    return a, tirx.For(t, 0, 8, tirx.ForKind.SERIAL, tirx.For(n, 0, 8, tirx.ForKind.SERIAL, store))


def test_loops_that_are_no_lanes_stay():
    """Where one iteration reads what another has written, under another name too."""
    assert with_whole_vectors(lanes(0)[1], dialect_here()) is not None
    a, body = lanes(1)
    assert with_whole_vectors(body, dialect_here()) is None
    view = tirx.decl_buffer((72,), "float32")
    memory = Memory.of_body(tirx.DeclBuffer(view, data=a.data))
    assert memory.of(view) == memory.of(a) != Memory({}).of(view)


def test_the_pipeline_marks_what_it_schedules():
    mod = module(lambda b, x: b.emit(relax.op.nn.softmax(x)), (64, 128))
    scheduled, _ = schedule(prepare(mod, LLVM), LLVM)
    funcs = [f for _, f in scheduled.functions_items() if type(f).__name__ == "PrimFunc"]
    assert funcs and all(MARKS["edge_vectors"] in f.attrs for f in funcs)


def test_a_model_built_and_its_answers():
    def body(builder, x, w):
        return builder.emit(relax.op.nn.relu(builder.emit(relax.op.matmul(x, w))))

    mod = module(body, (19, 67), (67, 101))
    rng = np.random.default_rng(2)
    x, w = (rng.standard_normal(s).astype("float32") for s in ((19, 67), (67, 101)))
    found = relax.VirtualMachine(build(mod, LLVM), tvm.cpu())["main"](x, w).numpy()
    np.testing.assert_allclose(found, np.maximum(x @ w, 0), rtol=1e-5, atol=1e-5)


def test_plans_for_who_builds_them(tmp_path):
    """The pass has its functions built so; what goes into MetaSchedule's hands stands over no edge."""
    from roller_tvm.relax import RollerSpace, ScheduleWithRoller, tune_tir

    a, b = te.placeholder((12, 16), "float32", "a"), te.placeholder((16, 61), "float32", "b")
    k = te.reduce_axis((0, 16), "k")
    c = te.compute((12, 61), lambda i, j: te.sum(a[i, k] * b[k, j], k), "c")
    mod = tvm.IRModule({"main": te.create_prim_func([a, b, c])})

    def over(sch_mod):
        return re.search(r"T.where\(.* < 61", sch_mod.script())

    ours = ScheduleWithRoller(LLVM)(mod)
    assert over(ours) and MARKS["edge_vectors"] in ours["main"].attrs
    context = tvm.s_tir.meta_schedule.TuneContext(mod, target=tvm.target.Target(LLVM), space_generator=RollerSpace())
    assert not any(over(sch.mod) for sch in context.generate_design_space())
    database = tune_tir(mod, LLVM, str(tmp_path), 1, verbose=False)
    (record,) = database.get_all_tuning_records()
    assert not over(tvm.IRModule({"main": applied(record, mod)}))


def applied(record, mod):
    sch = tvm.s_tir.Schedule(mod)
    record.trace.apply_to_schedule(sch, remove_postproc=False)
    return sch.mod["main"]
