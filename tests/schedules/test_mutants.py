"""The prover can fail: of kernels made wrong by rule, those that an exact run shows to be wrong are refuted."""

import pytest

tvm = pytest.importorskip("tvm")
pytest.importorskip("islpy")
pytestmark = pytest.mark.relax

import numpy as np  # noqa: E402

from roller_tvm.codegen.apply_tensorir import apply_steps_tir  # noqa: E402
from roller_tvm.ir.operators import parse_params  # noqa: E402
from roller_tvm.roller.features import NO_FEATURES, Features  # noqa: E402
from roller_tvm.schedules.proofs import prove_lowered  # noqa: E402
from roller_tvm.schedules.scheduled import schedule  # noqa: E402
from roller_tvm.te import te_operator  # noqa: E402

from ..plan.devices import device  # noqa: E402
from ..sampling import NIGHTLY  # noqa: E402
from .mutants import OTHER_VALUES, answer, is_wrong, is_wrong_for, mutants, other_constants  # noqa: E402

WORDS = ["matmul m=8 n=8 k=8", "conv2d_nchw n=1 c=2 h=6 w=6 f=4 kh=3 kw=3 padding=1", "softmax shape=4x10",
         "matmul m=6 n=7 k=5", "transpose shape=8x6 perm=1,0", "add shape=6x10",
         "max_pool2d_nchw n=1 c=2 h=7 w=7 k=3 stride=2 padding=1", "reduce_sum shape=4x64 axis=1",
         "dense m=2 n=10 k=8 bias=1 relu=1"]  # fmt: skip
CASES = [(w, d) for w in WORDS for d in ("avx2", "v100")]


def lowered(words, name, features=NO_FEATURES):
    """Return a scheduled function, lowered, and the one before it was scheduled."""
    return lowered_tensors(tensors_of(words), name, features)


def tensors_of(words):
    operator, *params = words.split()
    return list(te_operator(operator, **parse_params(" ".join(params))))


def lowered_tensors(tensors, name, features=NO_FEATURES):
    from tvm import te

    from roller_tvm.relax.proving import loops_of
    from roller_tvm.tir import read_prim_func

    func = te.create_prim_func(tensors)
    reading, spec = read_prim_func(func), device(name)
    steps = schedule(reading.expression, None, spec, features).script.steps
    scheduled = apply_steps_tir(func, reading, steps).mod["main"]
    words = {"kind": "cuda", "arch": spec.arch} if spec.kind == "gpu" else {"kind": "llvm"}
    return loops_of(scheduled, tvm.target.Target(words)), loops_of(func, tvm.target.Target("llvm"))


def judged(words, name, every=1):
    """Return the number of wrong mutants, of refuted ones, and the names of proven ones; each `every`-th is tried."""
    func, reference = lowered(words, name)
    try:
        right = answer(reference)
        assert not is_wrong(func, right)
    except NotImplementedError:
        pytest.skip("reductions over threads, which the run knows not")
    wrong, refuted, missed = 0, 0, []
    for number, (kind, mutant) in enumerate(mutants(func)):
        if number % every:
            continue
        proof = prove_lowered(mutant, reference)
        if is_wrong(mutant, right):
            wrong += not kind.startswith(OTHER_VALUES)
            refuted += proof.answer == "refuted" and not kind.startswith(OTHER_VALUES)
            if proof.answer == "proven":
                missed.append(f"{words} {name} {kind}: {proof.answer}")
    return wrong, refuted, missed


@pytest.mark.parametrize(("words", "name"), CASES if NIGHTLY else [CASES[0], CASES[1]])
def test_wrong_kernels_are_refuted(words, name):
    wrong, refuted, missed = judged(words, name, 1 if NIGHTLY else 5)
    assert not missed
    assert refuted > 0.9 * wrong > 1


def test_a_dropped_barrier_names_two_threads():
    func, reference = lowered("matmul m=8 n=8 k=8", "v100")
    mutant = next(m for kind, m in mutants(func) if kind == "barrier dropped 0")
    told = str(prove_lowered(mutant, reference))
    assert "races: refuted" in told and "threadIdx.x=" in told and "threads at the same time" in told
    assert is_wrong(mutant, answer(reference))
    assert np.isfinite(answer(func)).all()


@pytest.mark.parametrize("rule", ["loop shorter", "load elsewhere"])
def test_each_way_to_an_output_is_looked_at(rule):
    func, reference = lowered("softmax shape=4x10", "avx2")  # the maximum alone brings each element to each output
    right = answer(reference)
    wrong = [(kind, m) for kind, m in mutants(func) if kind.startswith(rule) and is_wrong(m, right)]
    assert len(wrong) > 1
    assert [kind for kind, m in wrong if prove_lowered(m, reference).answer != "refuted"] == []


@pytest.mark.parametrize("words", [
    "max_pool2d_nchw n=1 c=2 h=5 w=5 k=3 stride=2 padding=1", "layer_norm shape=3x12", "softmax shape=4x10",
    "conv2d_nchw n=1 c=2 h=4 w=4 f=2 kh=3 kw=3 padding=1",
])  # fmt: skip
@pytest.mark.parametrize("name", ["avx2", "v100"])
def test_a_kernel_with_another_constant_is_not_proven(words, name):
    func, reference = lowered(words, name)
    assert prove_lowered(func, reference).answer == "proven"
    try:
        right = answer(reference)
        wrong = [(kind, m) for kind, m in other_constants(func) if is_wrong(m, right)]
    except NotImplementedError:
        pytest.skip("reductions over threads, which the run knows not")
    assert wrong
    assert [kind for kind, m in wrong if prove_lowered(m, reference).answer == "proven"] == []


