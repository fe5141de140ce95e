"""The Relax line's edge: operators as PrimFuncs, and each tuner on a small one."""

import json

import numpy as np
import pytest

pytestmark = pytest.mark.relax
pytest.importorskip("tvm.relax")

from roller_tvm.compare import relax as edge  # noqa: E402
from roller_tvm.compare.suite import Case  # noqa: E402
from roller_tvm.errors import BadInput  # noqa: E402

from ..relay.onnx_models import convolution  # noqa: E402

#: One core: the tests run beside others.
TARGET = "llvm -mcpu=core-avx2 -num-cores=1"
CASES = [Case("dense", "dense", "m=4 n=32 k=16 bias=1 relu=1"), Case("norm", "layer_norm", "shape=4x16"),
         Case("softmax", "softmax", "shape=4x16"), Case("product", "matmul", "m=4 n=32 k=16")]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("comparison")


@pytest.fixture(scope="module")
def prepared(folder):
    return {p["case"]["id"]: p for p in edge.prepare([c.to_json() for c in CASES], TARGET, str(folder))}


def tuned(folder, prepared, case, tuner, trials):
    task = str(folder / prepared[case]["file"])
    return edge.tune(task, prepared[case]["case"], tuner, trials, TARGET, str(folder))


def comes_again(folder, prepared, case, tuner, trials, found):
    """Whether the kernel of a schedule is the same file when it is built from what results tell."""
    task, kernel = str(folder / prepared[case]["file"]), folder / found["kernel"]
    kernel.unlink()
    again = edge.build_again(task, prepared[case]["case"], tuner, trials, found["schedule"], TARGET, str(folder))
    return again == found["kernel"] and kernel.exists()


def test_operators_become_functions_whose_weights_are_known(prepared, folder):
    assert all(not p["reason"] and p["flops"] > 0 for p in prepared.values())
    told = {case: json.loads((folder / p["file"]).read_text()) for case, p in prepared.items()}
    assert told["dense"]["constants"] == [1, 2] and told["norm"]["constants"] == []
    assert told["product"]["constants"] == [1], "TVM marks it for MetaSchedule"


@pytest.mark.slow
def test_roller_has_exp_as_arithmetic_and_its_peers_have_not(prepared, folder):
    found = [tuned(folder, prepared, "softmax", "roller", 1), tuned(folder, prepared, "softmax", "untuned", 0)]
    assert [(f["status"], f["reason"]) for f in found] == [("ok", edge.BUILT), ("ok", "")]
    for kernel, calls in zip(found, (False, True), strict=True):
        assert (b"expf" in (folder / kernel["kernel"]).read_bytes()) == calls
    (own,) = folder.glob("kernels/*.prepared/out0.npy")
    plain = own.parent.with_suffix("") / "out0.npy"
    assert (np.load(own) == np.load(plain)).all()  # what calls exp judges what does not
    assert comes_again(folder, prepared, "softmax", "roller", 1, found[0])


@pytest.mark.slow
def test_roller_and_untuned_are_built_checked_and_timed(prepared, folder):
    found = [tuned(folder, prepared, "dense", "roller", 1), tuned(folder, prepared, "dense", "untuned", 0)]
    assert [f["status"] for f in found] == ["ok", "ok"]
    assert found[0]["seconds"] > 0 and found[0]["tiles"].startswith("cpu.")
    assert comes_again(folder, prepared, "dense", "roller", 1, found[0])
    assert comes_again(folder, prepared, "dense", "untuned", 0, found[1])
    rounds = edge.time([str(folder / f["kernel"]) for f in found], TARGET, 2)
    assert [len(kernel) for kernel in rounds] == [2, 2] and all(s > 0 for kernel in rounds for s in kernel)
    assert tuned(folder, prepared, "norm", "roller", 1)["status"] == "ok"


def test_a_schedule_is_read_back_whoever_made_it():
    from tvm import s_tir, te

    from roller_tvm.compare.relax.reading import function_tiles, record_tiles
    from roller_tvm.te import te_operator

    func = te.create_prim_func(te_operator("matmul", m=32, n=48, k=64))
    schedule = s_tir.Schedule(func)
    block = schedule.get_sblock("T_matmul_NN")
    i, j, k = schedule.get_loops(block)
    (io, ii), (jo, ji), (ko, ki) = (schedule.split(loop, [None, n]) for loop, n in ((i, 4), (j, 16), (k, 8)))
    schedule.reorder(io, jo, ko, ki, ii, ji)
    schedule.parallel(schedule.fuse(io, jo))
    schedule.vectorize(ji)
    schedule.decompose_reduction(block, ko)
    assert function_tiles(schedule.mod["main"]) == (
        "T_matmul_NN: parallel(v_i0=8 v_i1=3) core(v_i0=4 v_i1=16 v_k=64) inner(v_i0=4 v_i1=16) vector(v_i1=16)"
        " v_i0=8x4 v_i1=3x16 v_k=8x8"
    )
    assert record_tiles(schedule.mod, "no record") == ("", None)


