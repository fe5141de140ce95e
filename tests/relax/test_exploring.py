"""A model explored while it runs: answers, winners, wrong and hostile variants, requests, interruption."""

import json
import subprocess

import numpy as np
import pytest

pytestmark = [pytest.mark.relax, pytest.mark.usefixtures("kept_kernels")]
tvm = pytest.importorskip("tvm")

from tvm import relax  # noqa: E402

import roller_tvm  # noqa: E402
from roller_tvm import exploring  # noqa: E402
from roller_tvm.errors import UsageError  # noqa: E402
from roller_tvm.explore.dispatch import FFI, PACKED, Site, Table, Variant, source  # noqa: E402
from roller_tvm.explore.explorer import SELDOM  # noqa: E402
from roller_tvm.explore.running import FIRST_RUNS  # noqa: E402
from roller_tvm.relax import variants  # noqa: E402
from roller_tvm.relax.line import LINE  # noqa: E402
from roller_tvm.relax.pipeline import prepare  # noqa: E402
from roller_tvm.relax.tasks import extract_tasks  # noqa: E402
from roller_tvm.tuning import linked  # noqa: E402
from roller_tvm.tuning.explorable import for_fewer_cores  # noqa: E402

from ..plan.devices import device  # noqa: E402
from .networks import LLVM, module, run, values  # noqa: E402

X = values(1, 8, 12, 12)


def network():
    """Two equal convolutions, one that is joined with their result, a product."""
    one, two, three, last = values(8, 8, 3, 3), values(8, 8, 3, 3), values(8, 8, 1, 1), values(16, 5)

    def body(builder, x):
        y = builder.emit(relax.op.nn.relu(builder.emit(relax.op.nn.conv2d(x, relax.const(one), padding=1))))
        y = builder.emit(relax.op.nn.relu(builder.emit(relax.op.nn.conv2d(y, relax.const(two), padding=1))))
        z = builder.emit(relax.op.nn.relu(builder.emit(relax.op.nn.conv2d(x, relax.const(three)))))
        y = builder.emit(relax.op.mean(builder.emit(relax.op.concat([y, z], axis=1)), axis=[2, 3]))
        return builder.emit(relax.op.matmul(y, relax.const(last)))

    return module(body, X.shape)


@pytest.fixture(scope="module")
def compiled():
    mod = network()
    model = roller_tvm.compile(mod, LLVM)
    name = next(iter(model.inputs))
    return mod, name, run(tvm.compile(mod, tvm.target.Target("llvm")), X)[0]


def model_of(compiled, **options):
    mod, name, expected = compiled
    return roller_tvm.compile(mod, LLVM, **options), {name: X}, expected


@pytest.fixture(autouse=True)
def all_operators(monkeypatch):
    monkeypatch.setattr(exploring, "LEAST", 0.0)


def right(outputs, expected):
    np.testing.assert_allclose(outputs[0], expected, rtol=1e-4, atol=1e-5)


def test_it_ends_with_the_winners_and_goes_on_from_its_state(compiled, tmp_path):
    model, inputs, expected = model_of(compiled)
    seen = []
    result = model.explore(inputs, runs=40, top=3, records=tmp_path / "records", progress=lambda e: seen.append(e))
    right(model.run(inputs), expected)
    assert result.runs == 40 or result.done
    conv = next(row for row in result.rows if row.options == 3)
    assert conv.tried == 3 and seen and result.records == str(tmp_path / "records")
    assert "gain" in str(result) and result.svg().startswith("<svg") and json.dumps(result.to_json())
    kernels = {time.name for time in model.profile(inputs, 2)}
    assert not any("site" in name for name in kernels), kernels
    resumed = model_of(compiled)[0]
    again = resumed.explore(inputs, top=3, records=tmp_path / "records")
    assert again.done and again.runs >= result.runs and len(again.wall_s) == again.runs - result.runs
    fresh = roller_tvm.compile(compiled[0], LLVM, records=tmp_path / "records")
    right(fresh.run(inputs), expected)
    assert any(plan.how == "record" for plan in fresh.report().plans)
    assert [plan.how for plan in resumed.report().plans] == [plan.how for plan in fresh.report().plans]


