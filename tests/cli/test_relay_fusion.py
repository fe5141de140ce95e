"""``--fuse-rtasks`` on the Relay line: compiled, explained, drawn, executed by the emulator."""


import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
pytestmark = pytest.mark.tvm
pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper, save  # noqa: E402

from roller_tvm import cli  # noqa: E402
from roller_tvm.cli.model import open_session  # noqa: E402
from roller_tvm.cli.tune import next_command  # noqa: E402
from roller_tvm.rammer import fused_kernel  # noqa: E402

from .command import main  # noqa: E402


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Two branches of one input, put together."""
    rng = np.random.default_rng(0)
    nodes, weights = [], []
    for n in "ab":
        weights.append(numpy_helper.from_array(rng.standard_normal((4, 3, 3, 3), np.float32), f"w{n}"))
        nodes.append(helper.make_node("Conv", ["x", f"w{n}"], [f"c{n}"], name=f"conv{n}", pads=[1, 1, 1, 1]))
        nodes.append(helper.make_node("Relu", [f"c{n}"], [n]))
    nodes.append(helper.make_node("Concat", ["a", "b"], ["y"], axis=1))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 3, 8, 8))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 8, 8, 8))
    made = helper.make_model(helper.make_graph(nodes, "branches", [x], [y], weights),
                             opset_imports=[helper.make_opsetid("", 13)])  # fmt: skip
    made.ir_version = 8
    path = tmp_path_factory.mktemp("model") / "branches.onnx"
    save(made, str(path))
    return path


@pytest.mark.nightly
def test_what_is_left_is_tuned(model, tmp_path, capsys):
    words = [model, "--target", "cuda -arch=sm_80", "--fuse-rtasks"]
    code, out, _ = main(capsys, "tune", *words, "--tasks", "list")
    assert code == 0 and out.splitlines()[-1].startswith("0 tasks")
    records = tmp_path / "r.json"
    code, out, err = main(capsys, "tune", *words, "--trials", "0", "-o", records)
    assert code == 0 and "note: FuseRTasks: 1 kernels instead of" in out and "--fuse-rtasks" in err
    assert "--tuning-records" not in err  # there are none


def test_a_device_for_tvms_own_schedules(model, tmp_path, capsys):
    words = ["--target", "cuda -arch=sm_80", "--device", "a100", "--schedules", "tvm"]
    code, _, err = main(capsys, "compile", model, "-o", tmp_path / "m.tar", *words)
    assert code == 2 and "not planned for a device" in err


def test_a_kernel_that_pocl_finds_wrong_is_not_built(monkeypatch, pocl, model, tmp_path, capsys):
    run = fused_kernel._run
    monkeypatch.setattr(fused_kernel, "_run", lambda m, n, block, *more: run(m, n, "0u" if n else block, *more))
    words = ["compile", model, "--target", "cuda -arch=sm_80", "-o", tmp_path / "m.tar", "--fuse-rtasks", "--on-pocl"]
    code, _, err = main(capsys, *words, "--fusion-policy", "horizontal")
    assert code == 1 and "result 1: " in err and not (tmp_path / "m.tar").exists()


def test_for_a_card_of_fewer_units_than_its_architecture_s(model, tmp_path, capsys):
    card = tmp_path / "a30.toml"
    card.write_text('base = "a100"\nname = "a30"\nunits = { value = 56, unit = "SM" }\n')
    words = [str(model), "--target", "cuda -arch=sm_80", "--fuse-rtasks", "--device", str(card)]
    code, out, err = main(capsys, "compile", *words, "-o", tmp_path / "m.tar", "--explain")
    assert code == 0 and "a30: 56 units" in out and "the device has to have 56 units" in out and "device: a30" in err
    args = cli.make_parser("tune").parse_args(["tune", *words, "--output", str(tmp_path / "r.json")])
    command = next_command(args, open_session(args, "tuning a model", tell=True), tuned=True)
    assert command.endswith(f"--device {card} --fuse-rtasks --tuning-records {args.output} -o model.tar")
