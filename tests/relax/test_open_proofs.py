"""Kernels of open extents are proven for all sizes that the model takes; wrong ones are not."""

import pytest

pytestmark = pytest.mark.relax
tvm = pytest.importorskip("tvm")
pytest.importorskip("islpy")

import numpy as np  # noqa: E402
from tvm import relax, te, tirx  # noqa: E402

from roller_tvm.codegen.dialect import dialect_here  # noqa: E402
from roller_tvm.errors import RefutedKernel  # noqa: E402
from roller_tvm.relax.open_schedule import OpenFunction  # noqa: E402
from roller_tvm.relax.pipeline import prepare, schedule  # noqa: E402
from roller_tvm.relax.proving import loops_of, prove, prove_module, with_instances  # noqa: E402
from roller_tvm.relax.size_checks import kernel_checks, with_bounds  # noqa: E402
from roller_tvm.schedules.proofs import prove_lowered  # noqa: E402
from roller_tvm.schedules.proofs.cases import Sizes  # noqa: E402

from ..plan.devices import device  # noqa: E402
from ..sampling import NIGHTLY  # noqa: E402
from ..schedules.interpret import Run  # noqa: E402
from ..schedules.mutants import at_each_of, mutants  # noqa: E402
from .networks import LLVM, module, values  # noqa: E402


def var(name="n"):
    return tvm.tirx.Var(name, "int64")


def kernels(mod):
    """Yield each function of open extents, scheduled, and the one before."""
    for name, func in prepare(mod, LLVM).functions_items():
        if type(func).__name__ == "PrimFunc":
            yield next(OpenFunction(func, device("avx512"), str(name.name_hint)).schedules())[0], func


@pytest.mark.parametrize("body", [
    lambda b, x: b.emit(relax.op.matmul(x, relax.const(values(24, 96)))),
    lambda b, x: b.emit(relax.op.add(b.emit(relax.op.nn.relu(x)), b.emit(relax.op.multiply(x, x)))),
    lambda b, x: b.emit(relax.op.triu(x, 1)),
])  # fmt: skip
def test_open_kernels_are_proven(body):
    for scheduled, func in kernels(module(body, (var(), 24))):
        proof = prove(scheduled, func, tvm.target.Target("llvm"))
        assert proof.answer == "proven", proof
        assert {f.rule for f in proof.findings} >= {"races", "values"}


def test_the_last_row_is_planned_for_a_gpu_and_proven():
    def last(x):
        return te.compute((1, 24), lambda i, j: x[x.shape[0] - 1 - i, j], name="last")

    mod = prepare(module(lambda b, x: b.emit_te(last, x), (var(), 24)), LLVM)
    (func,) = (func for _, func in mod.functions_items() if type(func).__name__ == "PrimFunc")
    found = next(OpenFunction(func, device("a100"), "last").schedules())[0]
    assert "threadIdx.x" in str(found)
    assert prove(found, func, tvm.target.Target({"kind": "cuda", "arch": "sm_80"})).answer == "proven"


def sliced(bound):
    """The first rows of a table, as many as there are tokens."""

    def rows(x, table):
        return te.compute(x.shape, lambda i, j: x[i, j] + table[i, j], name="rows")

    def body(b, x):
        return b.emit_te(rows, x, relax.const(values(64, 8)))

    return with_bounds(module(body, (var(), 8)), {"n": (1, bound)}, {})


def test_sizes_are_those_that_the_model_checks():
    mod = prepare(sliced(64), LLVM)
    assert set(kernel_checks(mod).values()) == {("1 <= n", "n <= 64")}
    schedule(mod, LLVM, prove=True)
    with pytest.raises(RefutedKernel, match=r"bounds: .* is outside of \[64, 8\]"):
        schedule(prepare(sliced(65), LLVM), LLVM, prove=True)


