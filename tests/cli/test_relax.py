"""``compile`` and ``run`` on the Relax line, and what they say to mistakes."""

import json

import numpy as np
import pytest

from roller_tvm import cli
from roller_tvm.errors import UsageError
from roller_tvm.models.shapes import parse_buckets

pytestmark = pytest.mark.relax
onnx = pytest.importorskip("onnx")
from ..relay.onnx_models import convolution, three_products  # noqa: E402
from .command import main  # noqa: E402


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return convolution(tmp_path_factory.mktemp("model") / "small.onnx")


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """A product whose number of rows is open."""
    from onnx import TensorProto, helper, numpy_helper

    weight = np.random.default_rng(2).standard_normal((16, 8)).astype("float32")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], "rows",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 8])],
        [numpy_helper.from_array(weight, "w")],
    )  # fmt: skip
    path = tmp_path_factory.mktemp("model") / "rows.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return path, weight


@pytest.mark.parametrize("buckets", [(), ("--buckets", "2,5")])
def test_open_extents(rows, tmp_path, capsys, buckets):
    path, weight = rows
    assert main(capsys, "compile", path, "-o", tmp_path / "m.so", *buckets)[0] == 0
    for n in (2, 3):
        x = np.random.default_rng(n).random((n, 16), "float32")
        np.savez(tmp_path / "in.npz", x=x)
        words = ("run", tmp_path / "m.so", "--inputs", tmp_path / "in.npz", "--outputs", tmp_path / "out.npz")
        assert main(capsys, *words)[0] == 0
        with np.load(tmp_path / "out.npz") as outputs:
            np.testing.assert_allclose(outputs["output_0"], x @ weight, rtol=1e-4, atol=1e-4)
    code, out, _ = main(capsys, "run", tmp_path / "m.so")
    assert code == 0 and "output_0: [1, 8] float32" in out


@pytest.fixture(scope="module")
def branches(tmp_path_factory):
    return three_products(tmp_path_factory.mktemp("model") / "branches.onnx")


def test_no_block_waits_and_pocl_is_the_second_witness(pocl, branches, tmp_path, capsys):
    card = tmp_path / "a30.toml"
    card.write_text('base = "a100"\nname = "a30"\nunits = { value = 56, unit = "SM" }\n')
    words = ("compile", branches, "--target", "cuda -arch=sm_80", "--fuse-rtasks", "-o", tmp_path / "m.so")
    code, out, err = main(capsys, *words, "--explain", "--on-pocl", "--fusion-policy", "horizontal")
    assert code == 0 and "policy horizontal" in out and "PoCL executed 1 of 1 fused" in err
    code, out, err = main(capsys, *words, "--json", "--on-pocl", "--device", card)
    told = json.loads(out)["fusion"]
    assert code == 0 and "device: a30" in err and "PoCL executed 0 of 1 fused" in err
    assert "blocks wait for one another" in told["on_pocl"]["rtasks_0"]
    assert told["outside"] == {} and told["refused"] == []


def test_a_gpu_model_is_compiled_here_and_runs_where_there_is_a_gpu(model, tmp_path, capsys):
    import tvm

    code, _, _ = main(capsys, "compile", model, "--target", "cuda -arch=sm_80", "-o", tmp_path / "m.so")
    assert code == 0
    code, _, err = main(capsys, "run", tmp_path / "m.so")
    if not tvm.cuda(0).exist:
        assert code == 2 and "needs a cuda device, there is none here" in err


@pytest.mark.parametrize("text", ["", "n:", "n:1 n:2", "1 n:2", "0", "1;2", "n:-1"])
def test_buckets_that_are_none(text):
    with pytest.raises(UsageError):
        parse_buckets(text or ",")


@pytest.fixture(scope="module")
def tuned(model, tmp_path_factory):
    """The model's records."""
    folder = tmp_path_factory.mktemp("tuned") / "records"
    assert cli.main(["tune", str(model), "--output", str(folder), "--trials", "2"]) == 0
    return folder


def test_tuning_writes_metaschedules_files_and_resumes(model, tuned, capsys):
    from tvm.s_tir.meta_schedule.database import JSONDatabase

    records = JSONDatabase(work_dir=str(tuned)).get_all_tuning_records()
    assert records and all(0 < float(seconds) < 1 for record in records for seconds in record.run_secs)
    before = (tuned / "database_tuning_record.json").read_bytes()
    code, out, err = main(capsys, "tune", model, "--output", tuned, "--trials", "2", "--json")
    told = json.loads(out)
    assert code == 0 and "resumed" in {t["status"] for t in told["tasks"]} <= {"resumed", "fallback"}
    assert (tuned / "database_tuning_record.json").read_bytes() == before
    assert "device: " in err


@pytest.mark.nightly
def test_the_next_command_is_for_the_same_shapes(rows, tmp_path, capsys):
    words = ("tune", rows[0], "-o", tmp_path / "r", "--trials", "0")
    code, _, err = main(capsys, *words)
    assert code == 1 and "--input-shapes" in err and "--buckets" in err  # of an open extent nothing is planned
    code, _, err = main(capsys, *words, "--input-shapes", "x:[4,16]")
    assert code == 0 and f"compile {rows[0]} --input-shapes 'x:[4,16]' --tuning-records" in err
