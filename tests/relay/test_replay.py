"""Records of a whole model, known by hashes: read back by its tasks, and held against what TVM makes of them."""

import json
import re
from math import prod

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
pytestmark = pytest.mark.tvm

from tvm import auto_scheduler, relay  # noqa: E402

from roller_bench.replay.relay import ModelWorkloads  # noqa: E402
from roller_bench.replay.replay import replay_file  # noqa: E402
from roller_tvm.cli import main  # noqa: E402
from roller_tvm.device import load_device  # noqa: E402
from roller_tvm.micro_perf.kernel import StagedKernel  # noqa: E402
from roller_tvm.planner.predict import predict  # noqa: E402
from roller_tvm.relay.tasks import extract_tasks, make_target  # noqa: E402

from ..sampling import NIGHTLY  # noqa: E402

DEVICE = load_device("v100")
#: Schedules that Ansor draws of each task, without measuring them.
DRAWN = 4


def network():
    """Both layouts, Winograd, depthwise, products, pools, softmax."""
    inputs = {"image": (1, 8, 14, 14), "frame": (1, 14, 14, 64), "rows": (2, 16, 24), "columns": (2, 16, 24)}
    image, frame, rows, columns = found = [relay.var(n, shape=s) for n, s in inputs.items()]
    shapes = {"w": (16, 8, 3, 3), "b": (16,), "dw": (16, 1, 3, 3), "d": (10, 16), "hwio": (3, 3, 64, 64)}
    v = {n: relay.var(n, shape=s) for n, s in shapes.items()}
    x = relay.nn.relu(
        relay.nn.bias_add(relay.nn.conv2d(image, v["w"], padding=(1, 1), channels=16, kernel_size=3), v["b"])
    )
    x = relay.nn.conv2d(x, v["dw"], padding=(1, 1), channels=16, kernel_size=3, groups=16)
    x = relay.nn.max_pool2d(x, pool_size=(3, 3), strides=(2, 2), padding=(1, 1))
    x = relay.nn.softmax(relay.nn.dense(relay.nn.batch_flatten(relay.nn.global_avg_pool2d(x)), v["d"]))
    y = relay.nn.conv2d(
        frame, v["hwio"], padding=(1, 1), channels=64, kernel_size=3, data_layout="NHWC", kernel_layout="HWIO"
    )
    z = relay.nn.batch_matmul(rows, columns)
    mod = tvm.IRModule.from_expr(relay.Function([*found, *v.values()], relay.Tuple([x, relay.nn.relu(y), z])))
    rng = np.random.default_rng(0)
    return mod, {n: tvm.nd.array(rng.standard_normal(s).astype("float32")) for n, s in shapes.items()}


def drawn(task):
    """Some of Ansor's sketches, filled in at random: what its first round measures."""
    few = {"sample_init_min_population": DRAWN, "evolutionary_search_population": DRAWN}
    policy = auto_scheduler.SketchPolicy(task.search_task, auto_scheduler.RandomModel(), params=few, seed=1, verbose=0)
    return list(policy.sample_initial_population())[:DRAWN]


@pytest.fixture(scope="module")
def model():
    return network()


@pytest.fixture(scope="module")
def tasks(model):
    return {t.key: t for t in extract_tasks(*model, make_target("cuda -arch=sm_70"), DEVICE)}


@pytest.fixture(scope="module")
def log(tasks, tmp_path_factory):
    """Records with synthetic costs: nothing was ever run."""
    path = tmp_path_factory.mktemp("records") / "network.json"
    for task in tasks.values():
        states = drawn(task)
        inputs = [auto_scheduler.MeasureInput(task.search_task, s) for s in states]
        costs = [auto_scheduler.MeasureResult([1e-3 * (n + 1)], 0, "", 1.0, 1) for n in range(len(states))]
        auto_scheduler.measure_record.save_records(str(path), inputs, costs)
    return path


@pytest.fixture(scope="module")
def files(model, log):
    return replay_file(log, workload_of=ModelWorkloads("network", *model, DEVICE))


def test_every_task_is_read(files, tasks):
    assert len(files) == len(tasks) and all(f.workload and f.entries for f in files)
    kinds = {f.kind for f in files}
    assert {"conv2d", "depthwise", "matmul", "pooling", "softmax"} <= kinds
    assert any("winograd" in s.name for f in files for s in f.workload.stages)
    unread = [s for f in files for s in f.skipped]
    # One softmax of Ansor's reduces twice in one kernel: said, not guessed.
    assert all("several reductions in one kernel" in s.reason for s in unread)
    assert sum(len(f.entries) for f in files) >= 0.9 * sum(f.ran for f in files)


