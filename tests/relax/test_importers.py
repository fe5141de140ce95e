"""Models from files on the Relax line: what is imported, and what is refused with its name and the remedy."""

import numpy as np
import pytest

from roller_tvm.errors import BadInput, UnsupportedOperator
from roller_tvm.models import parse_shapes
from roller_tvm.relax.importers import load_model

from ..models.imports import expected
from ..relay.onnx_models import convolution, normalised, residual

pytestmark = pytest.mark.relax
PICTURE = np.random.default_rng(3).standard_normal((1, 3, 16, 16), np.float32)


def run(mod, *inputs):
    """What TVM's own pipeline makes of a module."""
    import tvm
    from tvm import relax

    vm = relax.VirtualMachine(tvm.compile(mod, tvm.target.Target("llvm")), tvm.cpu())
    result = vm["main"](*map(tvm.runtime.tensor, inputs))
    return [r.numpy() for r in ([result] if hasattr(result, "numpy") else result)]


def operators(mod):
    """Names of the operators that main calls."""
    bindings = [b.value for block in mod["main"].body.blocks for b in block.bindings]
    return [v.op.name for v in bindings if hasattr(getattr(v, "op", None), "name")]


class TestOnnx:
    @pytest.mark.parametrize("simplify", [None, True, False])
    def test_computes_what_onnxruntime_computes(self, tmp_path, simplify):
        path = normalised(tmp_path / "m.onnx")
        model = load_model(path, simplify=simplify)
        assert model.inputs == {"x": ((1, 3, 16, 16), "float32")} and not model.symbols
        (got,), (wanted,) = run(model.mod, PICTURE), expected(path, {"x": PICTURE})
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5 * abs(wanted).max())

    def test_simplified_batch_normalisation_is_in_the_weights(self, tmp_path):
        path = normalised(tmp_path / "m.onnx")
        assert "relax.nn.batch_norm" in operators(load_model(path, simplify=False).mod)
        assert "relax.nn.batch_norm" not in operators(load_model(path, simplify=True).mod)

    def test_names_of_inputs_are_those_of_the_file(self, tmp_path):
        import onnx

        path = convolution(tmp_path / "m.onnx")
        model = onnx.load(str(path))
        model.graph.input[0].name = model.graph.node[0].input[0] = "gpu_0/data.0"
        onnx.save(model, str(path))
        assert list(load_model(path).inputs) == ["gpu_0/data.0"]

    def test_open_extents_stay_open_unless_given(self, tmp_path):
        path = convolution(tmp_path / "m.onnx", shape=("N", 3, 16, 16))
        model = load_model(path)
        assert model.inputs["x"][0] == ("N", 3, 16, 16) and model.symbols == ("N",)
        assert load_model(path, parse_shapes("x:[2,3,16,16]")).inputs["x"][0] == (2, 3, 16, 16)

    def test_a_named_extent_is_the_same_in_every_input(self, tmp_path):
        import onnx

        path = convolution(tmp_path / "m.onnx", shape=("N", 3, 16, 16))
        model = onnx.load(str(path))
        model.graph.input.append(onnx.helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, ["N", 10]))
        model.graph.node.append(onnx.helper.make_node("Add", ["y", "z"], ["sum"]))
        model.graph.output[0].name = "sum"
        onnx.save(model, str(path))
        assert load_model(path, {"z": (2, 10)}).inputs["x"][0] == (2, 3, 16, 16)

    def test_computed_shapes_need_simplifying_and_the_error_says_so(self, tmp_path):
        path = shape_from_shape(tmp_path / "m.onnx")
        with pytest.raises(UnsupportedOperator) as error:
            load_model(path, simplify=False)
        assert "leave simplify=False out" in error.value.remedy
        x = np.arange(24, dtype="float32").reshape(2, 3, 4)
        np.testing.assert_array_equal(run(load_model(path).mod, x)[0], expected(path, {"x": x})[0])

    def test_layout_of_a_network_with_sums_of_onnx(self, tmp_path):
        """They are imported as the sum of a stack, whose rank TVM's pass knows no layout for."""
        path = residual(tmp_path / "m.onnx")
        model = load_model(path, layout="NHWC")
        assert 'data_layout="NHWC"' in model.mod["main"].script()
        np.testing.assert_allclose(run(model.mod, PICTURE)[0], expected(path, {"x": PICTURE})[0], rtol=1e-3, atol=1e-3)