def test_equal_operators_are_one_class_and_every_variant_is_right(compiled, tmp_path):
    model, inputs, expected = model_of(compiled)
    made = exploring.ModelExploration(model._session, tmp_path, inputs, 3)
    classes = {epoch.name: epoch.members for epoch in made.running.explorer.tree.epochs}
    assert any(len(members) == 2 for members in classes.values()), classes
    sites = made.running.sites
    assert any("in_place" in v.kernel for site in sites for v in site.variants), "nothing is joined"
    assert not made._made.failed
    for n in range(3):
        made.running.table.choose([min(n, len(site.variants) - 1) for site in sites])
        right(made.loaded.run(inputs), expected)
        assert all(seconds > 0 for seconds in made.running.table.seconds())


def test_no_plan_for_fewer_cores_wins_because_others_have_the_cores(compiled, tmp_path, monkeypatch):
    model, inputs, expected = model_of(compiled)
    monkeypatch.setattr(Table, "seconds", lambda table: [1e-6 if n else 2e-6 for n in table.chosen])
    made = exploring.ModelExploration(model._session, tmp_path / "records", inputs, 2)
    made.explore(None, None, None)
    for known in made._made.known.values():
        known.fewer = set(list(known.plans)[1:])
    made.running.waiting.ran_ns, made.running.waiting.waited_ns = 90, 10
    (note,) = [note for note in made.finish().notes if "fewer cores" in note]
    assert "threads waited 10%" in note
    assert not (tmp_path / "records" / "database_tuning_record.json").read_text()
    right(model.run(inputs), expected)
    again = exploring.ModelExploration(model._session, tmp_path / "records", inputs, 2)
    assert not again.running.done, "another exploration asks again"


HOSTILE = {
    "nothing is written": "return 0;",
    "a crash": "__builtin_trap();",  # SIGILL
    "a hang": "for (volatile int n = 0;; ++n) {}",
}


NIGHTLY = pytest.mark.nightly  # the Relay line has the crash at each change
FAULTS = ["nothing is written", pytest.param("a crash", marks=NIGHTLY),
          pytest.param("a hang", marks=[pytest.mark.slow, NIGHTLY])]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_variant_that_fails_never_serves(compiled, tmp_path, monkeypatch, fault):
    original, replaced = variants.write_object, []

    def write(var, func, attrs, target, path):
        name = str(var.name_hint)
        if name.startswith("v1_") and "conv2d" in name:
            code = tmp_path / f"{name}.c"
            code.write_text(f"int __tvm_ffi_{name}(void* a, void* b, int c, void* d) {{ {HOSTILE[fault]} }}")
            subprocess.run(["gcc", "-c", "-fPIC", code, "-o", path], check=True)
            replaced.append(name)
        else:
            original(var, func, attrs, target, path)

    monkeypatch.setattr(variants, "write_object", write)
    monkeypatch.setattr(linked.check_all, "__defaults__", (5.0,))
    model, inputs, expected = model_of(compiled)
    result = model.explore(inputs, runs=20, top=2, records=tmp_path / "records")
    assert replaced and len(result.failed) == 2, result.failed
    told = {"nothing is written": "NaN", "a crash": "crash", "a hang": "timeout"}[fault]
    assert any(told in why for why in result.failed.values()), result.failed
    for row in result.rows:
        if row.name in {name for name, members in result.names.items() if "conv2d" in members}:
            assert row.tried <= 1 and row.done
    right(model.run(inputs), expected)


def test_a_plan_that_does_not_build_is_left_out(compiled, tmp_path, monkeypatch):
    original = variants.write_object

    def write(var, *args):
        if str(var.name_hint).startswith("v1_"):
            raise RuntimeError("no such instruction")
        original(var, *args)

    monkeypatch.setattr(variants, "write_object", write)
    model, inputs, expected = model_of(compiled)
    result = model.explore(inputs, runs=3, top=2, records=tmp_path / "records")
    assert any("no such instruction" in why for why in result.failed.values())
    right(model.run(inputs), expected)