def kernels_in(function):
    """Blocks, threads and bytes of shared memory of each kernel that a lowered function launches."""
    body = function.body
    while type(body).__name__ in ("AttrStmt", "Allocate", "DeclBuffer", "LetStmt"):
        if type(body).__name__ == "AttrStmt" and body.attr_key == "thread_extent":
            break
        body = body.body
    found = []
    for part in body.seq if isinstance(body, tvm.tir.SeqStmt) else [body]:
        extents, shared = {}, []

        def visit(node, extents=extents, shared=shared):
            if isinstance(node, tvm.tir.AttrStmt) and node.attr_key == "thread_extent":
                extents[str(node.node.thread_tag)] = int(node.value)
            if isinstance(node, tvm.tir.Allocate) and node.buffer_var.type_annotation.storage_scope == "shared":
                shared.append(prod(int(e) for e in node.extents) * np.dtype(node.dtype).itemsize)

        tvm.tir.stmt_functor.post_order_visit(part, visit)
        blocks, threads = (
            prod(e for tag, e in extents.items() if tag.startswith(kind)) for kind in ("blockIdx", "threadIdx")
        )
        found.append((blocks, threads, sum(shared)))
    return found


def test_what_is_read_is_what_tvm_lowers(files, tasks, log):
    lines, compared = log.read_text().splitlines(), 0
    for file in files:
        for entry in file.entries[:: 1 if NIGHTLY else 3]:
            given, _ = auto_scheduler.measure_record.load_record_from_string(lines[entry.record.number - 1])
            state = auto_scheduler.measure.recover_measure_input(given, True).state
            schedule, tensors = tasks[entry.record.key].search_task.compute_dag.apply_steps_from_state(state)
            lowered = kernels_in(tvm.lower(schedule, tensors)["main"])
            told = [(k.blocks, k.threads) for k in entry.kernels]
            assert told == [kernel[:2] for kernel in lowered], (file.name, entry.record.number)
            for kernel, (_, _, shared) in zip(entry.kernels, lowered, strict=True):
                assert not isinstance(kernel, StagedKernel) or kernel.shared_bytes == shared
                assert predict(kernel, DEVICE).seconds > 0
            compared += 1
    assert compared >= len(files)


def test_another_models_records_are_left_out_with_a_reason(log, model):
    x = relay.var("x", shape=(4, 8))
    other = tvm.IRModule.from_expr(relay.Function([x], relay.nn.softmax(x)))
    (file,) = replay_file(log, workload_of=ModelWorkloads("other", other, None, DEVICE))
    assert not file.entries and all("none of the 1 tasks of other" in s.reason for s in file.skipped)


def test_records_for_a_cpu_are_left_out_with_a_reason(log, model, tmp_path):
    path = tmp_path / "cpu.json"
    path.write_text(log.read_text().splitlines()[0].replace('"cuda -keys', '"llvm -keys') + "\n")
    (file,) = replay_file(path, workload_of=ModelWorkloads("network", *model, DEVICE))
    assert not file.entries and "its target is llvm" in file.skipped[0].reason
    path.write_text(re.sub('"cuda -keys[^"]*"', '""', log.read_text().splitlines()[0]) + "\n")
    (file,) = replay_file(path, workload_of=ModelWorkloads("network", *model, DEVICE))
    assert not file.entries and "its target is empty" in file.skipped[0].reason


def test_records_for_a_cpu_do_not_hide_those_for_a_gpu(log, model, tmp_path):
    line = log.read_text().splitlines()[0]
    path = tmp_path / "both.json"
    path.write_text(line.replace('"cuda -keys', '"llvm -keys') + "\n" + line + "\n")
    file, rest = replay_file(path, workload_of=ModelWorkloads("network", *model, DEVICE))
    assert [e.record.number for e in file.entries] == [2] and not file.skipped
    assert [s.number for s in rest.skipped] == [1] and "its target is llvm" in rest.skipped[0].reason


def test_the_command_reads_a_models_records(model, log, tmp_path, capsys):
    mod, params = model
    (tmp_path / "network.json").write_text(tvm.ir.save_json(mod))
    (tmp_path / "network.params").write_bytes(relay.save_param_dict(params))
    words = ["replay", str(log), "--device", "v100", "--no-xgboost", "--first-only"]
    assert main(words) == 2
    told = capsys.readouterr().err
    assert "hash alone" in told and "--tasks-of" in told
    assert main([*words, "--tasks-of", str(tmp_path / "network.json"), "--trust-model", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert {f["kind"] for f in data["files"]} >= {"conv2d", "matmul", "softmax"}
    assert len({f["name"] for f in data["files"]}) == len(data["files"])


@pytest.mark.parametrize(
    "word, told", [("testing:resnet-17", "resnet-18"), ("nowhere.onnx", "no such"), ("nowhere", "no model")]
)
def test_a_model_that_is_not_there_is_refused(log, word, told, capsys):
    assert main(["replay", str(log), "--device", "v100", "--tasks-of", word]) == 2
    assert told in capsys.readouterr().err
