"""Every example in the docstrings runs: on either of TVM's lines, or on none, whichever its module is for.

An example takes a small model for given, its file model.onnx, what was built of it, and what the user imported.
"""

import doctest
import importlib
import re
import sys
from functools import cache
from pathlib import Path

import pytest

from roller_tvm.tvm_env import line

from . import small_model
from .test_code_blocks import surroundings

ROOT = Path(__file__).parents[2]
PROMPT = re.compile(r"^\s*>>> (?!.*doctest: \+SKIP)", re.M)
#: Modules with examples that no test runs, and why.
NOT_RUN = {
    "roller_tvm.auto_scheduler": "tunes",
    "roller_tvm.auto_scheduler.history": "reads what a tuning wrote",
    "roller_tvm.auto_scheduler.measuring": "tunes",
    "roller_tvm.auto_scheduler.search_policy": "tunes",
    "roller_tvm.auto_scheduler.search_task": "tunes",
    "roller_tvm.auto_scheduler.task_scheduler": "tunes",
    "roller_tvm.codegen.host_reading": "builds for CUDA",
    "roller_tvm.rammer.without_spills": "its kernel comes from TVM and the CUDA compiler",
    "roller_tvm.relax.components": "tunes",
    "roller_tvm.relax.fused_function": "its kernel comes from a fused model",
    "roller_tvm.relax.kernels": "its schedule comes from a plan that packs",
    "roller_tvm.relax.metaschedule": "tunes",
    "roller_tvm.relax.open_shapes": "its graph comes from a model with open extents",
    "roller_tvm.relax.enlarging": "its tensors come from a model with open extents",
    "roller_tvm.relax.open_transposed": "its module comes from a model with open extents",
    "roller_tvm.relax.size_checks": "its module comes from a model with open extents",
    "roller_tvm.relax.open_schedule": "its function comes from a model with open extents",
    "roller_tvm.relax.torch_rewrites": "needs torch",
    "roller_tvm.relax.tuning": "tunes",
    "roller_tvm.relay.records": "its state comes from a tuning",
    "roller_tvm.relay.tuning": "tunes",
    "roller_tvm.relay.winograd": "its model has large convolutions",
    "roller_tvm.tir.open_axes": "its function comes from a model with open extents",
    "roller_tvm.tir.shared_axes": "its functions come from a model with open extents",
    "roller_tvm.torch_backend": "needs torch",
    "roller_tvm.tuning.checking": "tunes",
    "roller_tvm.tuning.session": "tunes",
    "roller_tvm.tuning.supervise": "starts workers; tests/tuning does",
    "roller_tvm.tvm_env.doctor": "looks at the machine for seconds; tests/tvm_env does",
    "roller_tvm.tvm_env.threads": "sets the threads of the process that runs the tests",
    "roller_bench.run": "compares tuners",
    "roller_bench.search": "learns for seconds; tests/bench/test_search.py does",
    "roller_check.fused": "its kernels come from a fused model",
}
#: Room for a few that are being written.
MOST_NOT_RUN = len(NOT_RUN) + 4
#: A module's line, by the first that its name contains; of either line: `EITHER`; all others need no TVM.
LINES = {
    "relay": "tvm",
    "auto_scheduler": "tvm",
    "relax": "relax",
    ".tir.": "relax",
    "intrinsics": "relax",
    "te.copying": "tvm",
}
EITHER = {
    "roller_tvm", "roller_tvm.api", "roller_tvm.codegen.kernel_cache", "roller_tvm.models.importing",
    "roller_tvm.models.package", "roller_tvm.tuning.timing", "roller_tvm.tuning.supervise", "roller_tvm.tuning.machine",
    "roller_tvm.tvm_env.pin",
}  # fmt: skip


def modules():
    """Yield (name, file's text) of every module of the product and the tools."""
    for top in (ROOT / "roller_tvm", ROOT / "python/roller_bench", ROOT / "python/roller_check"):
        for path in sorted(top.rglob("*.py")):
            name = ".".join(path.relative_to(top.parent).with_suffix("").parts).removesuffix(".__init__")
            yield name, path.read_text(encoding="utf-8")


