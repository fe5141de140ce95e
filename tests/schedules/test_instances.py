"""Values by the blocks of the function before its schedule: another way to prove them, and what it must not prove."""

from dataclasses import replace

import pytest

tvm = pytest.importorskip("tvm")
pytest.importorskip("islpy")
pytestmark = pytest.mark.relax

import numpy as np  # noqa: E402

from roller_tvm.codegen.apply_tensorir import apply_steps_tir  # noqa: E402
from roller_tvm.codegen.dialect import dialect_here  # noqa: E402
from roller_tvm.codegen.flat import access_of, is_load  # noqa: E402
from roller_tvm.roller.features import NO_FEATURES  # noqa: E402
from roller_tvm.schedules.proofs import prove as proving  # noqa: E402
from roller_tvm.schedules.proofs import prove_lowered  # noqa: E402
from roller_tvm.schedules.proofs.instances import Compared  # noqa: E402
from roller_tvm.schedules.scheduled import schedule  # noqa: E402

from ..plan.devices import device  # noqa: E402
from ..sampling import NIGHTLY, covering  # noqa: E402
from .mutants import answer, is_wrong, mutants, other_constants  # noqa: E402
from .sums_of_products import PRODUCTS  # noqa: E402
from .test_mutants import CASES, tensors_of  # noqa: E402


def winograd():
    """A convolution of 4 x 4 pixels by Winograd's algorithm: sums of sums by constants that conditions choose."""
    from tvm import te, tirx

    from roller_tvm.te.winograd import winograd as made

    x, w = te.placeholder((4, 4, 3), name="x"), te.placeholder((4, 4, 2, 3), name="w")

    def read(n, row, column, channel):
        inside = tirx.all(row >= 1, row < 5, column >= 1, column < 5)
        return tirx.if_then_else(inside, x[row - 1, column - 1, channel], tirx.const(0.0, "float32"))

    return [x, w, made(read, (1, 4, 4, 3), w, 2, (1, 4, 4, 2), lambda n, y, x, f: (n, y, x, f), "float32")]


def lowered(tensors, name, index="int32"):
    """Return a scheduled function with its stores marked, the one before, and the latter's blocks, or None.

    Models of the Relax line have indices of int64.
    """
    from tvm import te

    from roller_tvm.relax.proving import loops_of, with_instances
    from roller_tvm.tir import read_prim_func

    func = te.create_prim_func(tensors, index_dtype_override=index)
    reading, spec = read_prim_func(func), device(name)
    steps = schedule(reading.expression, None, spec, NO_FEATURES).script.steps
    words = {"kind": "cuda", "arch": spec.arch} if spec.kind == "gpu" else {"kind": "llvm"}
    made = apply_steps_tir(func, reading, steps).mod["main"]
    marked, blocks = with_instances(made, func, tvm.target.Target(words))
    return marked, loops_of(func, tvm.target.Target("llvm")), blocks


def by_blocks(func, blocks):
    """Return the proof of a function whose values are proven by blocks alone."""
    return prove_lowered(func, blocks=blocks)


OPERATORS = [*PRODUCTS, *(words for words, name in CASES if name == "avx2" and "pool" not in words)]
WINOGRAD = [pytest.param("winograd", name, marks=pytest.mark.nightly) for name in ("avx2", "v100")]


def made(words):
    return winograd() if words == "winograd" else PRODUCTS[words]() if words in PRODUCTS else tensors_of(words)


