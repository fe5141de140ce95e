"""One list of steps, two ways of applying it: both must give the same program."""

import pytest

tvm = pytest.importorskip("tvm")
pytestmark = pytest.mark.tvm

from roller_tvm.errors import MeasureError  # noqa: E402
from roller_tvm.relay.apply_state import apply_steps_state  # noqa: E402
from roller_tvm.relay.apply_te import apply_steps_te  # noqa: E402
from roller_tvm.relay.loops import TeProgram  # noqa: E402
from roller_tvm.roller.steps import CacheWrite, Fuse, Split, Vectorize  # noqa: E402

from . import programs as P  # noqa: E402

CASES = {
    "cpu matmul": (P.matmul_relu, P.CPU_MATMUL_RELU, "llvm"),
    "cuda matmul": (P.matmul, P.CUDA_MATMUL, "cuda -arch=sm_80"),
    "cuda conv": (P.conv, P.CUDA_CONV, "cuda -arch=sm_80"),
    "cuda split k": (P.matmul, P.CUDA_SPLIT_K, "cuda -arch=sm_80"),
    "cuda cross thread": (P.row_sum, P.CUDA_CROSS_THREAD, "cuda -arch=sm_80"),
}


def lowered(case):
    program, steps, target = CASES[case]
    dag = tvm.auto_scheduler.ComputeDAG(program())
    names = TeProgram.of_dag(dag)
    state = apply_steps_state(dag, names, steps)
    by_state = tvm.lower(*dag.apply_steps_from_state(state))
    by_te = tvm.lower(*apply_steps_te(names, steps))
    return by_te, by_state, target


@pytest.mark.parametrize("case", CASES)
def test_te_and_state_give_the_same_program(case):
    by_te, by_state, _ = lowered(case)
    tvm.ir.assert_structural_equal(by_te, by_state)


@pytest.mark.parametrize(
    "case, words",
    [
        ("cuda matmul", ['"shared"', "threadIdx_x // 8 * 128", "C_local_1[14:16]"]),
        ("cuda split k", ["C_rf"]),
        ("cuda conv", ["pad_temp_shared", "T.if_then_else"]),
    ],
)
def test_what_was_asked_is_in_the_program(case, words):
    by_te, _, _ = lowered(case)
    text = by_te.script()
    for word in words:
        assert word in text


def test_duplicate_names_of_te_get_names_of_their_own():
    dag = tvm.auto_scheduler.ComputeDAG(P.matmul_relu())
    assert [n for n in TeProgram.of_dag(dag).ops if n.startswith("T_add")] == ["T_add", "T_add_1"]


def test_storage_align_pads_the_rows():
    by_te, by_state, _ = lowered("cuda matmul")
    for mod in (by_te, by_state):
        # 32 rows of 8 elements become rows of 12.
        assert "A_shared = T.allocate([384]" in mod.script()


@pytest.mark.parametrize(
    "step, part",
    [
        (Split("D", "i", (4,), ("a", "b")), "no stage 'D'"),
        (Vectorize("C", "z"), "no loop 'z' (has i, j, k)"),
        (Fuse("C", ("i", "k"), "f"), "must be adjacent"),
    ],
)
def test_a_step_that_does_not_apply_is_named(step, part):
    dag = tvm.auto_scheduler.ComputeDAG(P.matmul())
    with pytest.raises(MeasureError) as caught:
        apply_steps_state(dag, TeProgram.of_dag(dag), [step])
    assert part in str(caught.value) and caught.value.kind == "schedule error"


def test_cache_write_after_a_split_is_refused():
    dag = tvm.auto_scheduler.ComputeDAG(P.matmul())
    steps = [Split("C", "i", (4,), ("a", "b")), CacheWrite("C", "local", "L")]
    for apply in (
        lambda: apply_steps_state(dag, TeProgram.of_dag(dag), steps),
        lambda: apply_steps_te(TeProgram.of_dag(dag), steps),
    ):
        with pytest.raises(MeasureError, match="must come before"):
            apply()


def test_names_of_a_reading_drive_the_same_steps():
    from roller_tvm.te.read import read_te

    dag = tvm.auto_scheduler.ComputeDAG(P.matmul_relu())
    program = TeProgram.of_reading(read_te(dag), dag.tensors)
    state = apply_steps_state(dag, program, P.CPU_MATMUL_RELU)
    by_state = tvm.lower(*dag.apply_steps_from_state(state))
    tvm.ir.assert_structural_equal(by_state, tvm.lower(*apply_steps_te(program, P.CPU_MATMUL_RELU)))