def copied(wrong=False):
    """A copy in tiles, of which the last begins early: two trips write its first elements."""
    n, t, i = var(), tirx.Var("t", "int64"), tirx.Var("i", "int64")
    x, y = tirx.decl_buffer([n], name="x"), tirx.decl_buffer([n], name="y")
    place = tirx.min(t * 8, n - 8) + i
    # Right in what no later trip writes again.
    read = tirx.Select(t * 8 < n - 8, tirx.min(t * 8 + i, n - 8), place) if wrong else place
    inner = tirx.For(i, 0, 8, tirx.ForKind.SERIAL, tirx.BufferStore(y, tirx.BufferLoad(x, [read]), [place]))
    tiles = tirx.For(t, 0, (n + 7) // 8, tirx.ForKind.PARALLEL, inner)
    whole = tirx.For(i, 0, n, tirx.ForKind.SERIAL, tirx.BufferStore(y, tirx.BufferLoad(x, [i]), [i]))
    return tirx.PrimFunc([x, y], tiles), tirx.PrimFunc([x, y], whole)


def test_trips_that_write_the_same_values_do_not_race():
    sizes = Sizes(rules=("n >= 8",))
    assert prove_lowered(*copied(), sizes=sizes).answer == "proven"
    assert "races: undecided: " in str(prove_lowered(copied()[0], sizes=sizes))  # whether they are the same
    told = str(prove_lowered(*copied(wrong=True), sizes=sizes))
    assert "values: refuted: " in told and "races: undecided: " in told


def test_sizes_that_a_kernel_does_not_serve_refute_it():
    told = str(prove_lowered(*copied()))
    assert "bounds: refuted: " in told and "for n=" in told


def rows_of(x, table):
    return te.compute(x.shape, lambda i, j: x[i, j] + table[i, j], name="rows")


def first_of(table, size):
    return te.compute((size,), lambda i: table[i, 0], name="first")


def proofs(builder, **bounds):
    mod = with_bounds(builder.get(), bounds, {})
    return prove_module(mod, mod, tvm.target.Target("llvm"), device("avx512"))


def test_checks_of_one_function_are_none_of_another():
    builder, table = relax.BlockBuilder(), relax.const(values(64, 8))
    with builder.function("main", [x := relax.Var("x", relax.TensorType([var(), 8], "float32"))]):
        builder.emit_func_output(builder.emit(relax.op.nn.relu(x)))
    with builder.function("other", [x := relax.Var("x", relax.TensorType([var(), 8], "float32"))]):
        builder.emit_func_output(builder.emit_te(rows_of, x, table))
    with pytest.raises(RefutedKernel, match="bounds"):
        proofs(builder, n=(1, 64))


def two_sizes(made):
    """Two calls of one kernel, of different sizes of the model."""
    n, m = var(), var("m")
    x, y = (relax.Var(name, relax.TensorType([size, 8], "float32")) for name, size in (("x", n), ("y", m)))
    builder, table = relax.BlockBuilder(), relax.Var("table", relax.TensorType([64, 8], "float32"))
    with builder.function("main", [x, y, table]):
        builder.emit_func_output(relax.Tuple([made(builder, given, table, size) for given, size in ((x, n), (y, m))]))
    return builder


@pytest.mark.parametrize("made", [
    lambda b, x, table, _: b.emit_te(rows_of, x, table),
    lambda b, _, table, size: b.emit_te(first_of, table, size),  # a size of the result alone
])  # fmt: skip
def test_a_kernel_of_two_calls_takes_what_both_take(made):
    assert set(proofs(two_sizes(made), n=(1, 64), m=(1, 64)).values()) == {"proven"}
    for larger in ({"n": (1, 100), "m": (1, 64)}, {"n": (1, 64), "m": (1, 100)}):
        with pytest.raises(RefutedKernel, match="bounds"):
            proofs(two_sizes(made), **larger)


@pytest.mark.parametrize("rules", [("n >= 2000000",), ("n <= 0",)])
def test_a_kernel_of_no_size_is_not_proven(rules):
    told = str(prove_lowered(*copied(), sizes=Sizes(rules=rules)))
    assert "no size from 1 to" in told and "undecided" in told


def test_checks_that_are_no_sums_are_left_out():
    assert prove_lowered(*copied(), sizes=Sizes(rules=("n >= 8", "n * n <= 4096"))).answer == "proven"


def scores(b, x):
    """A product of which both axes of the result are open, and what attention makes of it."""
    made = b.emit(relax.op.matmul(x, relax.op.permute_dims(x)))
    return b.emit(relax.op.add(b.emit(relax.op.multiply(made, relax.const(0.5, "float32"))), made))


def convolved(b, x):
    """A convolution whose batch is open. Of 7x7 pixels its tiles read padded tiles, which begin where they do; of 4x4
    they pad in place.
    """
    return b.emit(relax.op.nn.relu(b.emit(relax.op.nn.conv2d(x, relax.const(values(4, 2, 3, 3)), padding=1))))


def begun_elsewhere(func):
    """Yield (name, function): each tile's begin is another, the last one's among them."""
    yield from at_each_of(func, "a begin", tirx.Min, lambda node: node.a)
    yield from at_each_of(func, "the last begin", tirx.Min, lambda node: node.b)
    yield from at_each_of(func, "an earlier begin", tirx.Min, lambda node: tirx.Min(node.a, node.b - 1))
    yield from at_each_of(func, "a later begin", tirx.Min, lambda node: tirx.Max(node.a, node.b))


def wrong_sizes(func, reference, sizes):
    """Return the sizes at which a run of a function has a wrong access or another answer."""

    def run(one, n, backwards):
        size = next(e for p in one.params for e in p.shape if isinstance(e, tirx.Var))
        rng = np.random.default_rng(n)
        shapes = [[n if e.same_as(size) else int(e) for e in p.shape] for p in one.params]
        whole = [str(p.dtype).startswith("int") for p in one.params]
        arrays = [rng.integers(0, 3, s) if w else rng.standard_normal(s) for s, w in zip(shapes, whole, strict=True)]
        arrays[-1] = np.full(shapes[-1], np.nan)
        body = dialect_here().substituted(one.body, size, tirx.const(n, "int64"))
        return Run(one.with_body(body), arrays, backwards), arrays[-1]

    def differs(n, backwards):
        found, answer = run(func, n, backwards)
        return bool(found.events) or not np.allclose(answer, run(reference, n, False)[1])

    return [n for n in sizes if differs(n, False) or differs(n, True)]


@pytest.mark.parametrize("body, shape, sizes, beside", [
    pytest.param(scores, (4,), (1, 9, 17), False, marks=pytest.mark.nightly),
    (lambda b, x: b.emit(relax.op.add(b.emit(relax.op.nn.relu(x)), x)), (4,), (1, 9, 17), False),
    # Padding is read in place: blocks do not tell what it is, the reference does.
    pytest.param(convolved, (2, 7, 7), (1, 2), True, marks=pytest.mark.nightly),
    pytest.param(convolved, (2, 4, 4), (1, 2), True, marks=pytest.mark.nightly),
], ids=["scores", "added", "convolved", "padded in place"])  # fmt: skip
def test_wrong_kernels_of_open_extents_are_not_proven_by_blocks(body, shape, sizes, beside):
    target = tvm.target.Target("llvm")
    for scheduled, func in kernels(module(body, (var(), *shape))):
        marked, blocks = with_instances(scheduled, func, target)
        reference = loops_of(func, target)

        def answer(one, blocks=blocks, told=reference if beside else None):
            return prove_lowered(one, told, blocks=blocks).answer

        assert answer(marked) == "proven", prove_lowered(marked, blocks=blocks)
        assert wrong_sizes(marked, reference, sizes) == []
        every = [*mutants(marked), *begun_elsewhere(marked)]
        proven = [one for one in every[:: 1 if NIGHTLY else max(1, len(every) // 6)] if answer(one[1]) == "proven"]
        assert [name for name, one in proven if wrong_sizes(one, reference, sizes)] == []
