"""``roller-tvm replay`` of MetaSchedule's databases: traces that its own generators sampled for CUDA, without a GPU."""

import gzip
import json

import pytest

pytestmark = pytest.mark.relax
tvm = pytest.importorskip("tvm")
from tvm import te  # noqa: E402
from tvm.s_tir import meta_schedule as ms  # noqa: E402
from tvm.s_tir.meta_schedule.arg_info import ArgInfo  # noqa: E402
from tvm.s_tir.meta_schedule.database import JSONDatabase, TuningRecord  # noqa: E402

from roller_bench.replay import databases  # noqa: E402
from roller_bench.replay.relax import NO_TIME, replay_database  # noqa: E402
from roller_tvm.cli import main  # noqa: E402
from roller_tvm.micro_perf.kernel import ReduceKernel, StagedKernel  # noqa: E402
from roller_tvm.relax import database as own  # noqa: E402
from roller_tvm.te import te_operator  # noqa: E402
from roller_tvm.tuning.results import UNMEASURED  # noqa: E402

CUDA = {
    "kind": "cuda", "arch": "sm_80", "max_threads_per_block": 1024, "max_shared_memory_per_block": 49152,
    "thread_warp_size": 32,
}  # fmt: skip
WORKLOADS = {
    "conv2d": ("conv2d_nchw", dict(n=1, c=16, h=14, w=14, f=32, kh=3, kw=3, padding=1, relu=True)),
    "reduction": ("reduce_sum", dict(shape=(128, 1024), axis=(1,))),
}
COUNT = 4


def sampled(mod, target, count):
    """Schedules as MetaSchedule's generators and post-processors make them: none is built."""
    context = ms.TuneContext(
        mod=mod, target=target, space_generator="post-order-apply", search_strategy="replay-trace", rand_state=7,
        num_threads=1,
    )  # fmt: skip
    spaces = context.generate_design_space()
    database = ms.database.MemoryDatabase()
    context.pre_tuning(
        max_trials=count, num_trials_per_iter=count, design_spaces=spaces, database=database, cost_model=None
    )
    return [candidate.sch for candidate in context.generate_measure_candidates()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A database of two workloads, timed by nobody: the n-th record says n tenths of a millisecond.

    MetaSchedule imports tensor intrinsics for half a minute first: nightly.
    """
    path = tmp_path_factory.mktemp("records")
    target = tvm.target.Target(CUDA).with_host("llvm")
    database = JSONDatabase(work_dir=str(path))
    for operator, params in WORKLOADS.values():
        mod = tvm.IRModule({"main": te.create_prim_func(te_operator(operator, **params))})
        workload = database.commit_workload(mod)
        arguments = ArgInfo.from_prim_func(mod["main"])
        for n, schedule in enumerate(sampled(mod, target, COUNT), 1):
            database.commit_tuning_record(TuningRecord(schedule.trace, workload, [n * 1e-4], target, arguments))
    return path


def lines_of(folder):
    return (folder / databases.RECORDS).read_text().splitlines()


@pytest.fixture
def spoilt(folder, tmp_path):
    """The same with lines that are no records, and records of other kinds; gzipped."""
    first, *others = lines_of(folder)
    failed, on_a_cpu, foreign, damaged = (json.loads(first) for _ in range(4))
    failed[1][1] = [1e10]
    on_a_cpu[1][2] = {"kind": "llvm", "num-cores": 4}
    foreign[0] = 7
    damaged[1][0][0][0] = ["GetSBlock", [], ["nowhere", "main"], ["b0"]]
    lines = [first, json.dumps(failed), json.dumps(on_a_cpu), "{}", json.dumps(foreign), json.dumps(damaged), *others]
    data = "\n".join([*lines, first[:200]]).encode()
    (tmp_path / f"{databases.RECORDS}.gz").write_bytes(gzip.compress(data))
    (tmp_path / databases.WORKLOADS).write_bytes((folder / databases.WORKLOADS).read_bytes())
    return tmp_path


@pytest.mark.nightly
def test_sampled_schedules_are_read_as_kernels(folder):
    files = {file.kind: file for file in replay_database(folder)}
    assert set(files) == set(WORKLOADS)
    for file in files.values():
        assert len(file.entries) == file.ran == COUNT and not file.skipped
        assert [e.measured for e in file.entries] == pytest.approx([n * 1e-4 for n in range(1, COUNT + 1)])
    for entry in files["conv2d"].entries:
        (kernel,) = entry.kernels
        assert isinstance(kernel, StagedKernel)
        outputs = kernel.blocks * kernel.threads * kernel.outputs
        assert outputs == 32 * 14 * 14, "the tiles cover the outputs once"
        assert kernel.steps * kernel.depth == 16 * 9
        assert kernel.stages in (1, 3, 4, 5) and kernel.unroll_limit in (0, 16, 32, 64, 128, 256, 512, 1024)
    of_sums = [e.kernels[0] for e in files["reduction"].entries]
    assert any(isinstance(k, ReduceKernel) for k in of_sums), "one of the two designs shares a sum among threads"
    for kernel in of_sums:
        assert kernel.blocks * (kernel.rows if isinstance(kernel, ReduceKernel) else kernel.threads) >= 128


@pytest.mark.nightly
def test_bad_lines_are_counted_by_number_and_the_rest_is_read(spoilt):
    first = [file for file in replay_database(spoilt) if file.kind == "conv2d"][0]
    assert first.ran == COUNT + 2, "what failed did not run"
    reasons = {s.number: s.reason for s in first.skipped}
    assert "llvm: kernels of GPUs alone" in reasons[3] and "cannot be applied" in reasons[6]
    (lost,) = [file for file in replay_database(spoilt) if file.workload is None]
    told = {s.number: s.reason for s in lost.skipped}
    assert "no record of MetaSchedule" in told[4] and "no workload 7" in told[5] and "cut off" in told[6 + 2 * COUNT]
    assert [e.order for e in first.entries] == [0, *range(3, 2 + COUNT)]


@pytest.mark.nightly
def test_the_command_judges_a_database_like_a_file_of_ansor(spoilt, capsys):
    assert main(["replay", str(spoilt), "--device", "a100", "--no-xgboost", "--json"]) == 0
    files = {f["kind"]: f for f in json.loads(capsys.readouterr().out)["files"]}
    assert files["conv2d"]["first"]["model"]["count"] == COUNT
    assert files["reduction"]["share_read"] == 1.0 and files["conv2d"]["share_read"] < 1.0


@pytest.mark.nightly
def test_records_of_a_cpu_are_refused(folder, tmp_path, capsys):
    data = json.loads(lines_of(folder)[0])
    data[1][2] = {"kind": "llvm"}
    (tmp_path / databases.RECORDS).write_text(json.dumps(data) + "\n")
    (tmp_path / databases.WORKLOADS).write_bytes((folder / databases.WORKLOADS).read_bytes())
    assert main(["replay", str(tmp_path), "--device", "a100", "--no-xgboost"]) == 3
    assert "kernels of GPUs alone" in capsys.readouterr().err


def test_names_and_times_are_those_of_the_store():
    assert (own.WORKLOADS, own.RECORDS, own.NOTES) == (databases.WORKLOADS, databases.RECORDS, databases.NOTES)
    assert 1e-6 * UNMEASURED >= NO_TIME, "a prediction where a time would be is none"