def shape_from_shape(path):
    """A reshape to what is computed from the input's shape, as exporters write ``x.view(x.numel())``."""
    import onnx
    from onnx import TensorProto, helper

    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("ReduceProd", ["s"], ["t"], axes=[0], keepdims=1),
        helper.make_node("Reshape", ["x", "t"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "computed",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    model.ir_version = 8
    onnx.save(model, str(path))
    return path


class TestTorch:
    def test_exported_program_with_an_open_batch(self, tmp_path):
        torch = pytest.importorskip("torch")

        class Small(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.conv, self.norm = torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8)
                self.last = torch.nn.Linear(8, 5)

            def forward(self, x):
                return self.last(torch.relu(self.norm(self.conv(x))).mean((2, 3)))

        small, path = Small().eval(), tmp_path / "m.pt2"
        example = (torch.from_numpy(np.repeat(PICTURE, 2, 0)),)
        program = torch.export.export(small, example, dynamic_shapes=({0: torch.export.Dim("batch")},))
        torch.export.save(program, str(path))
        model = load_model(path)
        (symbol,) = model.symbols
        assert model.inputs == {"x": ((symbol, 3, 16, 16), "float32")} and len(model.mod["main"].params) == 1
        wanted = small(torch.from_numpy(PICTURE)).detach().numpy()
        np.testing.assert_allclose(run(model.mod, PICTURE)[0], wanted, rtol=1e-4, atol=1e-5)
        fixed = load_model(path, {"x": (1, 3, 16, 16)})
        assert fixed.inputs["x"][0] == (1, 3, 16, 16)
        np.testing.assert_allclose(run(fixed.mod, PICTURE)[0], wanted, rtol=1e-4, atol=1e-5)
        with pytest.raises(BadInput, match="is \\[.*, 3, 16, 16\\], not \\[1, 3, 8, 8\\]"):
            load_model(path, {"x": (1, 3, 8, 8)})



class TestRelax:
    def test_json_gives_the_module_back(self, tmp_path):
        import tvm

        from roller_tvm.tir.nodes import structurally_equal

        model = load_model(convolution(tmp_path / "m.onnx", shape=("N", 3, 16, 16)))
        (tmp_path / "m.json").write_text(tvm.ir.save_json(model.mod))
        again = load_model(tmp_path / "m.json", trusted=True)
        assert again.inputs == model.inputs and structurally_equal(again.mod, model.mod)
        assert load_model(tmp_path / "m.json", {"x": (4, 3, 16, 16)}, trusted=True).inputs["x"][0] == (4, 3, 16, 16)
        with pytest.raises(BadInput, match="no input is called 'z'"):
            load_model(tmp_path / "m.json", {"z": (4, 3, 16, 16)}, trusted=True)

    def test_weights_beside_it_become_constants(self, tmp_path):
        import tvm
        from tvm import relax

        builder = relax.BlockBuilder()
        x, w = (relax.Var(n, relax.TensorType((4, 4), "float32")) for n in "xw")
        with builder.function("main", [x, w]):
            builder.emit_func_output(builder.emit(relax.op.matmul(x, w)))
        (tmp_path / "d.json").write_text(tvm.ir.save_json(builder.get()))
        assert list(load_model(tmp_path / "d.json", trusted=True).inputs) == ["x", "w"]
        weights = np.random.default_rng(0).standard_normal((4, 4), np.float32)
        tvm.runtime.save_param_dict_to_file({"w": tvm.runtime.tensor(weights)}, str(tmp_path / "d.params"))
        model = load_model(tmp_path / "d.json", trusted=True)
        assert list(model.inputs) == ["x"]
        np.testing.assert_allclose(run(model.mod, np.eye(4, dtype="float32"))[0], weights)

