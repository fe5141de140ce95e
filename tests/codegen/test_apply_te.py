"""Steps applied to an Ansor State, and so to a TE schedule."""

import pytest

tvm = pytest.importorskip("tvm")
pytestmark = pytest.mark.tvm

from roller_tvm.codegen.apply_te import TeProgram, apply_steps_state, apply_steps_te  # noqa: E402
from roller_tvm.errors import MeasureError  # noqa: E402
from roller_tvm.roller.steps import CacheWrite, Fuse, Split, Vectorize  # noqa: E402
from roller_tvm.te.read import read_te  # noqa: E402

from ..relay import programs as P  # noqa: E402

CASES = {
    "cuda matmul": (P.matmul, P.CUDA_MATMUL),
    "cuda conv": (P.conv, P.CUDA_CONV),
    "cuda split k": (P.matmul, P.CUDA_SPLIT_K),
}


def of(tensors):
    """(dag, its program) of what TE computes."""
    dag = tvm.auto_scheduler.ComputeDAG(tensors)
    return dag, TeProgram.of_reading(read_te(dag), dag.tensors)


def lowered(case):
    made, steps = CASES[case]
    dag, program = of(made())
    return tvm.lower(*apply_steps_te(program, steps, dag))


@pytest.mark.parametrize(
    "case, words",
    [
        ("cuda matmul", ['"shared"', "threadIdx_x // 8 * 128", "C_local_1[14:16]"]),
        ("cuda split k", ["C_rf"]),
        ("cuda conv", ["pad_temp_shared", "T.if_then_else"]),
    ],
)
def test_what_was_asked_is_in_the_program(case, words):
    text = lowered(case).script()
    for word in words:
        assert word in text


def test_duplicate_names_of_te_get_names_of_their_own():
    _, program = of(P.matmul_relu())
    assert [n for n in program.ops if n.startswith("T_add")] == ["T_add", "T_add_1"]


def test_storage_align_pads_the_rows():
    # 32 rows of 8 elements become rows of 12.
    assert "A_shared = T.allocate([384]" in lowered("cuda matmul").script()


@pytest.mark.parametrize(
    "step, part",
    [
        (Split("D", "i", (4,), ("a", "b")), "no stage 'D'"),
        (Vectorize("C", "z"), "no loop 'z' (has i, j, k)"),
        (Fuse("C", ("i", "k"), "f"), "must be adjacent"),
    ],
)
def test_a_step_that_does_not_apply_is_named(step, part):
    with pytest.raises(MeasureError) as caught:
        apply_steps_state(*of(P.matmul()), [step])
    assert part in str(caught.value) and caught.value.kind == "schedule error"


def test_cache_write_after_a_split_is_refused():
    steps = [Split("C", "i", (4,), ("a", "b")), CacheWrite("C", "local", "L")]
    with pytest.raises(MeasureError, match="must come before"):
        apply_steps_state(*of(P.matmul()), steps)
