"""Models from files: what is imported, and what is refused with its name and the remedy."""

import pytest

from roller_tvm.errors import BadInput
from roller_tvm.relay.importers import load_model, parse_shapes

from .onnx_models import convolution, normalised


@pytest.mark.tvm
class TestOnnx:
    def test_dynamic_shape_and_its_remedy(self, tmp_path):
        path = convolution(tmp_path / "m.onnx", shape=("N", 3, 16, 16))
        with pytest.raises(BadInput) as error:
            load_model(path)
        assert "'x' [N, 3, 16, 16]" in error.value.what
        assert '--input-shapes "x:[1,3,16,16]"' in error.value.remedy
        assert load_model(path, parse_shapes("x:[1,3,16,16]")).inputs["x"][0] == (1, 3, 16, 16)

    def test_the_module_is_that_of_tvms_own_import(self, tmp_path):
        """Values between the nodes are read without a change of the module."""
        import onnx
        import tvm
        from tvm import relay

        from roller_tvm.relay.from_onnx import from_onnx

        model = onnx.load(str(normalised(tmp_path / "m.onnx")))
        plain, _ = relay.frontend.from_onnx(model, {"x": (1, 3, 16, 16)}, freeze_params=True)
        imported = from_onnx(model, {"x": (1, 3, 16, 16)})
        typed = [relay.transform.InferType()(mod) for mod in (plain, imported.mod)]
        assert tvm.ir.structural_equal(*typed)
        assert imported.types["c2"].shape == (1, 8, 16, 16)

    @pytest.mark.nightly
    def test_folding_leaves_the_keys_of_the_tasks(self, tmp_path):
        """Records of a folded module are found by a build of the module as the importer made it."""
        import onnx
        from tvm import relay

        from roller_tvm.device import device_for_target
        from roller_tvm.relay.tasks import extract_tasks, make_target

        path = normalised(tmp_path / "m.onnx")
        plain, params = relay.frontend.from_onnx(onnx.load(str(path)), {"x": (1, 3, 16, 16)}, freeze_params=True)
        model = load_model(path)
        assert "batch_norm" in plain.astext(show_meta_data=False)
        assert "batch_norm" not in model.mod.astext(show_meta_data=False)
        for target in ("llvm -mcpu=core-avx2", "cuda -arch=sm_80"):
            device = device_for_target(target)
            keys = [{t.key for t in extract_tasks(m, p, make_target(target), device)}
                    for m, p in ((plain, params), (model.mod, model.params))]  # fmt: skip
            assert keys[0] == keys[1]

@pytest.mark.tvm
class TestRelay:
    def test_json_and_text_give_the_module_back(self, tmp_path):
        import tvm

        model = load_model(convolution(tmp_path / "m.onnx"))
        (tmp_path / "m.json").write_text(tvm.ir.save_json(model.mod))
        (tmp_path / "m.relay").write_text(model.mod.astext())
        for name in ("m.json", "m.relay"):
            again = load_model(tmp_path / name, trusted=True)
            assert again.inputs == model.inputs
            assert tvm.ir.structural_equal(again.mod, model.mod), name

    def test_weights_beside_it(self, tmp_path):
        import numpy as np
        import tvm
        from tvm import relay

        x, w = relay.var("x", shape=(1, 8)), relay.var("w", shape=(4, 8))
        mod = tvm.IRModule.from_expr(relay.Function([x, w], relay.nn.dense(x, w)))
        (tmp_path / "d.json").write_text(tvm.ir.save_json(mod))
        assert set(load_model(tmp_path / "d.json", trusted=True).inputs) == {"x", "w"}
        (tmp_path / "d.params").write_bytes(relay.save_param_dict({"w": np.ones((4, 8), "float32")}))
        model = load_model(tmp_path / "d.json", trusted=True)
        assert set(model.inputs) == {"x"} and set(model.params) == {"w"}
        with pytest.raises(BadInput, match="is \\[1, 8\\], not \\[2, 8\\]"):
            load_model(tmp_path / "d.json", {"x": (2, 8)}, trusted=True)

    @pytest.mark.parametrize(
        ("name", "content"),
        [("a.json", "{}"), ("b.json", "no"), ("c.relay", "def @f("), ("d.json", "[1, 2]")],
    )
    def test_not_relay(self, tmp_path, name, content):
        (tmp_path / name).write_text(content)
        with pytest.raises(BadInput) as error:
            load_model(tmp_path / name)
        assert error.value.remedy and error.value.where.endswith(name)

    def test_dynamic_input(self, tmp_path):
        import tvm
        from tvm import relay

        x = relay.var("x", shape=(relay.Any(), 8))
        (tmp_path / "d.json").write_text(tvm.ir.save_json(tvm.IRModule.from_expr(relay.Function([x], x))))
        with pytest.raises(BadInput, match="'x' has a dynamic shape \\[\\?, 8\\]"):
            load_model(tmp_path / "d.json", trusted=True)
