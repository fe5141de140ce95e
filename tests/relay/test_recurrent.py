"""Recurrences on the Relay line beside its own builds: on GPUs, within subgraphs, in files, by TVM alone."""

import numpy as np
import pytest

pytestmark = pytest.mark.tvm
tvm = pytest.importorskip("tvm")
relay = pytest.importorskip("tvm.relay")
pytest.importorskip("onnx")

import roller_tvm  # noqa: E402
from roller_bench.recurrent_models import recurrent_model  # noqa: E402
from roller_tvm.device import load_device  # noqa: E402
from roller_tvm.errors import UnsupportedOperator  # noqa: E402
from roller_tvm.relay.importers import IMPORTER  # noqa: E402
from roller_tvm.relay.recurrent import with_recurrences  # noqa: E402
from roller_tvm.relay.tasks import extract_tasks, make_target  # noqa: E402

from ..recurrences.models import expected  # noqa: E402
from ..recurrences.test_models import CASES, computed_weights, outputs  # noqa: E402
from ..sampling import sampled  # noqa: E402

CUDA = "cuda -arch=sm_80"


def imported(name, steps=5):
    kind, options = CASES[name]
    model, inputs = recurrent_model(kind, steps, batch=3, features=4, hidden=20, **options)
    return model, inputs, IMPORTER.import_model(model)[1].mod


def by_tvm(mod, inputs):
    """What plain ``relay.build`` makes of a module."""
    module = tvm.contrib.graph_executor.GraphModule(relay.build(mod, "llvm")["default"](tvm.cpu()))
    module.run(**inputs)
    return [module.get_output(number).numpy() for number in range(module.get_num_outputs())]


@pytest.mark.parametrize("name", sampled(CASES, always=("lstm with all",)))
def test_steps_written_out_for_a_gpu(name):
    model, inputs, mod = imported(name)
    made = with_recurrences(mod, make_target(CUDA), load_device("a100"))
    assert "roller_tvm" not in str(made["main"])
    for one, other in zip(by_tvm(made, inputs), expected(model, inputs), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-6)


def test_tvm_alone_builds_an_import():
    model, inputs, mod = imported("gru back")
    for one, other in zip(by_tvm(mod, inputs), expected(model, inputs), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-6)
    with pytest.raises(Exception, match="recurrences are planned for CPUs, not for cuda"):
        relay.build(mod, make_target(CUDA))


@pytest.mark.parametrize(("target", "device"), [(CUDA, "a100"), ("llvm -num-cores 2", "cpu")])
def test_tasks_of_a_model_are_those_around_it(target, device):
    _, _, mod = imported("lstm with all", steps=2)
    names = {task.name for task in extract_tasks(mod, {}, make_target(target), load_device(device))}
    assert any("dense" in name for name in names) and not any("roller" in name for name in names)


def test_a_module_in_a_file(tmp_path):
    model, inputs, mod = imported("lstm both ways")
    (tmp_path / "m.json").write_text(tvm.ir.save_json(mod))
    built = roller_tvm.compile(tmp_path / "m.json", trusted=True)
    for one, other in zip(outputs(built, inputs), expected(model, inputs), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-6)


def test_beside_fused_kernels():
    model, inputs, _ = imported("rnn")
    built = roller_tvm.compile(model, fuse_rtasks=True)
    for one, other in zip(outputs(built, inputs), expected(model, inputs), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-6)


def test_computed_weights_are_written_out_by_tvm():
    model = computed_weights()
    inputs = {"X": np.ones((5, 1, 4), "float32"), "s": np.ones(1, "float32")}
    (made,) = outputs(roller_tvm.compile(model), inputs)
    np.testing.assert_allclose(made, expected(model, inputs)[0], atol=2e-6)


def test_weights_that_are_parameters_keep_the_tiles_of_the_import():
    model, inputs, mod = imported("gru back")
    assert with_recurrences(mod, make_target("llvm -num-cores 2"), None) is mod
    with pytest.raises(UnsupportedOperator, match="not for opencl"):
        relay.op.op.get("roller_tvm.gru").get_attr("FTVMStrategy")(None, [], None, make_target("opencl"))
