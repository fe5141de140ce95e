"""Dense layers with constant weights are packed by `build`, and a plain TVM still finds records of its own."""

import json
import math

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
pytestmark = pytest.mark.tvm

from tvm import relay  # noqa: E402

from roller_tvm.device import load_device  # noqa: E402
from roller_tvm.relay import build, tune  # noqa: E402
from roller_tvm.relay.building import FUSION  # noqa: E402
from roller_tvm.relay.dense_weights import NamedAxes, constant_dense, history_of, packs_dense  # noqa: E402
from roller_tvm.relay.records import kept_line, load_for_build, load_settled  # noqa: E402
from roller_tvm.relay.tasks import FOR_TVM, extract_tasks, make_target  # noqa: E402
from roller_tvm.tuning.session import Limits  # noqa: E402

TARGET = "llvm -num-cores 2"
#: TVM's own kernel never stays for being faster: which one is, on operators this small, is chance.
OURS = Limits(margin=1.0)
RNG = np.random.default_rng(0)
WEIGHTS = {"w": RNG.standard_normal((64, 96), dtype="float32"), "b": RNG.standard_normal(64, dtype="float32")}
INPUTS = {"x": RNG.standard_normal((32, 96), dtype="float32"), "y": RNG.standard_normal((40, 64), dtype="float32")}


def model():
    """A layer, and a product with what is given at run time."""
    x, y, w, b = (relay.var(n, shape=a.shape) for n, a in (INPUTS | WEIGHTS).items())
    hidden = relay.nn.relu(relay.nn.bias_add(relay.nn.dense(x, w), b))
    return tvm.IRModule.from_expr(relay.Function([x, y, w, b], relay.nn.dense(hidden, y)))


def expected():
    return np.maximum(INPUTS["x"] @ WEIGHTS["w"].T + WEIGHTS["b"], 0) @ INPUTS["y"].T


def result(lib):
    from tvm.contrib import graph_executor

    module = graph_executor.GraphModule(lib["default"](tvm.cpu()))
    module.set_input(**INPUTS)
    module.run()
    return module.get_output(0).numpy()


def weight_of(lib):
    """Shape of the weight as the library keeps it."""
    (shape,) = [v.shape for v in lib.get_params().values() if np.prod(v.shape) == WEIGHTS["w"].size]
    return shape


def plain_build(records):
    from tvm import auto_scheduler

    config = {"relay.backend.use_auto_scheduler": True}
    with auto_scheduler.ApplyHistoryBest(str(records)), tvm.transform.PassContext(opt_level=3, config=config):
        return relay.build(model(), TARGET, params=WEIGHTS)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    log = tmp_path_factory.mktemp("dense") / "records.json"
    return log, tune(model(), WEIGHTS, TARGET, log, trials=0)


def names(mod):
    found = []
    relay.analysis.post_order_visit(
        mod["main"], lambda e: found.append(e.op.name) if isinstance(e, relay.Call) else None
    )
    return [name for name in found if name in ("nn.dense", "nn.matmul")]


def test_only_constant_weights_are_those_of_dense():
    assert names(constant_dense(model(), WEIGHTS)) == ["nn.dense", "nn.matmul"]
    assert names(constant_dense(model(), None)) == ["nn.matmul", "nn.matmul"]
    bound = tvm.IRModule.from_expr(relay.build_module.bind_params_by_name(model()["main"], WEIGHTS))
    again = constant_dense(bound, None)
    assert names(again) == ["nn.dense", "nn.matmul"]
    none = constant_dense(tvm.IRModule.from_expr(relay.var("x", shape=(1,))), None)["main"]
    assert none.body.same_as(none.params[0])
    # What follows from a parameter alone is constant: importers transpose weights.
    x, w = relay.var("x", shape=(16, 24)), relay.var("w", shape=(24, 32))
    mod = tvm.IRModule.from_expr(relay.Function([x, w], relay.nn.dense(x, relay.transpose(w))))
    assert names(constant_dense(mod, {"w"})) == ["nn.dense"] and names(constant_dense(mod, ())) == ["nn.matmul"]


def test_the_other_workload_is_the_one_that_tvm_looks_for():
    from tvm import auto_scheduler

    target = make_target(TARGET)
    ours = extract_tasks(model(), WEIGHTS, target, load_device("cpu"))
    theirs, _ = auto_scheduler.extract_tasks(model()["main"], WEIGHTS, target)
    twice = [task for task in ours if not task.weight]
    assert [task.name for task in twice] == [f"nn_dense_add_nn_relu {FOR_TVM}"]
    called = {task.key for task in ours}
    assert {str(t.workload_key) for t in theirs} <= called, "and the product of two inputs under TVM's names alone"
    assert len(called) == len(theirs) + 1
    gpu = extract_tasks(model(), WEIGHTS, make_target("cuda -arch=sm_70"), load_device("v100"))
    assert all(task.weight for task in gpu), "weights of GPU kernels stay as they are"