def test_requests_are_answered_while_it_explores(compiled, tmp_path):
    model, inputs, expected = model_of(compiled)
    serving = model.explore(online=True, top=2, records=tmp_path / "records")
    right(model.run(inputs), expected)
    for _ in range(3000):
        right(model.run(inputs), expected)
        if serving.exploration.running.done:
            break
    result = serving.result(wait=True)
    assert result.done and serving.done
    right(model.run(inputs), expected)
    assert model._serving is None, "it still has variants"
    right(model.run(inputs), expected)


def test_requests_can_be_ended_early(compiled, tmp_path):
    model, inputs, expected = model_of(compiled)
    serving = model.explore(online=True, top=2, records=tmp_path / "records")
    for _ in range(3):
        right(model.run(inputs), expected)
    serving.stop()
    right(model.run(inputs), expected)
    assert model._serving is None and model._session.line.state_of(tmp_path / "records").exists()


def test_ctrl_c_keeps_what_is_known(compiled, tmp_path):
    model, inputs, expected = model_of(compiled)

    def stop(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model.explore(inputs, top=2, records=tmp_path / "records", progress=stop)
    assert json.loads(model._session.line.state_of(tmp_path / "records").read_text())["runs"] >= 1
    right(model.run(inputs), expected)


@pytest.mark.nightly
def test_weights_in_further_layouts_have_a_limit(compiled, tmp_path, monkeypatch):
    model, inputs, expected = model_of(compiled)
    made = exploring.ModelExploration(model._session, tmp_path, inputs, 3, memory_bytes=0)
    told = set(made._made.failed.values())
    assert not told or told == {"its weights in another layout need more memory than is given"}
    right(made.loaded.run(inputs), expected)


def test_of_short_requests_few_explore(compiled, tmp_path):
    model, inputs, expected = model_of(compiled)
    explorer = model.explore(online=True, top=3, records=tmp_path / "records").exploration.running.explorer
    for _ in range(FIRST_RUNS + 4 * SELDOM):
        right(model.run(inputs), expected)
    assert FIRST_RUNS < explorer.runs <= FIRST_RUNS + 4


def test_what_cannot_be_explored_is_refused(compiled, tmp_path):
    model, inputs, _ = model_of(compiled)
    path = model.save(tmp_path / "model.so")
    with pytest.raises(UsageError):
        roller_tvm.load(path).explore(inputs)
    for wrong in ({"budget": 0}, {"runs": 0}, {"top": 0}):
        with pytest.raises(UsageError):
            model.explore(inputs, **wrong)


@pytest.mark.parametrize("by", [FFI, PACKED])
def test_the_text_of_sites_compiles_alone(tmp_path, by):
    sites = [Site("dense", ("a", "b"), (Variant("k0", (0, 1, 3)), Variant("k1", (0, 2, 3)))),
             Site("relu", ("a",), (Variant("k2", (0, 1)),))]  # fmt: skip
    (tmp_path / "s.cc").write_text(source(sites, by))
    subprocess.run(["g++", "-Wall", "-Werror", "-c", tmp_path / "s.cc", "-o", tmp_path / "s.o"], check=True)


def test_plans_for_fewer_cores_are_tried_where_they_may_pay():
    cpu = device("avx512")

    def labels(size):
        product = module(lambda b, x: b.emit(relax.op.matmul(x, relax.const(values(size, size)))), (size, size))
        (task,) = extract_tasks(prepare(product, LLVM, device=cpu))
        best = LINE.candidates(task, cpu, 4).plans[0]
        assert best.ranked.estimate.programs[0].blocks > 1  # it is for all cores
        return [c.ranked.estimate.programs[0].blocks for c, _ in for_fewer_cores(LINE, task, cpu, best)]

    assert labels(64) == [2] and labels(48) == [1]
    assert labels(160) == []  # half of the cores take twice the time
