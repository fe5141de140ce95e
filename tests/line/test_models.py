"""The contract of a TVM line's models: import, save, open, run, profile; the line here passes every test."""

import errno
import importlib.util
import inspect
import os
import subprocess
import sys

import numpy as np
import pytest

from roller_tvm.errors import BadInput, DiskFull, UnsupportedOperator, Untrusted, UsageError
from roller_tvm.models.line import ModelLine, Request, model_line
from roller_tvm.models.shapes import parse_shapes
from roller_tvm.session import Session
from roller_tvm.tvm_env import Line, line

from ..models.imports import expected
from ..relay.onnx_models import convolution, normalised

pytestmark = pytest.mark.te
NAME = line()
LINE = model_line(Line(NAME)) if NAME else None
SUFFIXES = {"relay": (".tar", ".so"), "relax": (".so",)}.get(NAME, ())
PICTURE = np.random.default_rng(3).standard_normal((1, 3, 16, 16), np.float32)


def load_model(path, *args, **options):
    return LINE.importer.load(path, *args, **options)


def text_of(model):
    return model.mod.astext(show_meta_data=False) if NAME == "relay" else model.mod.script()


def test_both_lines_say_the_same_words():
    """What one line has on top of the protocol is private, or of that line alone."""
    for value in (Line.RELAY, Line.RELAX):
        made = model_line(value)
        own = {name for name in vars(type(made)) if not name.startswith("_")}
        assert own <= set(dir(ModelLine)) | set(ModelLine.__annotations__), value
        for name, method in inspect.getmembers(type(made), inspect.isfunction):
            if not name.startswith("_"):
                assert inspect.signature(method) == inspect.signature(getattr(ModelLine, name)), (value, name)


class TestOnnx:
    def test_inputs_are_those_that_are_not_weights(self, tmp_path):
        model = load_model(convolution(tmp_path / "m.onnx"))
        assert model.inputs == {"x": ((1, 3, 16, 16), "float32")} and not model.symbols
        assert "nn.conv2d" in text_of(model)

    def test_a_given_shape_fixes_an_open_one(self, tmp_path):
        path = convolution(tmp_path / "m.onnx", shape=("N", 3, 16, 16))
        assert load_model(path, parse_shapes("x:[2,3,16,16]")).inputs["x"][0] == (2, 3, 16, 16)

    @pytest.mark.parametrize(
        ("shapes", "said"),
        [({"y": (1,)}, "no input is called 'y'"), ({"x": (1, 3)}, "has 4 dimensions, [1, 3] has 2")],
    )
    def test_wrong_shapes(self, tmp_path, shapes, said):
        with pytest.raises(BadInput) as error:
            load_model(convolution(tmp_path / "m.onnx"), shapes)
        assert said in error.value.what

    def test_unsupported_operator_is_named_with_its_node(self, tmp_path):
        with pytest.raises(UnsupportedOperator) as error:
            load_model(convolution(tmp_path / "m.onnx", operator="Frobnicate"))
        assert error.value.what == "unsupported operators: Frobnicate (1x, first at 'act1')"

    @pytest.mark.parametrize("content", [b"", b"hello, I am a text", b"\x00" * 64, b"PK\x03\x04 zip"])
    def test_not_onnx(self, tmp_path, content):
        path = tmp_path / "m.onnx"
        path.write_bytes(content)
        with pytest.raises(BadInput) as error:
            load_model(path)
        assert error.value.what == "is not an ONNX model" and error.value.where == str(path)

    def test_half_a_file(self, tmp_path):
        path = convolution(tmp_path / "m.onnx")
        path.write_bytes(path.read_bytes()[:2000])
        with pytest.raises(BadInput):
            load_model(path)

    @pytest.mark.parametrize("name", ["missing.onnx", ".", "weights.pth"])
    def test_no_file_or_no_model(self, tmp_path, name):
        (tmp_path / "weights.pth").write_bytes(b"PK\x03\x04")
        with pytest.raises(BadInput) as error:
            load_model(tmp_path / name)
        assert error.value.remedy

    def test_layout(self, tmp_path):
        path = convolution(tmp_path / "m.onnx")
        model = load_model(path, layout="NHWC")
        assert 'data_layout="NHWC"' in text_of(model)
        outputs = Session(LINE, Request(schedules="tvm")).take("m", model).load().run({"x": PICTURE})
        np.testing.assert_allclose(outputs[0], expected(path, {"x": PICTURE})[0], rtol=1e-3, atol=1e-3)
        with pytest.raises(UsageError, match="unknown layout 'CHWN'"):
            load_model(path, layout="CHWN")