def test_build_packs_weights_and_computes_what_it_should(tuned):
    log, tuning = tuned
    status = {t.task.name: t.status for t in tuning.tasks}
    assert status[f"nn_dense_add_nn_relu {FOR_TVM}"] == status["nn_dense_add_nn_relu"] == "planned"
    lib = build(model(), WEIGHTS, TARGET, log)
    np.testing.assert_allclose(result(lib), expected(), rtol=1e-4, atol=1e-4)
    assert len(weight_of(lib)) > 2, "packed before it runs"
    assert "layout_transform" not in lib.get_graph_json(), "and nothing in each run"


def test_a_plain_tvm_has_records_of_its_own(tuned):
    log, _ = tuned
    lib = plain_build(log)
    np.testing.assert_allclose(result(lib), expected(), rtol=1e-4, atol=1e-4)
    assert weight_of(lib) == WEIGHTS["w"].shape


@pytest.mark.nightly
def test_a_second_tuning_finds_all_of_it_done(tuned):
    log, _ = tuned
    before = log.read_text()
    assert {t.status for t in tune(model(), WEIGHTS, TARGET, log, trials=0).tasks} == {"resumed"}
    assert log.read_text() == before
    # What only TVM alone would build is not measured, whatever else is.
    timed = {t.task.name: t.status for t in tune(model(), WEIGHTS, TARGET, log, trials=2, limits=OURS).tasks}
    assert timed.pop(f"nn_dense_add_nn_relu {FOR_TVM}") == "resumed" and set(timed.values()) == {"measured"}


@pytest.mark.nightly
def test_the_sum_of_a_run_counts_what_is_built(tmp_path):
    tuning = tune(model(), WEIGHTS, TARGET, None, trials=1, limits=OURS)
    assert math.isnan(next(t.default_s for t in tuning.tasks if not t.task.weight))
    counted = [t for t in tuning.tasks if t.task.weight]
    assert tuning.latency_s == pytest.approx(sum(t.seconds * t.task.weight for t in counted))
    assert tuning.default_latency_s == pytest.approx(sum(t.default_s * t.task.weight for t in counted))


def test_records_of_tvms_names_serve_where_there_are_no_others(tuned, tmp_path, monkeypatch):
    from tvm import auto_scheduler

    log, tuning = tuned
    keys = {t.task.name: t.task.key for t in tuning.tasks}
    own, twin = keys["nn_dense_add_nn_relu"], keys[f"nn_dense_add_nn_relu {FOR_TVM}"]
    some = tmp_path / "some.json"
    some.write_text("".join(ln for ln in log.read_text().splitlines(True) if json.dumps(own)[1:-1] not in ln))
    assert len(some.read_text()) < len(log.read_text())
    asked = {}
    query = auto_scheduler.ApplyHistoryBest._query_inside

    def spy(self, target, key, name):
        asked[key] = query(self, target, key, name)
        return asked[key]

    monkeypatch.setattr(auto_scheduler.ApplyHistoryBest, "_query_inside", spy)
    lib = build(model(), WEIGHTS, TARGET, some)
    assert asked.get(own) is None and asked[twin] is not None
    np.testing.assert_allclose(result(lib), expected(), rtol=1e-4, atol=1e-4)
    assert weight_of(lib) == WEIGHTS["w"].shape, "as its record says"


def test_names_are_tvms_again_afterwards():
    from tvm import te, topi

    def axes():
        product = topi.nn.dense(te.placeholder((4, 8)), te.placeholder((6, 8)))
        return [a.var.name for a in product.op.axis]

    with NamedAxes():
        assert axes() == ["i", "j"]
        with NamedAxes(False):
            assert axes() == ["i", "j"]
        deep = topi.nn.dense(te.placeholder((2, 4, 8)), te.placeholder((6, 8)))
        assert [a.var.name for a in deep.op.axis] == ["i0", "i1", "i2"]
    assert axes() == ["i0", "i1"]


def test_names_stay_while_another_thread_needs_them():
    from tvm import te, topi

    first, second = NamedAxes(), NamedAxes()
    first.__enter__()
    second.__enter__()
    first.__exit__()
    product = topi.nn.dense(te.placeholder((4, 8)), te.placeholder((6, 8)))
    assert [a.var.name for a in product.op.axis] == ["i", "j"]
    second.__exit__()
    product = topi.nn.dense(te.placeholder((4, 8)), te.placeholder((6, 8)))
    assert [a.var.name for a in product.op.axis] == ["i0", "i1"]