@pytest.mark.parametrize("name", ["avx2", "v100"])
def test_constants_that_a_condition_chooses_have_their_places(name):
    from tvm import te, tirx

    def shifted(first):
        x, (a, b) = te.placeholder((48,), name="x"), (tirx.const(v, "float32") for v in (1.5, 2.5))
        return [x, te.compute((48,), lambda i: x[i] + tirx.if_then_else(i < first, a, b), name="y")]

    func, reference = lowered_tensors(shifted(20), name)
    assert prove_lowered(func, reference).answer == "proven"
    told = str(prove_lowered(lowered_tensors(shifted(21), name)[0], reference))
    assert "values: refuted: y[20] should not take 1.5" in told, told


def test_constants_that_a_condition_chooses_within_a_sum_are_undecided():
    from tvm import te, tirx

    def weighted(first):
        x, k, (a, b) = te.placeholder((8, 48), name="x"), te.reduce_axis((0, 48)), (
            tirx.const(v, "float32") for v in (1.5, 2.5))  # fmt: skip
        return [x, te.compute((8,), lambda i: te.sum(x[i, k] * tirx.if_then_else(k < first, a, b), axis=k), name="y")]

    _, reference = lowered_tensors(weighted(20), "avx2")
    wrong, _ = lowered_tensors(weighted(21), "avx2")
    assert prove_lowered(wrong, reference).answer == "undecided"


def test_copies_that_run_ahead_have_to_be_waited_for():
    func, reference = lowered("matmul m=64 n=64 k=128", "a100", Features.of_tensor_ir(device("a100")))
    assert str(prove_lowered(func, reference)).count("proven") == 2
    waits = [m for kind, m in mutants(func) if kind.startswith("wait for fewer")]
    assert len(waits) == 2
    for mutant in waits:
        assert "initialised: refuted: " in str(prove_lowered(mutant, reference))
    barriers = [m for kind, m in mutants(func) if kind.startswith("barrier dropped")]
    assert all("races: refuted: " in str(prove_lowered(mutant, reference)) for mutant in barriers)


def test_what_replaces_nothing_is_refuted():
    """A maximum or a sum without all of its terms: each element still gets to each output, by another way."""
    func, reference = lowered("softmax shape=4x10", "avx2")
    wrong = [m for kind, m in mutants(func) if kind.startswith("a store left out")]
    assert len(wrong) == 4
    assert [prove_lowered(m, reference).answer for m in wrong] == ["refuted"] * 4


def test_another_way_of_computing_is_not_refuted():
    """A sum of squares less the square of a sum, by other products: what lacks is made up for."""
    from tvm import te

    def variance(value):
        x, k = te.placeholder((4, 8), name="x"), te.reduce_axis((0, 8), name="k")
        total = te.compute((4,), lambda i: te.sum(x[i, k], axis=k), name="total")
        squares = te.compute((4,), lambda i: te.sum(x[i, k] * x[i, k], axis=k), name="squares")
        return [x, te.compute((4,), lambda i: value(total[i], squares[i]), name="out")]

    _, reference = lowered_tensors(variance(lambda t, s: s - t * t), "avx2")
    for value in (lambda t, s: s + t * (0 - t), lambda t, s: (s + t) - t * (t + 1)):
        assert prove_lowered(lowered_tensors(variance(value), "avx2")[0], reference).answer == "undecided"


@pytest.mark.parametrize(("words", "rule"), [("softmax shape=4x10", "loop s"), ("softmax shape=10x4 axis=0", "load e")])
def test_a_witness_is_shown_by_large_numbers(words, rule):
    """A row's maximum without a term gives the right softmax of most rows, as does another column's."""
    func, reference = lowered(words, "avx2")
    right, hidden = answer(reference), 0
    for kind, mutant in mutants(func):
        if not kind.startswith(rule) or is_wrong(mutant, right):
            continue
        found = prove_lowered(mutant, reference)
        if found.answer == "refuted":
            (finding,) = (f for f in found.findings if f.answer == "refuted")
            assert is_wrong_for(mutant, reference, finding), kind
            assert not is_wrong_for(func, reference, finding)
            hidden += 1
    assert hidden


@pytest.mark.nightly
def test_trips_of_a_parallel_loop_race_across_barriers():
    func, reference = lowered("conv2d_nhwc n=1 c=4 h=5 w=5 f=4 k=3 padding=1", "v100")
    mutant = next(m for kind, m in mutants(func) if kind == "loop at once 0")  # a thread's sum over channels
    assert "races: refuted: " in str(prove_lowered(mutant, reference))
    assert is_wrong(mutant, answer(reference)) and not is_wrong(func, answer(reference))


@pytest.mark.parametrize("name", ["avx2", "v100"])
def test_kernels_with_wide_indices_can_be_wrong(name):
    from .test_instances import lowered as with_blocks

    tensors = tensors_of("max_pool2d_nchw n=1 c=2 h=5 w=5 k=3 stride=2 padding=1")
    func, reference, blocks = with_blocks(tensors, name, "int64")
    assert prove_lowered(func, reference, blocks=blocks).answer == "proven"
    right = answer(reference)
    wrong = [m for kind, m in mutants(func) if not kind.startswith(OTHER_VALUES) and is_wrong(m, right)]
    answers = [prove_lowered(m, reference, blocks=blocks).answer for m in wrong[::4]]
    assert len(answers) > 2 and set(answers) == {"refuted"}
