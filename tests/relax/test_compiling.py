"""A model's kernels: each compiled once, side by side, with and without a C++ compiler."""

import os
import sqlite3
import subprocess
import threading
from threading import Lock

import numpy as np
import pytest

pytestmark = pytest.mark.relax
tvm = pytest.importorskip("tvm")

from tvm import relax, te  # noqa: E402

import roller_tvm  # noqa: E402
from roller_tvm import disk_cache, forks  # noqa: E402
from roller_tvm.codegen import kernel_cache  # noqa: E402
from roller_tvm.device import load_device  # noqa: E402
from roller_tvm.errors import ToolchainError, UnsupportedOperator  # noqa: E402
from roller_tvm.models.package import REPORT  # noqa: E402
from roller_tvm.relax import build, compiling, explored_plans, kernels, layout_cost, pipeline, prepare, schedule  # noqa: E402
from roller_tvm.relax.package import LoadedModel, save_model, with_signature  # noqa: E402

from .networks import LLVM, classifier, default, run, values  # noqa: E402

X, NETWORK = values(1, 3, 12, 12), classifier()


@pytest.fixture
def compiled(monkeypatch):
    """Names of the functions that LLVM compiles, in the modules that it gets."""
    names, lock, original = [], Lock(), tvm.get_global_func("target.build.llvm")

    def counting(module, target):
        with lock:
            names.append(tuple(sorted(str(var.name_hint) for var in module.get_global_vars())))
        return original(module, target)

    tvm.register_global_func("target.build.llvm", counting, override=True)
    yield names
    tvm.register_global_func("target.build.llvm", original, override=True)


def test_each_kernel_is_compiled_once_and_executed_and_saved_as_compiled(compiled, tmp_path):
    (expected,) = default(NETWORK, X)
    compiled.clear()
    executable = build(with_signature(NETWORK, {"x": (X.shape, "float32")}), LLVM)
    assert len(compiled) > 2 and all(len(names) == 1 for names in compiled), compiled
    assert len(set(compiled)) == len(compiled)
    count = len(compiled)
    np.testing.assert_allclose(run(executable, X)[0], expected, rtol=1e-5, atol=1e-5)
    model = LoadedModel.of_built(executable)
    np.testing.assert_allclose(model.run({"x": X})[0], expected, rtol=1e-5, atol=1e-5)
    path = save_model(executable, tmp_path / "model.so")
    np.testing.assert_allclose(LoadedModel(path).run({"x": X})[0], expected, rtol=1e-5, atol=1e-5)
    of_tvm = {name for (name,) in compiled[count:]}  # a library's list of its parts
    assert not of_tvm & {name for (name,) in compiled[:count]}, of_tvm
    symbols = subprocess.run(["nm", "-D", path], capture_output=True, text=True, check=True).stdout
    assert "__tvm_ffi_main" not in symbols, "a kernel would be the library's entry"


def test_without_a_compiler_a_model_is_executed_and_not_saved(monkeypatch, compiled, tmp_path):
    (expected,) = default(NETWORK, X)
    monkeypatch.setattr(compiling, "find_compiler", lambda: None)
    monkeypatch.setenv("CXX", "no-such-compiler")
    executable = build(NETWORK, LLVM)
    np.testing.assert_allclose(run(executable, X)[0], expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(ToolchainError, match="no-such-compiler"):
        save_model(executable, tmp_path / "model.so")


def test_a_kernel_that_cannot_be_compiled_is_told(monkeypatch):
    def refuse(module, target):
        raise ValueError("no such register")

    original = tvm.get_global_func("target.build.llvm")
    prepared = prepare(NETWORK, LLVM)
    tvm.register_global_func("target.build.llvm", refuse, override=True)
    try:
        with pytest.raises(Exception, match="no such register"):
            build(prepared, LLVM)
    finally:
        tvm.register_global_func("target.build.llvm", original, override=True)


def test_one_core_is_enough(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0})
    np.testing.assert_allclose(run(build(NETWORK, LLVM), X), default(NETWORK, X), rtol=1e-5, atol=1e-5)