def cases():
    found = []
    for name, text in modules():
        if PROMPT.search(text):
            mark = next((mark for word, mark in LINES.items() if word in name), "te" if name in EITHER else None)
            found.append(pytest.param(name, marks=getattr(pytest.mark, mark) if mark else (), id=name))
    return found


def test_few_modules_have_examples_that_no_test_runs():
    skipping = {name for name, text in modules() if "doctest: +SKIP" in text}
    assert set(NOT_RUN) <= skipping, "these run now"
    assert len(skipping) <= MOST_NOT_RUN, f"without a reason: {sorted(skipping - set(NOT_RUN))}"


@cache
def given():
    """Return what the examples of a line take for given."""
    import numpy as np
    import tvm
    from tvm import te

    import roller_tvm
    from roller_tvm.device import load_device

    names = surroundings() | {"np": np, "roller_tvm": roller_tvm, "device": load_device("cpu")}
    names["model"] = roller_tvm.compile("model.onnx")
    names["weights"] = np.zeros((16, 32), "float32")
    if line() == "relay":
        return names | of_relay(tvm, te, names)
    return names | of_relax(tvm, te, names)


def of_relay(tvm, te, names):
    from roller_tvm import auto_scheduler
    from roller_tvm.relay.building import build
    from roller_tvm.relay.importers import load_model

    tasks, _ = auto_scheduler.extract_tasks(names["mod"]["main"], names["params"], "llvm")
    a = te.placeholder((8,), name="a")
    b = te.compute((8,), lambda i: a[i] + 1, name="b")
    given = {n: getattr(auto_scheduler, n) for n in ("TaskScheduler", "TuningOptions", "RecordToFile")}
    return given | {
        "build": build, "load_model": load_model, "to_device": tvm.nd.array,
        "schedule": te.create_schedule(b.op), "args": [a, b], "workload_key": tasks[0].workload_key,
    }  # fmt: skip


def of_relax(tvm, te, names):
    from tvm import relax, topi

    from roller_tvm.relax import ScheduleWithRoller, load_model
    from roller_tvm.relax.pipeline import build, roller_pipeline

    a, b = te.placeholder((16, 32), name="a"), te.placeholder((32, 24), name="b")
    r = te.reduce_axis((0, 32), name="r")
    c = te.compute((16, 24), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), name="c")
    parts = [te.placeholder((1, 2, 14, 14, 16), name=name) for name in "de"]
    joined = te.create_prim_func([*parts, topi.concatenate(parts, 1)])
    with names["target"]:
        scheduled = ScheduleWithRoller()(names["mod"])
    open_rows = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((tvm.tirx.Var("n", "int64"), 16), "float32"))
    with open_rows.function("main", [x]):
        with open_rows.dataflow():
            y = open_rows.emit_output(open_rows.emit(relax.op.nn.relu(x)))
        open_rows.emit_func_output(y)
    return {
        "func": te.create_prim_func([a, b, c]), "scheduled": scheduled, "roller_pipeline": roller_pipeline,
        "to_device": tvm.runtime.tensor, "load_model": load_model, "some_pass": relax.transform.DeadCodeElimination(),
        "of roller_tvm.tir.joined": {"mod": {"concatenate": joined}, "func": joined},
        "of roller_tvm.relax.dynamic": {"mod": open_rows.get()},
        "of roller_tvm.relax.watch": {"machine": relax.VirtualMachine(build(names["mod"], names["target"]), tvm.cpu()),
                                      "x": tvm.runtime.tensor(names["x"])},
    }  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with model.onnx, with which `given` is made too."""
    pytest.importorskip("onnx")
    place = tmp_path_factory.mktemp("examples")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        small_model.save("model.onnx")
        Path("records.json").touch()
        given()["model"].save("model.so")
    return place


@pytest.mark.parametrize("name", cases())
def test_examples(name, request, monkeypatch):
    module, names = importlib.import_module(name), {}
    if any(request.node.get_closest_marker(mark) for mark in ("tvm", "relax", "te")):
        monkeypatch.chdir(request.getfixturevalue("folder"))
        names = given() | given().get(f"of {name}", {})
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS, verbose=False)
    for test in doctest.DocTestFinder().find(module, name):
        test.globs = {**names, **test.globs}
        runner.run(test, out=sys.stdout.write)
    assert not runner.failures
