"""Files that are no ONNX model, or a broken one: each ends in a typed error that names the fault and a remedy."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from roller_tvm.errors import BadInput, RollerError, UnsupportedOperator

from .imports import computed, expected, load_model, one_node, write

pytestmark = pytest.mark.te
X = np.ones((2, 4), "float32")
WEIGHT = np.ones((4, 8), "float32")


def product(path):
    """Write a matrix product with a weight."""
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="node")
    return write(path, [node], {"x": X}, weights={"w": WEIGHT}, opset=13)


def changed(path, change):
    """Change the model in a file."""
    model = onnx.load(str(path))
    change(model)
    path.write_bytes(model.SerializeToString())
    return path


def nodes(*made):
    """Return a change that puts these nodes (operator, inputs, outputs) in the place of all."""

    def change(model):
        del model.graph.node[:]
        model.graph.node.extend(helper.make_node(*node, name=f"n{at}") for at, node in enumerate(made))

    return change


def element_type(number):
    def change(model):
        model.graph.input[0].type.tensor_type.elem_type = number

    return change


def domain(model):
    model.opset_import.append(helper.make_opsetid("my.ops", 1))
    model.graph.node[0].domain = "my.ops"


def sequence(model):
    model.graph.input[0].CopyFrom(helper.make_tensor_sequence_value_info("x", TensorProto.FLOAT, [2]))


def rows(model):
    model.graph.initializer[0].dims[0] = 5


def depth(model):
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.ones((5, 8), "float32"), "w"))


def weight_type(model):
    model.graph.initializer[0].data_type = 77


BROKEN = {
    "operator": (nodes(("Frobnicate", ["x"], ["y"])), "unsupported operators: Frobnicate (1x, first at 'n0')"),
    "domain": (domain, "my.ops.MatMul 'node' of a domain that TVM does not know"),
    "element type 0": (element_type(0), "input 'x' has the unknown element type 0"),
    "element type 99": (element_type(99), "input 'x' has the unknown element type 99"),
    "strings": (element_type(TensorProto.STRING), "input 'x' is a tensor of strings"),
    "sequence": (sequence, "input 'x' is no tensor but a sequence"),
    "unknown value": (nodes(("Add", ["x", "q"], ["y"])), "Add 'n0' reads the value 'q', which nothing makes"),
    "cycle": (
        nodes(("Add", ["x", "b"], ["a"]), ("Relu", ["a"], ["b"]), ("Relu", ["b"], ["y"])),
        "Add 'n0' reads the value 'b', which a later node makes: a cycle",
    ),
    "made twice": (
        nodes(("Relu", ["x"], ["y"]), ("Abs", ["x"], ["y"])),
        "Abs 'n1' makes the value 'y', which is there already",
    ),
    "no such output": (nodes(("Relu", ["x"], ["z"])), "nothing makes its output 'y'"),
    "no outputs": (lambda model: model.graph.ClearField("output"), "it has no outputs"),
    "no nodes": (lambda model: model.graph.ClearField("node"), "is not an ONNX model"),
    "size of a weight": (rows, "weight 'w' holds 128 bytes, and float32 [5, 8] needs 160"),
    "type of a weight": (weight_type, "weight 'w' has the unknown element type 77"),
    "weight and its use": (depth, ""),
    "broadcast": (nodes(("Add", ["x", "w"], ["y"])), "Add 'n0'"),
    "inputs left out": (nodes(("Conv", ["x"], ["y"])), "Conv 'n0'"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_models(tmp_path, name):
    change, said = BROKEN[name]
    with pytest.raises(BadInput) as error:
        load_model(changed(product(tmp_path / "m.onnx"), change))
    assert said in error.value.what and "\n" not in error.value.what
    assert error.value.where.endswith("m.onnx") and error.value.remedy


@pytest.mark.parametrize("content", [b"", b"hello", b"\x00" * 64, np.random.default_rng(0).bytes(4096)])
def test_other_content(tmp_path, content):
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    with pytest.raises(BadInput, match="is not an ONNX model"):
        load_model(path)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_truncated(tmp_path, share):
    path = product(tmp_path / "m.onnx")
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(BadInput):
        load_model(path)


@pytest.mark.parametrize("name", ["missing.onnx", "."])
def test_no_file(tmp_path, name):
    with pytest.raises(BadInput, match="no such file|is a folder"):
        load_model(tmp_path / name)


class TestWeightsBesideTheModel:
    def external(self, tmp_path):
        path = product(tmp_path / "m.onnx")
        model = onnx.load(str(path))
        onnx.save(model, str(path), save_as_external_data=True, location="w.bin", size_threshold=0)
        return path

    def test_are_read(self, tmp_path):
        path = self.external(tmp_path)
        np.testing.assert_allclose(computed(load_model(path), {"x": X})[0], X @ WEIGHT)

    def test_missing(self, tmp_path):
        path = self.external(tmp_path)
        (tmp_path / "w.bin").unlink()
        with pytest.raises(BadInput, match="its weights cannot be read"):
            load_model(path)

    def test_truncated(self, tmp_path):
        path = self.external(tmp_path)
        (tmp_path / "w.bin").write_bytes(b"abc")
        with pytest.raises(BadInput, match="weights cannot be read|weight 'w' holds 3 bytes") as error:
            load_model(path)
        assert "beside it" in error.value.remedy


class TestShapes:
    @pytest.mark.parametrize(
        ("shapes", "said"),
        [({"z": (1,)}, "no input is called 'z'"), ({"x": (2, 4, 1)}, "has 2 dimensions"), ({"x": ()}, "has 0"),
         ({"x": (2, 5)}, "")],
    )  # fmt: skip
    def test_wrong_ones(self, tmp_path, shapes, said):
        with pytest.raises(RollerError) as error:
            load_model(product(tmp_path / "m.onnx"), shapes)
        assert said in error.value.what and error.value.remedy

    def test_scalars(self, tmp_path):
        path, _ = one_node(tmp_path / "m.onnx", "Mul", [X, np.float32(3)])
        inputs = {"x0": X, "x1": np.array(3, "float32")}
        for shapes in (None, {"x1": ()}):
            model = load_model(path, shapes)
            assert model.inputs["x1"] == ((), "float32") and not model.notes
            np.testing.assert_array_equal(computed(model, inputs)[0], expected(path, inputs)[0])

    def test_an_unknown_rank_may_be_a_scalars(self, tmp_path):
        path, _ = one_node(tmp_path / "m.onnx", "Relu", [np.float32(3)])
        changed(path, lambda model: model.graph.input[0].type.tensor_type.ClearField("shape"))
        with pytest.raises(BadInput, match="'x0' of unknown rank"):
            load_model(path)
        assert load_model(path, {"x0": ()}).inputs == {"x0": ((), "float32")}


def test_a_later_error_keeps_its_type(tmp_path):
    """An operator that TVM lacks is told from a broken file."""
    with pytest.raises(UnsupportedOperator):
        load_model(changed(product(tmp_path / "m.onnx"), BROKEN["operator"][0]))


@pytest.mark.parametrize("how", ["link", "name"])
def test_weights_outside_of_the_folder_are_not_read(tmp_path, how):
    (tmp_path / "model").mkdir()
    path = product(tmp_path / "model" / "m.onnx")
    onnx.save(onnx.load(str(path)), str(path), save_as_external_data=True, location="weights", size_threshold=0)
    assert "x" in load_model(path).inputs
    (tmp_path / "model" / "weights").rename(tmp_path / "secret")
    if how == "link":
        (tmp_path / "model" / "weights").symlink_to(tmp_path / "secret")
    else:

        def point_out(model):
            model.graph.initializer[0].external_data[0].value = "../secret"

        model = onnx.load(str(path), load_external_data=False)
        point_out(model)
        path.write_bytes(model.SerializeToString())
    with pytest.raises(BadInput, match="'w' lies outside of its folder") as error:
        load_model(path)
    assert error.value.remedy
