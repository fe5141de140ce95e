"""Kernels on the Relay line: compiled side by side, kept for the next build, executed and saved as compiled."""

import subprocess
from threading import Lock

import numpy as np
import pytest

pytestmark = pytest.mark.tvm
tvm = pytest.importorskip("tvm")

from tvm import relay  # noqa: E402

from roller_tvm import disk_cache  # noqa: E402
from roller_tvm.errors import ToolchainError  # noqa: E402
from roller_tvm.models.package import REPORT  # noqa: E402
from roller_tvm.relay import build, compiling, rewrites  # noqa: E402
from roller_tvm.relay.package import LoadedModel, save_model  # noqa: E402

from ..sampling import sampled  # noqa: E402

TARGET = "llvm -mcpu=core-avx2 -num-cores=2"
X = np.random.default_rng(0).standard_normal((1, 8, 12, 12)).astype("float32")


def network():
    """Two convolutions, a pooling and a dense layer."""
    random = np.random.default_rng(1)
    x = relay.var("x", shape=X.shape)
    params = {}

    def weights(name, *shape):
        params[name] = random.standard_normal(shape).astype("float32")
        return relay.var(name, shape=shape)

    y = relay.nn.relu(relay.nn.conv2d(x, weights("a", 16, 8, 3, 3), padding=(1, 1), channels=16, kernel_size=(3, 3)))
    y = relay.nn.relu(relay.nn.conv2d(y, weights("b", 16, 16, 1, 1), channels=16, kernel_size=(1, 1)))
    y = relay.nn.batch_flatten(relay.nn.global_avg_pool2d(y))
    y = relay.nn.softmax(relay.nn.dense(y, weights("c", 10, 16)))
    return tvm.IRModule.from_expr(relay.Function(relay.analysis.free_vars(y), y)), params


def run(built):
    return LoadedModel.of_built(built).run({"x": X})[0]


@pytest.fixture(scope="module")
def expected():
    return run(build(*network(), TARGET, schedules="tvm"))


@pytest.fixture
def generated(monkeypatch):
    """Names of the functions that LLVM's code is generated of, in the modules that it gets."""
    names, lock, original = [], Lock(), rewrites._generator()

    def counting(module, target):
        with lock:
            names.append(tuple(sorted(str(var.name_hint) for var in module.functions)))
        return original(module, target)

    monkeypatch.setattr(rewrites, "_generator", lambda: counting)
    return names


def kernels_of(generated):
    return [name for names in generated for name in names if name.startswith("tvmgen_default_fused")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("kept")


@pytest.fixture
def kept(monkeypatch, folder):
    """A cache, of all tests here, that holds the network's kernels."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    monkeypatch.delenv(disk_cache.VARIABLE, raising=False)
    return build(*network(), TARGET)


def test_each_kernel_is_compiled_once_and_executed_and_saved_as_compiled(generated, expected, tmp_path):
    built = build(*network(), TARGET)
    found = kernels_of(generated)
    assert len(found) > 3 and len(set(found)) == len(found)
    np.testing.assert_allclose(run(built), expected, rtol=1e-5, atol=1e-6)
    for name in ("model.so", "model.tar"):
        path = save_model(built, tmp_path / name)
        np.testing.assert_array_equal(LoadedModel(path).run({"x": X})[0], run(built))
    assert kernels_of(generated) == found
    built.get_lib().export_library(str(tmp_path / "kernels.so"))
    symbols = subprocess.run(["nm", "-D", tmp_path / "kernels.so"], capture_output=True, text=True, check=True).stdout
    assert set(found) <= set(symbols.split())
    text = built.get_lib().get_source("ll")
    assert all(f"@{name}(" in text for name in found)


def test_a_second_build_generates_no_kernel(generated, kept):
    first = run(kept)
    generated.clear()
    again = build(*network(), TARGET)
    assert not kernels_of(generated)
    np.testing.assert_array_equal(run(again), first)
    assert getattr(again, REPORT) == getattr(kept, REPORT)


CHANGES = [{"target": TARGET + " -opt-level=2"}, {"wide_indices": False}, {"prefetch": False}]


@pytest.mark.parametrize("change", sampled(CHANGES, always=CHANGES[1:2]))
def test_what_decides_a_kernel_is_part_of_its_key(generated, kept, change):
    generated.clear()
    build(*network(), **{"target": TARGET, **change})
    assert kernels_of(generated)


def test_without_a_compiler_a_model_is_executed_and_not_saved(monkeypatch, expected, tmp_path):
    monkeypatch.setattr(compiling, "find_compiler", lambda: None)
    monkeypatch.setenv("CXX", "no-such-compiler")
    compiling.tell_of_no_compiler.cache_clear()
    with pytest.warns(RuntimeWarning, match="there is no C\\+\\+ compiler"):
        built = build(*network(), TARGET)
    np.testing.assert_allclose(run(built), expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(ToolchainError, match="no-such-compiler"):
        save_model(built, tmp_path / "model.so")