@pytest.mark.parametrize(("words", "name"), [*covering(OPERATORS, ["avx2", "v100"]), *WINOGRAD])
def test_wrong_kernels_are_not_proven_by_blocks(words, name):
    func, reference, blocks = lowered(made(words), name)
    assert prove_lowered(func, reference, blocks=blocks).answer == "proven"
    assert by_blocks(func, blocks).answer == "proven", by_blocks(func, blocks)
    right = answer(reference)
    assert not is_wrong(func, right)
    every = [*mutants(func), *other_constants(func)]
    tried = every[:: 1 if NIGHTLY else max(7, len(every) // 10)]
    proven = [(kind, m) for kind, m in tried if by_blocks(m, blocks).answer == "proven"]
    assert [kind for kind, m in proven if is_wrong(m, right)] == []


def test_elements_that_a_shorter_copy_leaves_out_are_not_initialised():
    func, reference, blocks = lowered(PRODUCTS["te complex_product"](), "v100")
    mutant = dict(mutants(func))["loop shorter 0"]  # of two neighbours in a vector one is copied
    assert is_wrong(mutant, answer(reference))
    assert "initialised: refuted: x0_shared[" in str(by_blocks(mutant, blocks))


def means():
    """Sums in parts, each part by threads: of squares, and of a product of two inputs."""
    from tvm import te

    x, w, k = te.placeholder((4, 40), name="x"), te.placeholder((40, 6), name="w"), te.reduce_axis((0, 40), name="k")
    yield [x, te.compute((4,), lambda i: te.sum(x[i, k] * x[i, k], axis=k), name="squares")]
    yield [x, w, te.compute((4, 6), lambda i, j: te.sum(x[i, k] * w[k, j], axis=k), name="product")]


def in_parts(tensors, parts=2, threads=8, start=None):
    """Return a sum cut in parts by `rfactor`, which threads add up, as `lowered` does."""
    from tvm import s_tir, te

    from roller_tvm.relax.proving import loops_of, with_instances

    func = te.create_prim_func(tensors)
    schedule = s_tir.Schedule(func)
    *spatial, k = schedule.get_loops(block := schedule.get_sblock(tensors[-1].op.name))
    outer, _ = schedule.split(k, [parts, None])
    part = schedule.rfactor(outer, 0)
    for at, loops in ((part, schedule.get_loops(part)), (block, schedule.get_loops(block))):
        number = len(spatial) if at is block else len(loops) - 1  # the loop that is summed
        row = schedule.fuse(*[loop for n, loop in enumerate(loops) if n != number])
        schedule.bind(row, "blockIdx.x")
        inner = schedule.get_loops(at)[-1]
        if at is part:
            inner = schedule.split(inner, [None, threads])[1]
        schedule.bind(inner, "threadIdx.x")
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_70"})
    marked, blocks = with_instances(schedule.mod["main"], func, target)
    return marked, loops_of(func, tvm.target.Target("llvm")), blocks


@pytest.mark.parametrize("number", [0, pytest.param(1, marks=pytest.mark.nightly)])
def test_sums_in_parts_by_threads(number):
    func, reference, blocks = in_parts(list(means())[number])
    assert "tvm_thread_allreduce" in str(func) and "_rf" in str(func)
    assert by_blocks(func, blocks).answer == "proven", by_blocks(func, blocks)
    right, every = answer(reference), list(mutants(func))
    assert not is_wrong(func, right)
    tried = every if NIGHTLY else every[number::3]
    assert [kind for kind, m in tried if by_blocks(m, blocks).answer == "proven" and is_wrong(m, right)] == []


def test_sums_in_parts_of_another_start_are_not_proven():
    """A start that changes the sum is in it once, not once a part."""
    func, reference, blocks = in_parts(list(means())[0])
    tir = dialect_here().tir

    def later(store):
        if getattr(store.value, "value", None) != 0.0:
            return None
        return tir.BufferStore(store.buffer, tir.const(1.0, "float32"), list(store.indices))

    wrong = changed(func, tir.BufferStore, later)
    one = replace(blocks.by_name["squares"], init="1.0")
    assert is_wrong(wrong, answer(reference) + 1)
    assert by_blocks(wrong, replace(blocks, by_name={"squares": one}, by_memory={
        key: one for key in blocks.by_memory})).answer == "undecided"  # fmt: skip


def test_a_sum_that_each_thread_has_as_a_whole_is_not_proven():
    """32 threads that each add all terms: the sum 32 times."""
    tir = dialect_here().tir
    func, reference, blocks = lowered(tensors_of("reduce_sum shape=4x64 axis=1"), "v100")
    assert prove_lowered(func, reference).answer == by_blocks(func, blocks).answer == "proven"
    loops = []

    def longer(loop):
        loops.append(loop.loop_var)
        return tir.For(loop.loop_var, loop.min, tir.const(64, "int32"), loop.kind, loop.body, None, {})

    def whole(load):
        return tir.BufferLoad(load.source, [load.indices[0], loops[0]]) if len(load.indices) == 2 else None

    def marked(mark):
        if mark.attr_key != "roller_instance":
            return None
        named = tir.call_extern("int64", str(mark.value.args[0].value), mark.value.args[1], loops[0])
        return tir.AttrStmt(mark.node, mark.attr_key, named, mark.body)

    wrong = changed(changed(func, tir.For, longer), dialect_here().loads, whole)
    for mutant in (wrong, changed(wrong, tir.AttrStmt, marked)):
        assert is_wrong(mutant, answer(reference))
        assert by_blocks(mutant, blocks).answer == "undecided"
        assert prove_lowered(mutant, reference).answer != "proven"


def gathered(place):
    """Rows at places that data tell, scaled."""
    from tvm import te

    x, i, s = te.placeholder((3, 8), name="x"), te.placeholder((6,), "int32", name="i"), te.placeholder((6,), name="s")
    return [x, i, s, te.compute((6, 8), lambda r, c: x[place(i, r), c] * s[r], name="z")]


@pytest.mark.parametrize("name", ["avx2", "v100"])
def test_places_that_data_tell_are_those_of_before(name):
    func, reference, blocks = lowered(gathered(lambda i, r: i[r]), name)
    proof = by_blocks(func, blocks)
    assert proof.answer == "proven" and "places that data tell are within" in str(proof)
    assert prove_lowered(func, reference).answer == "undecided"  # by ways: nothing is known of the places
    right = answer(reference)
    assert not is_wrong(func, right)
    proven = [(kind, m) for kind, m in mutants(func) if by_blocks(m, blocks).answer == "proven"]
    assert [kind for kind, m in proven if is_wrong(m, right)] == []
    for place in (lambda i, r: i[r] + 1, lambda i, r: i[5 - r], lambda i, r: i[r] * 2, lambda i, r: i[0]):
        other, _, _ = lowered(gathered(place), name)
        assert is_wrong(other, right) and by_blocks(other, blocks).answer == "undecided"


def changed(func, kind, change):
    return func.with_body(dialect_here().with_nodes(func.body, change, kind))


def test_a_copy_of_another_dtype_is_none():
    tir = dialect_here().tir
    func, _, blocks = lowered(tensors_of("matmul m=12 n=16 k=9"), "avx2")
    assert by_blocks(func, blocks).answer == "proven"

    def narrowed(store):
        if not is_load(store.value):
            return None
        value = tir.Cast("float32", tir.Cast("float16", store.value))
        return tir.BufferStore(store.buffer, value, list(store.indices))

    assert by_blocks(changed(func, tir.BufferStore, narrowed), blocks).answer == "undecided"


def test_a_sum_that_is_not_one_is_undecided():
    tir = dialect_here().tir
    func, reference, blocks = lowered(tensors_of("matmul m=12 n=16 k=9"), "avx2")

    def doubled(add):
        if not (is_load(add.a) and "local" in str(access_of(add.a)[0].name)):
            return None
        return add.a * tir.const(2.0, "float32") + add.b

    wrong = changed(func, tir.Add, doubled)
    assert is_wrong(wrong, answer(reference)) and by_blocks(wrong, blocks).answer == "undecided"


def test_marks_are_hints():
    """Wrong marks, as of another block or with axes exchanged, prove nothing."""
    tir = dialect_here().tir
    func, _, blocks = lowered(tensors_of("matmul m=8 n=8 k=8"), "avx2")

    def turned(mark):
        (name, *axes), body = mark.value.args, mark.body
        call = tir.call_extern("int64", str(name.value), *axes[:2][::-1], *axes[2:])
        return tir.AttrStmt(mark.node, mark.attr_key, call, body) if len(axes) > 1 else None

    assert by_blocks(changed(func, tir.AttrStmt, turned), blocks).answer == "undecided"


def test_limits_are_those_of_one_proof(monkeypatch):
    monkeypatch.setattr(proving, "compared", lambda flow: Compared("another value"))
    func, reference, blocks = lowered(tensors_of("matmul m=8 n=8 k=8"), "avx2")
    assert prove_lowered(func, reference, blocks=blocks).answer == "proven"  # by the elements of inputs
    assert "another value" in str(by_blocks(func, blocks))
    assert np.isfinite(answer(func)).all()