def test_weights_that_metaschedule_may_lay_out_are_priced_so():
    from tvm import IRModule, s_tir, te
    from tvm.target import Target

    from roller_tvm.compare.relax.reading import record_tiles
    from roller_tvm.device import device_for_target
    from roller_tvm.relax.database import record_line
    from roller_tvm.te import te_operator

    words = {"kind": "llvm", "mcpu": "skylake-avx512", "num-cores": 2}
    device, thoughts = device_for_target("llvm -mcpu=skylake-avx512 -num-cores=2"), []
    marked = te.create_prim_func(te_operator("dense", m=1, n=1024, k=1024))
    for func in (marked.without_attr("layout_free_buffers"), marked):
        mod = IRModule({"main": func})
        schedule = s_tir.Schedule(mod)
        block = schedule.get_sblock("T_matmul_NT")
        _, j, _ = schedule.get_loops(block)
        jo, ji = schedule.split(j, [None, 64])
        schedule.reorder(jo, schedule.get_loops(block)[-1], ji)
        _, thought = record_tiles(mod, record_line(mod, schedule, Target(words)), device)
        assert thought is not None and thought.tiles.endswith("register(i1=64)")
        thoughts.append(thought.seconds)
    assert thoughts[0] > 2 * thoughts[1]


@pytest.mark.nightly
def test_metaschedule(prepared, folder):
    found = tuned(folder, prepared, "dense", "metaschedule", 4)
    assert found["status"] == "ok" and found["trials"] and found["curve"] and found["claimed_s"] > 0
    assert "inner(" in found["tiles"] or "parallel(" in found["tiles"]
    work = next((folder / "work").glob("*.metaschedule")) / "4"
    records = work / "database_tuning_record.json"
    before = records.read_text()
    records.write_text(before + '[0, [[["half')  # killed while it wrote
    again = tuned(folder, prepared, "dense", "metaschedule", 4)
    assert comes_again(folder, prepared, "dense", "metaschedule", 4, found)
    assert again["schedule"] == found["schedule"] and records.read_text() == before


@pytest.mark.nightly
@pytest.mark.parametrize("tuner", ["xgboost", "xgbregression"])
def test_the_search_over_rtiles(prepared, folder, tuner):
    pytest.importorskip("xgboost")
    found = tuned(folder, prepared, "dense", tuner, 8)
    assert found.get("status", "ok") == "ok" and found["claimed_s"] > 0 and found["tiles"].startswith("cpu.")
    assert comes_again(folder, prepared, "dense", tuner, 8, found)


@pytest.mark.nightly
def test_what_was_learned_of_others_ranks(prepared, folder):
    pytest.importorskip("xgboost")
    tuned(folder, prepared, "dense", "xgboost", 8)
    (measured,) = (folder / "work").glob("*.xgboost/measured.8.json")
    with pytest.raises(BadInput, match="nothing to learn from"):  # but of the operator itself
        tuned(folder, prepared, "dense", "ranked", 0)
    other = json.loads(measured.read_text()) | {"operator": "dense m=8 n=32 k=16"}
    (measured.parent / "measured.of_another.json").write_text(json.dumps(other))
    found = tuned(folder, prepared, "dense", "ranked", 0)
    assert found.get("status", "ok") == "ok" and found["trials"] == 0 and found["tiles"].startswith("cpu.")


@pytest.mark.slow
def test_a_whole_model(tmp_path):
    pytest.importorskip("onnxruntime")
    from roller_tvm.compare.whole import jobs

    (prepared,) = jobs.prepare([str(convolution(tmp_path / "c.onnx"))], None, str(tmp_path))
    assert not prepared["reason"]
    task = str(tmp_path / prepared["file"])
    edge = "roller_tvm.compare.relax"
    tuners = (("roller", 1), ("untuned", 0))
    found = [jobs.tune(task, prepared["case"], *tuner, TARGET, str(tmp_path), edge) for tuner in tuners]
    assert [f["status"] for f in found] == ["ok", "ok"]
    assert all(0 < f["error"] < 1e-4 and f["build_s"] > 0 for f in found)  # the reference is onnxruntime's
