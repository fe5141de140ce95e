"""A Relay model explored while it runs: every variant is right, winners become Ansor's records, bad ones never run."""

import json
import subprocess

import numpy as np
import pytest

pytestmark = [pytest.mark.tvm, pytest.mark.usefixtures("kept_kernels")]
tvm = pytest.importorskip("tvm")

from tvm import relay  # noqa: E402

import roller_tvm  # noqa: E402
from roller_tvm import exploring  # noqa: E402
from roller_tvm.errors import UsageError  # noqa: E402
from roller_tvm.relay import exploring as relay_exploring  # noqa: E402
from roller_tvm.relay.model_line import RelayModels  # noqa: E402
from roller_tvm.relay.records import read_records  # noqa: E402

from ..sampling import sampled  # noqa: E402

TARGET = "llvm -num-cores=1"
X = np.random.default_rng(1).standard_normal((1, 8, 12, 12)).astype("float32")


def network():
    """Two equal convolutions, one beside them, and products whose plans want their weights in many layouts."""
    rng = np.random.default_rng(0)

    def weight(*shape):
        return relay.const(rng.standard_normal(shape).astype("float32"))

    def conv(y, size):
        made = relay.nn.conv2d(y, weight(8, 8, size, size), padding=(size // 2,) * 2, channels=8,
                               kernel_size=(size, size))  # fmt: skip
        return relay.nn.relu(made)

    x = relay.var("x", shape=X.shape)
    y = relay.concatenate([conv(conv(x, 3), 3), conv(x, 1)], 1)
    y = relay.nn.relu(relay.nn.dense(relay.reshape(y, (-1, 64)), weight(96, 64)))
    return tvm.IRModule.from_expr(relay.Function([x], relay.nn.dense(y, weight(5, 96))))


@pytest.fixture(scope="module")
def expected():
    with tvm.transform.PassContext(opt_level=0):
        built = relay.build(network(), "llvm")
    machine = tvm.contrib.graph_executor.GraphModule(built["default"](tvm.cpu()))
    machine.set_input("x", X)
    machine.run()
    return machine.get_output(0).numpy()


@pytest.fixture(autouse=True)
def all_operators_and_no_forms(monkeypatch):
    monkeypatch.setattr(exploring, "LEAST", 0.0)
    monkeypatch.setattr(RelayModels, "forms", lambda *_: ())


def right(outputs, expected):
    np.testing.assert_allclose(outputs[0], expected, rtol=1e-4, atol=1e-4)


def test_every_variant_is_right_with_weights_in_its_own_layout(expected, tmp_path):
    model = roller_tvm.compile(network(), TARGET)
    made = exploring.ModelExploration(model._session, tmp_path / "r.json", {"x": X}, 3)
    sites = made.running.sites
    assert any(v.places != site.variants[0].places for site in sites for v in site.variants), "no other layout"
    assert any(len(epoch.members) == 2 for epoch in made.running.explorer.tree.epochs), "no class of two"
    assert not made._made.failed
    for n in range(3):
        made.running.table.choose([min(n, len(site.variants) - 1) for site in sites])
        right(made.loaded.run({"x": X}), expected)
        assert all(seconds > 0 for seconds in made.running.table.seconds())


def test_winners_are_records_and_the_next_call_goes_on(expected, tmp_path):
    model, place = roller_tvm.compile(network(), TARGET), tmp_path / "records.json"
    result = model.explore({"x": X}, top=2, records=place)
    right(model.run({"x": X}), expected)
    assert result.done and result.records == str(place)
    explored = {row.name.rpartition(" ")[0] for row in result.rows if row.options == 2}
    assert {r.workload_key for r in read_records(place)} <= explored
    resumed = roller_tvm.compile(network(), TARGET)
    again = resumed.explore({"x": X}, top=2, records=place)
    assert again.done and len(again.wall_s) == 0
    if read_records(place):
        fresh = roller_tvm.compile(network(), TARGET, records=place)
        right(fresh.run({"x": X}), expected)
        assert any(plan.how == "record" for plan in fresh.report().plans)
    assert [plan.how for plan in resumed.report().plans] == [plan.how for plan in fresh.report().plans]


@pytest.mark.nightly
def test_from_records_it_starts_with_them(expected, tmp_path):
    place = tmp_path / "records.json"
    model = roller_tvm.compile(network(), TARGET)
    model.tune(1, place)
    made = exploring.ModelExploration(model._session, tmp_path / "other.json", {"x": X}, 2)
    assert any(site.options[0] == "record" and len(site.options) == 2 for site in made.running.sites)
    for n in range(2):
        made.running.table.choose([min(n, len(site.variants) - 1) for site in made.running.sites])
        right(made.loaded.run({"x": X}), expected)


def test_computations_with_one_key_of_ansor_are_explored_apart(tmp_path):
    x = relay.var("x", shape=(1, 8, 12, 12))
    made = [relay.nn.max_pool2d(x, (k, k), padding=(k // 2,) * 4) for k in (3, 5)]
    model = roller_tvm.compile(tvm.IRModule.from_expr(relay.Function([x], relay.Tuple(made))), TARGET)
    windows = np.lib.stride_tricks.sliding_window_view
    padded = [np.pad(X, ((0, 0), (0, 0), (k // 2,) * 2, (k // 2,) * 2), constant_values=-np.inf) for k in (3, 5)]
    expected = [windows(p, (k, k), (2, 3)).max((-1, -2)) for p, k in zip(padded, (3, 5), strict=True)]
    made = exploring.ModelExploration(model._session, tmp_path / "r.json", {"x": X}, 2)
    assert not made._made.failed and [len(site.options) for site in made.running.sites] == [2, 2]
    for n in range(2):
        made.running.table.choose([n, n])
        np.testing.assert_equal(made.loaded.run({"x": X}), expected)


def test_requests_are_answered_while_it_explores(expected, tmp_path):
    model = roller_tvm.compile(network(), TARGET)
    serving = model.explore(online=True, top=2, records=tmp_path / "r.json")
    first = model.run({"x": X})
    for _ in range(3000):
        right(model.run({"x": X}), expected)
        if serving.exploration.running.done:
            break
    assert serving.result(wait=True).done
    right(model.run({"x": X}), expected)
    right(first, expected)  # the executor's memory is used again, an answer is its owner's


HOSTILE = {"nothing is written": ("return 0;", "NaN"), "a crash": ("__builtin_trap();", "crash")}


@pytest.mark.parametrize("fault", sampled(HOSTILE, always=["a crash"]))  # the Relax line has the other
def test_a_variant_that_fails_never_serves(expected, tmp_path, monkeypatch, fault):
    original, (body, told) = relay_exploring._compiled, HOSTILE[fault]

    def compiled(*args):
        made = original(*args)
        for (_, _), path in made.items():
            code = path.with_suffix(".c")
            code.write_text(f"int {path.name}(void* a, void* b, int c, void* d, void* e, void* f) {{ {body} }}")
            subprocess.run(["gcc", "-c", "-fPIC", code, "-o", f"{path}.o"], check=True)
        return made

    monkeypatch.setattr(relay_exploring, "_compiled", compiled)
    model = roller_tvm.compile(network(), TARGET)
    result = model.explore({"x": X}, runs=5, top=2, records=tmp_path / "r.json")
    assert len(result.failed) >= 4 and all(told in why for why in result.failed.values()), result.failed
    assert all(row.tried <= 1 for row in result.rows)
    right(model.run({"x": X}), expected)


@pytest.mark.nightly
def test_a_plan_that_does_not_build_is_left_out(expected, tmp_path, monkeypatch):
    monkeypatch.setattr(relay_exploring.LINE.__class__, "record", lambda *args: "no record")
    model = roller_tvm.compile(network(), TARGET)
    result = model.explore({"x": X}, runs=3, top=2, records=tmp_path / "r.json")
    assert result.failed and all("error" in why for why in result.failed.values()), result.failed
    right(model.run({"x": X}), expected)


def test_kernels_in_one_module_are_refused():
    built = relay.build(network(), "llvm")
    with pytest.raises(UsageError, match="one by one"):
        relay_exploring.operator_seconds(built, None, {"x": X}, None)


@pytest.mark.nightly
def test_two_explorers_of_one_file_and_ctrl_c_lose_no_record(expected, tmp_path):
    place = tmp_path / "records.json"
    one, other = (
        exploring.ModelExploration(roller_tvm.compile(network(), TARGET)._session, place, {"x": X}, 2) for _ in range(2)
    )

    def stop(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        other.explore(None, None, stop)
    one.explore(None, None, None)
    written = [len(read_records(place)) for made in (one, other, one) if made.finish()]
    assert written == sorted(written) and one.running.done
    right(one.start.run({"x": X}), expected)
    assert json.loads((tmp_path / "records.json.explore").read_text())["runs"] >= 1
