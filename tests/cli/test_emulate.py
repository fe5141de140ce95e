"""``run --emulate``: a model built for cuda, its kernels run on this CPU, on either line."""

import json
import re
import shutil
import zipfile
from dataclasses import replace

import numpy as np
import pytest

from roller_tvm import cli
from roller_tvm.codegen.built_kernels import BuiltKernels
from roller_tvm.package_members import add_members, seal
from roller_tvm.tvm_env import line

pytestmark = pytest.mark.te
pytest.importorskip("onnx")
from ..models.imports import expected  # noqa: E402
from ..relay.onnx_models import convolution  # noqa: E402
from ..sampling import sampled  # noqa: E402
from .command import main  # noqa: E402

SUFFIXES = sampled([".tar", ".so"], always=[".tar"]) if line() == "relay" else [".so"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return convolution(tmp_path_factory.mktemp("model") / "small.onnx")


@pytest.fixture(scope="module", params=SUFFIXES)
def built(request, model, tmp_path_factory):
    path = tmp_path_factory.mktemp("built") / f"m{request.param}"
    assert cli.main(["compile", str(model), "--target", "cuda -arch=sm_80", "-o", str(path)]) == 0
    return path


def test_it_computes_what_onnxruntime_does(built, model, tmp_path, capsys):
    pytest.importorskip("onnxruntime")
    words = ["run", built, "--emulate", "--expect", model, "--outputs", tmp_path / "out.npz"]
    code, out, err = main(capsys, *words)
    assert code == 0 and f"1 output agrees with onnxruntime on {model} (largest error" in out
    assert err.count(" blocks, ") >= 2  # a line a function
    with np.load(tmp_path / "out.npz") as outputs:
        x = np.random.default_rng(0).random((1, 3, 16, 16)).astype("float32")
        np.testing.assert_allclose(outputs["output_0"], expected(model, {"x": x})[0], rtol=1e-3, atol=1e-3)


def test_other_references(built, model, tmp_path, capsys, monkeypatch):
    words = ["run", built, "--emulate", "--unchecked", "--expect"]
    monkeypatch.setattr("roller_tvm.cli.reference._onnxruntime", lambda *_: None)
    code, out, _ = main(capsys, *words, model, "--outputs", tmp_path / "out.npz")
    assert code == 0 and "agrees with TVM's own schedules of" in out
    code, out, _ = main(capsys, *words, tmp_path / "out.npz", "--json")
    assert code == 0 and "largest error 0)" in json.loads(out)["agrees"]
    np.savez(tmp_path / "other.npz", output_0=np.zeros((1, 10), "float32"))
    code, _, err = main(capsys, *words, tmp_path / "other.npz")
    assert code == 1 and "output_0 differs: error" in err


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_kernel_that_leaves_its_arrays_is_told(built, tmp_path, capsys):
    """The kept source is what runs: an index moved out of bounds is reported with function, buffer and thread."""
    kernels = BuiltKernels.of_package(built)
    name = next(n for n, host in kernels.functions.items() if "dense" in n or "matmul" in n)
    parameter = next(p for p in kernels.functions[name].parameters if tuple(p.shape) == (1, 10))
    sources = [kernels.source, *kernels.more]
    broken = [re.sub(rf"\b({parameter.name}\w*)\[", r"\1[10 + ", source) for source in sources]
    assert broken != sources
    path = tmp_path / built.name
    shutil.copy(built, path)
    add_members(path, replace(kernels, source=broken[0], more=tuple(broken[1:])).members())
    seal(path)
    code, _, err = main(capsys, "run", path, "--emulate")
    assert code == 1 and name in err and "out of bounds" in err and "thread (" in err


def test_packages_without_kernels(model, built, tmp_path, capsys):
    path = tmp_path / f"cpu{built.suffix}"
    assert main(capsys, "compile", model, "--target", "llvm", "-o", path)[0] == 0
    code, _, err = main(capsys, "run", path, "--emulate")
    assert code == 2 and "holds no source of kernels" in err and "remedy:" in err
    code, _, err = main(capsys, "run", model, "--emulate")
    assert code == 2 and "remedy:" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [(["--emulate", "--print-time"], "--print-time"), (["--emulate", "--device", "cpu"], "--device"),
     (["--unchecked"], "--emulate")],
)  # fmt: skip
def test_mistakes(capsys, words, said):
    code, _, err = main(capsys, "run", "m.so", *words)
    assert code == 2 and said in err and "remedy:" in err


def test_open_extents(tmp_path, capsys):
    """Sizes of launches and buffers follow from the inputs."""
    if line() != "relax":
        pytest.skip("the Relay line fixes extents at import")
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    weight = np.random.default_rng(2).standard_normal((16, 8)).astype("float32")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"]), helper.make_node("Relu", ["y"], ["z"])], "rows",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 16])],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, ["n", 8])],
        [numpy_helper.from_array(weight, "w")],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "r.onnx")
    words = ["compile", tmp_path / "r.onnx", "--target", "cuda -arch=sm_80", "-o", tmp_path / "m.so"]
    assert main(capsys, *words)[0] == 0
    for n in (3, 70):
        np.savez(tmp_path / "in.npz", x=np.random.default_rng(n).standard_normal((n, 16)).astype("float32"))
        code, out, err = main(capsys, "run", tmp_path / "m.so", "--emulate", "--inputs", tmp_path / "in.npz",
                              "--expect", tmp_path / "r.onnx")  # fmt: skip
        assert code == 0 and "agrees with" in out, err


def test_the_archive_behind_a_library_is_a_plain_one(built):
    if built.suffix == ".so":
        with zipfile.ZipFile(built) as archive:
            assert "__global__" in archive.read("roller_tvm.cu").decode()