def test_packing_that_rearranges_needs_no_compiler(monkeypatch, compiled):
    """The same weights as FoldConstant gives, which compiles each packing."""
    seen = []
    scheduled = _scheduled(monkeypatch, seen)
    compiled.clear()
    packed = kernels.pack_constants(scheduled)
    assert not compiled
    monkeypatch.setattr(kernels, "Rearranged", lambda: tvm.transform.Sequential([]))
    folded = kernels.pack_constants(scheduled)
    assert compiled
    ours, theirs = (_constants(mod["main"]) for mod in (packed, folded))
    assert len(ours) == len(theirs) and any(a.ndim > 4 for a in ours)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(a, b)


def _scheduled(monkeypatch, seen):
    """A module before its weights are packed."""
    monkeypatch.setattr(pipeline, "pack_constants", lambda mod: seen.append(mod) or mod)
    pipeline.schedule(prepare(NETWORK, LLVM), LLVM)
    return seen[0]


def _constants(func):
    found = []
    relax.analysis.post_order_visit(
        func, lambda node: found.append(node.value.numpy()) if type(node).__name__ == "GenericConst" else None
    )
    return found


@pytest.fixture
def kept(monkeypatch, tmp_path):
    """A cache that is empty; builds after it may use it, in-memory caches aside."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(disk_cache.VARIABLE, raising=False)
    schedule._planned.cache_clear()
    return kernel_cache.cache_in(tmp_path / "roller_tvm")


def _again(network=NETWORK, target=LLVM):
    schedule._planned.cache_clear()
    return build(network, target)


def test_a_second_build_compiles_plans_and_schedules_nothing(monkeypatch, compiled, kept):
    made = _again()
    (expected,) = run(made, X)
    assert compiled and kept.contents().entries > len(compiled)
    compiled.clear()
    for module, name in ((schedule, "make_candidates"), (layout_cost.LayoutCosts, "_seconds")):
        monkeypatch.setattr(module, name, lambda *_: pytest.fail("made again"))
    executable = _again()
    assert not compiled
    np.testing.assert_array_equal(run(executable, X)[0], expected)
    assert getattr(executable, REPORT) == getattr(made, REPORT)


def test_a_kernel_serves_under_another_name(monkeypatch, compiled, kept, tmp_path):
    """Networks number functions and tensors in other ways; what a kernel computes decides, and no name."""
    target = tvm.target.Target(LLVM)

    def made(name, tensor, add=1.0):
        x = te.placeholder((4, 40), name=tensor)
        func = te.create_prim_func([x, te.compute(x.shape, lambda i, j: x[i, j] + add, name=f"{tensor}_out")])
        func = func.with_attr("global_symbol", name)
        return compiling.object_of({}, target, tvm.ir.GlobalVar(name), func)

    objects = [made("add", "lv3"), made("add12", "lv17"), made("add7", "lv9", 2.0), made("add", "lv4")]
    assert len(compiled) == 2 and objects[3] == objects[0]
    paths = [tmp_path / f"{n}.o" for n in range(3)]
    for path, content in zip(paths, objects, strict=False):
        path.write_bytes(content)
    tvm.support.cc.create_shared(library := str(tmp_path / "kernels.so"), list(map(str, paths)))
    module, x = tvm.runtime.load_module(library), values(4, 40)
    for name, add in (("add", 1), ("add12", 1), ("add7", 2)):
        module[name](tvm.runtime.tensor(x), out := tvm.runtime.tensor(np.zeros_like(x)))
        np.testing.assert_array_equal(out.numpy(), x + np.float32(add))
    monkeypatch.setattr(compiling, "renamed", lambda *_: None)  # no ELF
    assert made("add", "lv3") == objects[0] and len(compiled) == 2
    made("add12", "lv17")
    assert len(compiled) == 3


def test_an_exploration_compiles_none_of_the_kernels_of_the_build(monkeypatch, compiled, kept, tmp_path):
    monkeypatch.setattr(compiling, "may_fork", lambda cache: False)  # what forks compile is not seen
    job = roller_tvm.compile(NETWORK, LLVM)._session.job
    compiled.clear()
    linked = explored_plans.plan(job, None, 2, lambda name: 1.0, 0.0).linked(tmp_path, 1 << 20)
    names = [name for functions in compiled for name in functions]
    assert any(name.startswith("v1_") for name in names) and not any(name.startswith("v0_") for name in names), names
    assert all(site.variants[0].kernel.startswith("v0_") for site in linked.sites)


def test_forks_make_what_one_process_makes(monkeypatch, tmp_path):
    """Layouts, schedules and object files to the letter."""
    monkeypatch.delenv(disk_cache.VARIABLE, raising=False)
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    monkeypatch.setattr(forks, "LONG_S", 0.0)
    found = []
    for cores in ({0}, {0, 1}):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / str(len(cores))))
        monkeypatch.setattr(os, "sched_getaffinity", lambda process, cores=cores: cores)
        executable = _again()
        cache = kernel_cache.kernel_cache()
        with sqlite3.connect(cache.path) as db:
            found.append({key: cache.get(key) for (key,) in db.execute("SELECT key FROM kept")})
        found[-1]["answer"], found[-1]["report"] = run(executable, X)[0].tobytes(), getattr(executable, REPORT)
    assert len(found[0]) > 10 and found[0] == found[1]


def test_what_decides_a_kernel_is_part_of_its_key(monkeypatch, compiled, kept):
    _again()
    compiled.clear()
    _again(target={**LLVM, "mcpu": "x86-64-v3"})
    assert compiled
    count = len(compiled)
    with tvm.transform.PassContext(config={"tirx.disable_vectorize": True}):
        _again()
    assert len(compiled) > count
    count = len(compiled)
    monkeypatch.setattr(kernel_cache, "code_version", lambda *_: "of another version")
    _again()
    assert len(compiled) > count


def test_somebodys_passes_see_kernels_that_are_kept(compiled, kept):
    _again()
    compiled.clear()

    @tvm.instrument.pass_instrument
    class Seen:
        pass

    with tvm.transform.PassContext(instruments=[Seen()]):
        _again()
    assert compiled


def test_a_damaged_kernel_is_told_and_compiled_again(compiled, kept):
    (expected,) = run(_again(), X)
    compiled.clear()
    with sqlite3.connect(kept.path) as db:
        db.execute("UPDATE kept SET value = substr(value, 1, length(value) - 1)")
    with pytest.warns(RuntimeWarning, match="a damaged entry, which is deleted; kernels are made again"):
        executable = _again()
    assert compiled
    np.testing.assert_array_equal(run(executable, X)[0], expected)


def test_likely_sizes_are_part_of_the_key(monkeypatch, kept):
    places, of = [], schedule.KeptSchedule.of
    monkeypatch.setattr(schedule.KeptSchedule, "of", lambda *words: places.append(of(*words)) or places[-1])
    monkeypatch.setattr(schedule, "OpenFunction", lambda *_: (_ for _ in ()).throw(UnsupportedOperator("no", "", "")))
    x = te.placeholder((tvm.tirx.Var("n", "int64"), 16), name="x")
    func = schedule.Function(te.create_prim_func([x, te.compute(x.shape, lambda i, j: x[i, j] + 1.0)]))
    schedule._open_planned.cache_clear()
    for likely in ((), (("n", 128),), (("n", 256),)):
        schedule._open_planned(func, load_device("cpu"), str(tvm.target.Target(LLVM)), 4, False, likely)
    assert len({place.key for place in places}) == 3 and all(place.key for place in places)


def test_a_kernel_is_as_large_as_what_is_unrolled_in_it():
    x = te.placeholder((8, 16), name="x")
    schedule = tvm.s_tir.Schedule(te.create_prim_func([x, te.compute(x.shape, lambda i, j: x[i, j] + 1.0, name="y")]))
    before = compiling._stores(schedule.mod["main"].body)
    schedule.unroll(schedule.get_loops(schedule.get_sblock("y"))[0])
    assert (before, compiling._stores(schedule.mod["main"].body)) == (1, 8)


def test_functions_of_one_hash_are_told_apart(monkeypatch, kept):
    """An object file is taken for the function beside it alone."""
    monkeypatch.setattr(compiling, "structural_hash", lambda node: 7)
    for batch in (1, 2, 1):
        network, x = classifier(batch), values(batch, 3, 12, 12)
        (expected,) = default(network, x)
        np.testing.assert_allclose(run(build(network, LLVM), x)[0], expected, rtol=1e-5, atol=1e-5)
