"""Every example in the docstrings runs: on either of TVM's lines, or on none, whichever its module is for.

An example takes a small model for given, its file model.onnx, what was built of it, and what the user imported.
"""

import doctest
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from . import small_model
from .given import given, of_module

ROOT = Path(__file__).parents[2]
PROMPT = re.compile(r"^\s*>>> ", re.M)
#: Modules with examples that only `make nightly` runs, and why.
NIGHTLY = {
    "roller_tvm.auto_scheduler": "tunes",
    "roller_tvm.auto_scheduler.measuring": "measures",
    "roller_tvm.auto_scheduler.search_policy": "tunes",
    "roller_tvm.auto_scheduler.search_task": "tunes",
    "roller_tvm.auto_scheduler.task_scheduler": "tunes",
    "roller_tvm.relax.components": "tunes",
    "roller_tvm.relax.fused_function": "fuses a network for a GPU",
    "roller_tvm.relax.metaschedule": "tunes",
    "roller_tvm.relax.tuning": "tunes",
    "roller_tvm.relay.tuning": "tunes",
    "roller_tvm.tuning.checking": "measures",
    "roller_tvm.tuning.measurer": "measures",
    "roller_tvm.tvm_env.doctor": "looks at the machine for seconds",
    "roller_bench.run": "compares tuners",
    "roller_check.fused": "builds kernels for a GPU",
    "roller_bench.search": "learns for seconds",
}
#: Run by tests/torch/test_examples.py.
OF_TORCH = {"roller_tvm.torch_backend", "roller_tvm.relax.torch_nodes", "roller_tvm.relax.torch_rewrites"}
#: They take something for given without any TVM.
OF_CORE = {"roller_tvm.rammer.without_spills"}
#: Examples of it change the process that runs them.
OWN_PROCESS = {"roller_tvm.tvm_env.threads"}
#: The examples measure as much as a user would; here an operator or two are measured once.
FEWER = {
    "1024, 1024, 1024": "64, 64, 64", "512, 512, 512": "32, 32, 32", "TuningOptions(10": "TuningOptions(1",
    "TuningOptions(200": "TuningOptions(2", '"records", 100': '"records", 1', '"records", 40,': '"records", 1,',
    'log_file="records.json")': 'log_file="records.json", trials=1)',
    'work_dir="records")': 'work_dir="records", max_trials_per_task=1)',
}  # fmt: skip
#: A module's line, by the first that its name contains; of either line: `EITHER`; all others need no TVM.
LINES = {
    "relay": "tvm",
    "auto_scheduler": "tvm",
    "relax": "relax",
    ".tir.": "relax",
    "intrinsics": "relax",
    "te.copying": "tvm",
    "host_reading": "tvm",
    "roller_check.fused": "relax",
}
EITHER = {
    "roller_tvm", "roller_tvm.api", "roller_tvm.codegen.kernel_cache", "roller_tvm.models.importing",
    "roller_tvm.models.package", "roller_tvm.tuning.timing", "roller_tvm.tuning.supervise", "roller_tvm.tuning.machine",
    "roller_tvm.tvm_env.pin", "roller_tvm.tvm_env.threads", "roller_tvm.tuning.checking", "roller_tvm.tuning.measurer",
    "roller_bench.run",
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
        if PROMPT.search(text) and name not in OF_TORCH:
            mark = next((mark for word, mark in LINES.items() if word in name), "te" if name in EITHER else None)
            marks = [mark] * (mark is not None) + ["nightly"] * (name in NIGHTLY)
            told = [getattr(pytest.mark, mark) for mark in marks] + [pytest.mark.one_line("relax")] * (mark == "te")
            found.append(pytest.param(name, marks=told, id=name))
    return found


def test_no_example_is_passed_over():
    assert not [name for name, text in modules() if "doctest: +SKIP" in text]
    assert {*NIGHTLY, *OF_TORCH, *OWN_PROCESS} <= {name for name, text in modules() if PROMPT.search(text)}


class Talkative(doctest.OutputChecker):
    """Takes what a tuning says of its progress where an example shows nothing."""

    def check_output(self, want, got, flags):
        """Return True if nothing is wanted, or what came."""
        return not want or super().check_output(want, got, flags)


def run(name, names):
    """Run the examples of a module."""
    checker = Talkative() if name in NIGHTLY else None
    runner = doctest.DocTestRunner(checker, optionflags=doctest.ELLIPSIS, verbose=False)
    for test in doctest.DocTestFinder().find(importlib.import_module(name), name):
        test.globs = {**names, **test.globs}
        for example in test.examples if name in NIGHTLY else ():
            for many, few in FEWER.items():
                example.source = example.source.replace(many, few)
        runner.run(test, out=sys.stdout.write)
    assert not runner.failures


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
    names = of_module(name) if name in OF_CORE else {}
    if name == "roller_check.fused":
        request.getfixturevalue("pocl")
    if any(request.node.get_closest_marker(mark) for mark in ("tvm", "relax", "te")):
        monkeypatch.chdir(request.getfixturevalue("folder"))
        names = given() | of_module(name)
    if name in OWN_PROCESS:
        code = f"import doctest, {name} as module; raise SystemExit(bool(doctest.testmod(module).failed))"
        subprocess.run([sys.executable, "-c", code], check=True)
    else:
        run(name, names)