class TestModules:
    def test_json_gives_the_module_back(self, tmp_path):
        import tvm

        model = load_model(convolution(tmp_path / "m.onnx"))
        (tmp_path / "m.json").write_text(tvm.ir.save_json(model.mod))
        again = load_model(tmp_path / "m.json", trusted=True)
        assert again.inputs == model.inputs
        if NAME == "relay":
            assert tvm.ir.structural_equal(again.mod, model.mod)
        else:
            from roller_tvm.tir.nodes import structurally_equal

            assert structurally_equal(again.mod, model.mod)
        with pytest.raises(BadInput, match="no input is called 'z'"):
            load_model(tmp_path / "m.json", {"z": (4, 3, 16, 16)}, trusted=True)
        with pytest.raises(BadInput, match="is .1, 3, 16, 16., not .4, 3, 16, 16."):
            load_model(tmp_path / "m.json", {"x": (4, 3, 16, 16)}, trusted=True)

    @pytest.mark.parametrize("content", ["{}", "no", "[1, 2]", ""])
    def test_no_module(self, tmp_path, content):
        (tmp_path / "a.json").write_text(content)
        with pytest.raises(BadInput) as error:
            load_model(tmp_path / "a.json")
        assert error.value.remedy and error.value.where.endswith("a.json")

    @pytest.mark.parametrize("content", [b"", b"no zip at all"])
    def test_no_exported_program(self, tmp_path, content):
        import zipfile

        path = tmp_path / "m.pt2"
        path.write_bytes(content)
        with pytest.raises(BadInput, match="is not an ExportedProgram"):
            load_model(path)
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("a", "b")
        said = "is not an ExportedProgram" if importlib.util.find_spec("torch") else "needs PyTorch"
        with pytest.raises(Untrusted, match="a program that can do whatever you can do"):
            load_model(path)
        with pytest.raises(BadInput, match=said):
            load_model(path, trusted=True)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """(ONNX file, session of the model built for one thread)."""
    path = normalised(tmp_path_factory.mktemp("model") / "m.onnx")
    return path, Session(LINE, Request(threads=1)).read(path)


@pytest.fixture(scope="module")
def saved(built, tmp_path_factory):
    folder = tmp_path_factory.mktemp("built")
    return {suffix: built[1].save(folder / f"m{suffix}") for suffix in SUFFIXES}


class TestBuilt:
    @pytest.mark.parametrize("suffix", SUFFIXES)
    def test_a_file_says_its_inputs_and_runs(self, built, saved, suffix):
        model = LINE.open(saved[suffix])
        assert model.inputs == built[1].inputs == {"x": ((1, 3, 16, 16), "float32")} and model.kind == "cpu"
        (wanted,) = expected(built[0], {"x": PICTURE})
        for ready in (model, built[1].load()):
            (got,) = ready.run({"x": PICTURE})
            np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-3)
        assert model.report == built[1].load().report and model.report.plans
        times = model.times({"x": PICTURE}, number=2, repeat=3)
        assert len(times) == 3 and min(times) > 0

    @pytest.mark.parametrize("suffix", SUFFIXES)
    def test_it_tells_what_its_kernels_take(self, saved, suffix):
        model = LINE.open(saved[suffix])
        before = model.run({"x": PICTURE})
        rows = model.kernel_times({"x": PICTURE}, repeat=3)
        assert any("conv2d" in r.name and r.calls == 1 and "16x16" in " ".join(r.arguments) for r in rows)
        assert all(r.seconds > 0 for r in rows)
        np.testing.assert_array_equal(model.run({"x": PICTURE})[0], before[0])

    def test_plain_tvm_runs_it(self, saved):
        code = {
            "relay": "from tvm.contrib import graph_executor\nm = graph_executor.GraphModule("
                     "tvm.runtime.load_module(path)['default'](tvm.cpu()))\nm.set_input('x', x); m.run()\n"
                     "print(m.get_output(0).numpy().shape, 'roller_tvm' in sys.modules)",
            "relax": "from tvm import relax\nvm = relax.VirtualMachine(tvm.runtime.load_module(path), tvm.cpu())\n"
                     "y = vm['main'](tvm.runtime.tensor(x)); y = y if hasattr(y, 'numpy') else y[0]\n"
                     "print(y.numpy().shape, 'roller_tvm' in sys.modules)",
        }[NAME]  # fmt: skip
        start = f"import sys, numpy as np, tvm; path = {str(saved['.so'])!r}; x = np.ones((1, 3, 16, 16), 'float32')\n"
        done = subprocess.run([sys.executable, "-c", start + code], capture_output=True, text=True)
        assert done.stdout.strip().endswith(") False"), done.stderr

    def test_no_space_left(self, built, tmp_path, monkeypatch):
        def full(*args):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "replace", full)
        with pytest.raises(DiskFull, match="nothing was written"):
            built[1].save(tmp_path / "m.so")
        assert not list(tmp_path.iterdir())

    def test_refused(self, saved, tmp_path):
        with pytest.raises(UsageError, match="m.zip"):
            LINE.save(None, tmp_path / "m.zip")
        with pytest.raises(BadInput, match="mkdir -p"):
            LINE.save(None, tmp_path / "no" / "m.so")
        (tmp_path / "text.so").write_text("no library")
        for name, said in (("none.so", "no such file"), ("text.so", "is not a model of the Rel.. line")):
            with pytest.raises(BadInput, match=said):
                LINE.open(tmp_path / name)
        with pytest.raises(BadInput, match="needs a cuda device, there is none here"):
            LINE.open(saved[".so"], "cuda")
