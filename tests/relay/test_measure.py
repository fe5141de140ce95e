"""Measuring in worker processes: candidates that crash, hang or lie cost themselves alone."""

import time
from pathlib import Path

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
pytestmark = pytest.mark.tvm

from tvm import auto_scheduler  # noqa: E402

from roller_tvm.codegen.apply_te import TeProgram, apply_steps_state  # noqa: E402
from roller_tvm.errors import MeasureError  # noqa: E402
from roller_tvm.relay.reference import difference, make_inputs, reduction_terms, tolerance  # noqa: E402
from roller_tvm.relay.worker_side import record_line, work_of  # noqa: E402
from roller_tvm.roller.steps import Parallel, Split  # noqa: E402
from roller_tvm.te.read import read_te  # noqa: E402
from roller_tvm.tuning.measurer import Measurer  # noqa: E402
from roller_tvm.tuning.supervise import Pool  # noqa: E402

from . import programs as P  # noqa: E402

TARGET = "llvm -num-cores 2"


@pytest.fixture(scope="module")
def task():
    key = auto_scheduler.workload_registry.register_workload_tensors("roller_test_matmul", P.matmul())
    return auto_scheduler.SearchTask(workload_key=key, target=tvm.target.Target(TARGET))


def states(task, tiles):
    program = TeProgram.of_reading(read_te(task.compute_dag), task.compute_dag.tensors)
    lists = [[Parallel("C", "i"), Split("C", "j", (tile,), ("j0", "j1"))] for tile in tiles]
    return [apply_steps_state(task.compute_dag, program, steps) for steps in lists]


def measured(pool, task, candidates, how="time", weights=(), **options):
    """What became of States of a task."""
    lines = [record_line(task, state) for state in candidates]
    return Measurer(pool, **options).measure(work_of(task, weights), lines, how)


def test_workers_end_with_the_pool():
    with Pool(1, threads=1) as pool:
        assert pool.workers[0].call("hello", (), 60).ok
        process = pool.workers[0].process
    assert process.poll() is not None


def test_the_tolerance_sees_one_lost_term_of_a_long_sum():
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 64, 4608)).astype("float32")
    expected = (a * b).sum(axis=1)
    other_order = (a * b)[:, ::-1].astype("float64").sum(axis=1).astype("float32")
    lost = (a * b)[:, 1:].sum(axis=1)
    assert difference(other_order, expected, 4608) == ""
    assert "error" in difference(lost, expected, 4608)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_no_sum_is_so_long_that_a_kernel_that_writes_zeros_is_right(dtype):
    expected = np.random.default_rng(0).standard_normal(64).astype("float32")
    assert tolerance(dtype, 4608) < 1
    if dtype == "float16":
        assert "error" in difference(np.zeros(64, dtype), expected.astype(dtype), 4608)


def test_errors_of_reductions_in_a_row_add_up_and_do_not_multiply():
    from tvm import te

    a = te.placeholder((8, 512, 512), name="a")
    r, q = (te.reduce_axis((0, 512), name=n) for n in "rq")
    rows = te.compute((8, 512), lambda i, j: te.sum(a[i, j, r], r), name="rows")
    total = te.compute((8,), lambda i: te.sum(rows[i, q], q), name="total")
    assert reduction_terms([rows.op, total.op]) == 4 * 512  # not 512 * 512
    assert reduction_terms([a.op]) == 1


def test_a_sum_kept_in_a_coarser_type_than_the_result_rounds_as_in_that_type():
    from tvm import te

    a = te.placeholder((8, 512), "float16", name="a")
    r = te.reduce_axis((0, 512), name="r")
    rows = te.compute((8,), lambda i: te.sum(a[i, r], r), name="rows")
    cast = te.compute((8,), lambda i: rows[i].astype("float32"), name="cast")
    assert tolerance("float32", reduction_terms([a.op, rows.op, cast.op])) == tolerance("float16", 512)
    wide = te.compute((8, 512), lambda i, j: a[i, j].astype("float32"), name="wide")
    exact = te.compute((8,), lambda i: te.sum(wide[i, r], r), name="exact")
    assert reduction_terms([a.op, wide.op, exact.op]) == 512  # inputs are what they are
    x = te.placeholder((1, 512, 6, 6), "float16", name="x")
    w = te.placeholder((8, 512, 3, 3), "float16", name="w")
    conv = tvm.topi.nn.conv2d_nchw(x, w, 1, 1, 1, "float32")
    assert reduction_terms(auto_scheduler.ComputeDAG([x, w, conv]).ops) == 4608  # padding rounds nothing
    half = te.placeholder((), name="half")
    scaled = te.compute((8,), lambda i: exact[i] * half[()], name="scaled")
    assert reduction_terms([a.op, wide.op, exact.op, half.op, scaled.op]) == 512


def test_bytes_are_given_all_their_values_and_indices_stay_within_two_rows():
    from tvm import te

    kinds = ("int8", "uint8", "int32", "bool")
    values = make_inputs([te.placeholder((4096,), name=f"x{n}", dtype=d) for n, d in enumerate(kinds)])
    assert [(int(v.min()), int(v.max())) for v in values] == [(-128, 127), (0, 255), (0, 1), (0, 1)]


@pytest.mark.parametrize(
    "got, part",
    [
        (np.array([1.0, np.nan], "float32"), "NaN or infinite in one only"),
        (np.array([1.0, 2.1], "float32"), "error"),
        (np.array([1.0], "float32"), "shape"),
    ],
)
def test_results_that_differ_say_how(got, part):
    assert part in difference(got, np.array([1.0, 2.0], "float32"), 1)


def test_equal_nans_and_infinities_agree():
    values = np.array([1.0, np.nan, np.inf], "float32")
    assert difference(values, values.copy(), 1) == ""
    assert "infinities" in difference(np.array([1.0, np.nan, -np.inf], "float32"), values, 1)


def test_integers_must_be_equal():
    assert difference(np.array([1, 2]), np.array([1, 3]), 1) == "1 of 2 integers differ"
    assert tolerance("int32", 10) == 0


def test_inputs_are_the_same_in_every_process_and_differ_by_tensor():
    from tvm import te

    tensors = [te.placeholder((33, 17), name=n) for n in "ab"]
    first, second = make_inputs(tensors), make_inputs(tensors)
    assert np.array_equal(first[0], second[0]) and not np.array_equal(first[0], first[1])


def test_other_workers_stand_still_while_one_measures():
    with Pool(2, threads=1) as pool:
        first, second = pool.workers
        pids = [w.call("hello", (), 60).value for w in pool.workers]
        with pool.alone(first):
            assert first.call("hello", (), 60).ok
            until = time.monotonic() + 10  # on a busy machine the signal takes a while to arrive
            while "State:\tT" not in Path(f"/proc/{pids[1]}/status").read_text():
                assert time.monotonic() < until
                time.sleep(0.01)
        assert second.call("hello", (), 60).value == pids[1]


def test_a_reference_without_numbers_proves_nothing():
    from tvm import te

    a = te.placeholder((16, 16), name="a")
    tensors = [a, te.compute((16, 16), lambda i, j: te.sqrt(-1.0 - te.abs(a[i, j])), name="never")]
    key = auto_scheduler.workload_registry.register_workload_tensors("roller_test_nan", tensors)
    task = auto_scheduler.SearchTask(workload_key=key, target=tvm.target.Target(TARGET))
    with Pool(1, threads=1) as pool, pytest.raises(MeasureError, match="NaN everywhere"):
        measured(pool, task, [task.compute_dag.get_init_state()], "check")
