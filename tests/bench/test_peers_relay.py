"""Peers of the Relay line, and operators as Relay has them."""

import json

import pytest

pytestmark = pytest.mark.tvm
pytest.importorskip("tvm.relay")

from roller_bench import peers_relay  # noqa: E402
from roller_bench.cases import Case, load_suite  # noqa: E402
from roller_bench.peers_relay import best_record, relay_kernels  # noqa: E402
from roller_bench.relay_models import names_with_digits  # noqa: E402
from roller_bench.relay_operators import relay_function  # noqa: E402
from roller_tvm.errors import UnsupportedOperator  # noqa: E402

from ..expr.examples import EXAMPLES  # noqa: E402
from .conftest import TARGET  # noqa: E402


@pytest.mark.parametrize(("name", "params"), EXAMPLES)
def test_relay_has_the_same_operator(name, params):
    case = Case("x", name, " ".join(f"{k}={v}" for k, v in params.items()))
    if name == "layer_norm":
        with pytest.raises(UnsupportedOperator, match="splits"):
            relay_function(case)
        return
    mod, weights = relay_function(case)
    assert tuple(int(e) for e in mod["main"].ret_type.shape) == case.expression().output.shape
    inputs = {p.name_hint: tuple(int(e) for e in p.type_annotation.shape) for p in mod["main"].params}
    assert sorted(inputs.values()) == sorted(t.shape for t in case.expression().inputs)
    assert bool(weights) == (case.weighted or "bias" in params)


def test_tvms_own_kernel_is_known_where_relay_has_one(jobs):
    told = {case: json.loads((jobs.folder / p["file"]).read_text()) for case, p in jobs.prepared.items()}
    assert told["dense"]["default"] and not told["norm"]["default"]  # several kernels in Relay, one here
    with pytest.raises(UnsupportedOperator, match="no single kernel"):
        jobs.tune("norm", "untuned", 0)


@pytest.mark.nightly
def test_ansor_can_pack_the_weights_of_every_operator(jobs):
    cases = [c for c in load_suite("cpu") if c.weighted]
    assert any(c.operator == "dense" for c in cases)  # Relay calls its axes i0 and i1
    for prepared in jobs.edge.prepare([c.to_json() for c in cases], TARGET, str(jobs.folder)):
        task, case = jobs.folder / prepared["file"], Case.from_json(prepared["case"])
        opened = jobs.edge.EDGE.open(task, case, TARGET, jobs.folder)
        assert not names_with_digits(opened.dag), prepared["case"]["id"]


@pytest.mark.parametrize(
    ("operator", "params", "computing", "moving"),
    [
        ("dense", "m=4 n=32 k=16 bias=1 relu=1", ["fused_nn_contrib_dense_pack_add_nn_relu"], 0),
        ("batch_matmul", "b=2 m=8 n=8 k=16 layout=NT", ["fused_nn_batch_matmul"], 0),
        ("conv2d_nhwc", "n=1 c=8 h=8 w=8 f=16 k=3 padding=1 relu=1", ["fused_nn_conv2d_nn_relu"], 0),
        ("conv2d_nchw", "n=1 c=8 h=8 w=8 f=16 k=3 padding=1", ["fused_nn_contrib_conv2d_NCHWc"], 2),
        ("transpose", "shape=4x8 perm=1x0", [], 1),
    ],
)
def test_untuned_is_what_relay_build_makes(operator, params, computing, moving):
    import tvm

    target = tvm.target.Target(TARGET)
    found = relay_kernels(*relay_function(Case("x", operator, params)), target)
    assert [k.name for k in found if not k.moves] == computing and sum(k.moves for k in found) == moving
    if operator == "dense":  # its own schedule, whose innermost loop is of vectors; auto_scheduler's is plain loops
        assert "T.Broadcast(" in str(tvm.lower(found[0].schedule, found[0].args))


@pytest.mark.nightly
def test_ansor_goes_on_where_it_was(jobs):
    found = jobs.tune("dense", "ansor", 4)
    assert found["status"] == "ok" and found["trials"] == 4 and found["curve"]
    work = next((jobs.folder / "work").glob("*.ansor"))
    records = (work / "records.4.json").read_text()
    again = jobs.tune("dense", "ansor", 4)
    assert jobs.comes_again("dense", "ansor", 4, found)
    assert again["schedule"] == found["schedule"] and (work / "records.4.json").read_text() == records
    opened = jobs.open("dense")
    line, seconds, count = best_record(work / "records.4.json", opened.key)
    assert count == 4 and seconds > 0 and line == found["schedule"]


@pytest.mark.slow
def test_autotvms_kernels_take_weights_packed_as_while_they_were_tuned(jobs):
    from tvm import autotvm

    opened = jobs.open("dense")
    (task,) = (t for t in peers_relay._templates(opened.case, opened.target) if t.name == "dense_pack.x86")
    kernel = peers_relay._build(opened, task, task.config_space.get(0), "its first")
    told = json.loads(kernel.with_suffix(".json").read_text())
    assert not told["wrong"] and sorted(len(shape) for shape, _ in told["args"]) == [2, 2, 3]
    assert not autotvm.GLOBAL_SCOPE.in_tuning


def test_a_network_with_functions_within_becomes_one_graph():
    import tvm

    from roller_bench.relay_models import testing_model

    mod, _, inputs = testing_model("lstm")  # four steps, whose inputs TVM calls by one name
    calls: list[object] = []
    tvm.relay.analysis.post_order_visit(
        mod["main"].body, lambda e: calls.append(e.op) if isinstance(e, tvm.relay.Call) else None
    )
    assert len(inputs) == 4 and calls and all(isinstance(op, tvm.ir.Op) for op in calls)
