"""Which records a build takes, and what it says where they do not fit."""

import json
import warnings

import numpy as np
import pytest

pytestmark = pytest.mark.tvm
tvm = pytest.importorskip("tvm")

from tvm import relay  # noqa: E402

from roller_bench.replay.records import parse_line  # noqa: E402
from roller_tvm import auto_scheduler  # noqa: E402
from roller_tvm.errors import BadInput, UsageError  # noqa: E402
from roller_tvm.relay import build, tune  # noqa: E402
from roller_tvm.relay.records import RecordWarning, load_settled, read_records  # noqa: E402

TARGET, OTHER = "llvm -mcpu=core-avx2 -num-cores=2", "llvm -mcpu=skylake-avx512 -num-cores=2"


def model(depth=48):
    x = relay.var("x", shape=(32, depth))
    weight = np.random.default_rng(0).standard_normal((16, depth)).astype("float32")
    return tvm.IRModule.from_expr(relay.Function([x], relay.nn.dense(x, relay.const(weight))))


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    path = tmp_path_factory.mktemp("records") / "r.json"
    tune(model(), None, TARGET, str(path), trials=0)
    return path


def test_records_that_fit_are_taken_without_a_word(planned):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        build(model(), None, TARGET, str(planned))
    assert not [w for w in told if "a record" in str(w.message)]


def test_records_that_do_not_fit_are_told(planned):
    with pytest.warns(RuntimeWarning, match=r"none of 1 operators has a record in .*r\.json"):
        build(model(64), None, TARGET, str(planned))
    with pytest.warns(RuntimeWarning, match=r"1 of 1 operators have a record of another target alone"):
        build(model(), None, OTHER, str(planned))


def test_what_was_predicted_was_not_measured_for_any_reader(planned):
    records = read_records(planned)
    assert records and all(json.loads(r.line)["r"][2] == 0 for r in records)
    assert all(np.isinf(parse_line(1, r.line).seconds) for r in records)
    assert all(r.note.measured_s is None and r.cost >= 1 for r in records)


def test_a_record_that_tvm_cannot_read_is_left_out_by_name(planned, tmp_path):
    path = tmp_path / "odd.json"
    odd = read_records(planned)[0].line.replace("-mcpu=core-avx2", "-foo=1")
    path.write_text(odd + "\n" + planned.read_text())
    with pytest.warns(RecordWarning, match=r"odd\.json:1: TVM cannot read it"):
        loaded, _ = load_settled(path, TARGET)
    assert len(loaded) == len(read_records(planned))


def test_records_of_the_very_target_come_first_however_they_are_given(planned, tmp_path):
    own = read_records(planned)[0].line
    data = json.loads(own)
    data["r"] = [[1e-9], 0, 1.0, 1]
    data["i"][1][1] = data["i"][1][1][:-1]  # another schedule
    faster = json.dumps(data).replace("core-avx2", "skylake-avx512")
    path, target = tmp_path / "two.json", tvm.target.Target(TARGET)
    path.write_text(f"{own}\n{faster}\n")
    wanted = json.loads(own)["i"][1]
    pairs = list(auto_scheduler.load_records(str(path)))

    def steps(history):
        state = history._query_inside(target, data["i"][0][0], "")
        given = auto_scheduler.MeasureInput(pairs[0][0].task, state)
        return json.loads(auto_scheduler.measure_record.dump_record_to_string(given, pairs[0][1]))["i"][1]

    assert steps(tvm.auto_scheduler.ApplyHistoryBest(str(path))) == steps(tvm.auto_scheduler.ApplyHistoryBest(pairs))
    for records in (str(path), pairs, iter(pairs), [str(path), "missing.json"]):
        assert steps(auto_scheduler.ApplyHistoryBest(records)) == wanted
    assert steps(auto_scheduler.ApplyHistoryBestOrSample(str(path))) == wanted


def test_print_best_is_for_the_task_s_own_card(monkeypatch):
    """Without a card TVM takes sm_50, which compilers no longer know."""
    asked = []

    class Built:
        imported_modules = [type("Kernels", (), {"get_source": staticmethod(lambda: "source")})]

    def look(schedule, args, target):
        asked.append(str(target.attrs["arch"]))
        return Built

    a = tvm.te.placeholder((8, 8), name="a")
    out = tvm.te.compute((8, 8), lambda i, j: a[i, j] * 2, name="out")
    key = auto_scheduler.workload_registry.register_workload_tensors("print_best", [a, out])
    dag = auto_scheduler.ComputeDAG([a, out])
    task = auto_scheduler.SearchTask(compute_dag=dag, workload_key=key, target=tvm.target.Target("cuda -arch=sm_80"))
    monkeypatch.setattr(type(task), "_best_of", lambda self, log, compatible: (dag.get_init_state(), ""))
    monkeypatch.setattr(tvm, "build", look)
    assert task.print_best("log.json", "cuda") == "source" and asked == ["sm_80"]


def test_a_function_is_a_model_and_nothing_else_is(tmp_path):
    result = tune(model()["main"], None, TARGET, str(tmp_path / "r.json"), trials=0)
    assert len(result.tasks) >= 1
    with pytest.raises(BadInput, match="'mod' must be an IRModule"):
        tune("model.onnx", None, TARGET)
    with pytest.raises(UsageError, match="'a' is not a task number"):
        tune(model(), None, TARGET, tasks=["a"], trials=0)


def test_a_product_whose_extents_differ_is_refused(tmp_path):
    from onnx import TensorProto, helper, numpy_helper, save

    from roller_tvm.errors import UnsupportedOperator
    from roller_tvm.relay.importers import load_model

    weight = numpy_helper.from_array(np.ones((32, 16), "float32"), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "k"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 16])], [weight],
    )  # fmt: skip
    path = tmp_path / "open.onnx"
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    result = load_model(path, {"x": [2, 32]}).mod["main"].checked_type.ret_type
    assert [int(n) for n in result.shape] == [2, 16]
    with pytest.raises(UnsupportedOperator, match="a product over 33 and 32 elements"):
        load_model(path, {"x": [2, 33]})


def pools(*windows):
    """Return poolings to one size, to which Ansor gives one workload key: it leaves out their windows."""
    x = relay.var("x", shape=(1, 8, 28, 14))
    made = [relay.nn.max_pool2d(x, (k, k), (2, 2), padding=(k // 2,) * 4) for k in windows]
    return tvm.IRModule.from_expr(relay.Function([x], relay.Tuple(made)))


def test_computations_with_one_key_have_plans_and_records_of_their_own(tmp_path):
    built, log = build(pools(3, 5), None, TARGET), str(tmp_path / "r.json")
    windows = [plan.plan.partition(") register")[0].rpartition("rv1=")[2] for plan in built.roller_tvm_report.plans]
    assert windows == ["3", "5"]

    def taken(**options):
        report = build(pools(3, 5), None, TARGET, log, **options).roller_tvm_report
        return {plan.how: plan.reason for plan in report.plans}

    tune(pools(3), None, TARGET, log, trials=0)
    assert taken() == {"record": "", "planned": ""}
    assert taken(schedules="tvm") == {"record": "", "tvm": "it has no record"}
    tune(pools(5), None, TARGET, log, trials=0)
    assert taken(schedules="tvm") == {"record": ""}