def test_layers_of_integers_stay_as_tvm_has_them():
    x, w = relay.var("x", shape=(16, 24), dtype="int8"), relay.var("w", shape=(32, 24), dtype="int8")
    mod = tvm.IRModule.from_expr(relay.Function([x, w], relay.nn.dense(x, w, out_dtype="int32")))
    assert names(constant_dense(mod, ())) == ["nn.dense"]
    tasks = extract_tasks(mod, {"w": np.zeros((32, 24), "int8")}, make_target(TARGET), load_device("cpu"))
    assert tasks and all(task.weight for task in tasks)


def test_layers_within_control_flow_keep_tvms_names():
    """Nothing sees there which weights are constant, and only TVM's virtual machine builds such a model."""
    x, c = relay.var("x", shape=(16, 24)), relay.var("c", shape=(), dtype="bool")
    w, v = relay.var("w", shape=(32, 24)), relay.var("v", shape=(32, 24))
    chosen = relay.If(c, relay.nn.dense(x, w), relay.nn.relu(relay.nn.dense(x, v)))
    mod = tvm.IRModule.from_expr(relay.Function([x, c, w, v], chosen))
    weights = {n: np.zeros((32, 24), "float32") for n in "wv"}
    assert not packs_dense(mod, make_target(TARGET)) and packs_dense(model(), make_target(TARGET))
    assert not packs_dense(model(), make_target("cuda -arch=sm_70"))
    tasks = extract_tasks(mod, weights, make_target(TARGET), load_device("cpu"))
    assert [task.weight for task in tasks if "dense" in task.name] == [1, 1]


def test_one_workload_is_one_task():
    """A layer, and a product of inputs of its shapes: TVM has one workload for both."""
    x, y, w = (relay.var(n, shape=s) for n, s in (("x", (16, 24)), ("y", (32, 24)), ("w", (32, 24))))
    out = relay.Tuple([relay.nn.dense(x, w), relay.nn.dense(x, y)])
    mod = tvm.IRModule.from_expr(relay.Function([x, y, w], out))
    tasks = extract_tasks(mod, {"w": np.zeros((32, 24), "float32")}, make_target(TARGET), load_device("cpu"))
    assert len({task.key for task in tasks}) == len(tasks) == 2 and all(task.weight for task in tasks)


def test_what_was_left_to_tvm_is_left_to_tvm(tuned, tmp_path):
    """Its record for TVM's names was not held against TVM's own kernel."""
    log, tuning = tuned
    keys = {t.task.name: t.task.key for t in tuning.tasks}
    own, twin = keys["nn_dense_add_nn_relu"], keys[f"nn_dense_add_nn_relu {FOR_TVM}"]
    kept = tmp_path / "kept.json"
    lines = [ln for ln in log.read_text().splitlines(True) if json.dumps(own)[1:-1] not in ln]
    kept.write_text("".join(lines) + kept_line(own, tuning.target, "it is faster", 10))
    history = history_of(*load_settled(kept, tuning.target))
    target = make_target(TARGET)
    assert history._query_inside(target, own, "") is None and history._query_inside(target, twin, "") is not None
    without = history_of(load_for_build(kept, tuning.target), load_settled(kept, "llvm -num-cores 3")[1])
    assert without._query_inside(target, own, "") is not None


def test_a_record_of_this_target_goes_before_one_of_another(tuned, tmp_path):
    log, tuning = tuned
    keys = {t.task.name: t.task.key for t in tuning.tasks}
    own, twin = keys["nn_dense_add_nn_relu"], keys[f"nn_dense_add_nn_relu {FOR_TVM}"]
    history = history_of(load_for_build(log, tuning.target), {twin: {}})
    target = make_target(TARGET)
    assert history._query_inside(target, own, "").same_as(history._query_inside(target, twin, ""))
    both = history_of(load_for_build(log, tuning.target), {own: {}, twin: {}})
    assert not both._query_inside(target, own, "").same_as(both._query_inside(target, twin, ""))


@pytest.mark.nightly
def test_tuning_and_building_fuse_alike_on_a_cpu(tmp_path):
    """What is fused depends on whether a layer's weights would be packed: on both sides or on none."""
    x = relay.var("x", shape=(8, 32))
    weights = [relay.var(n, shape=(32, 32)) for n in "qkv"]
    q, k, v = (relay.nn.dense(x, w) for w in weights)
    mod = tvm.IRModule.from_expr(relay.Function([x, *weights], relay.Tuple([relay.nn.softmax(q) + k, v])))
    params = {n: RNG.standard_normal((32, 32), dtype="float32") for n in "qkv"}
    log = tmp_path / "records.json"
    tuning = tune(mod, params, TARGET, log, trials=0, fuse_rtasks=True)
    built = build(mod, params, TARGET, log, fuse_rtasks=True)
    assert getattr(built, FUSION).to_json() == tuning.fusion.to_json()
