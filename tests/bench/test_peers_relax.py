"""Peers of the Relax line, and operators as PrimFuncs."""

import json

import pytest

pytestmark = pytest.mark.relax
pytest.importorskip("tvm.relax")



def test_operators_become_functions_whose_weights_are_known(jobs):
    told = {case: json.loads((jobs.folder / p["file"]).read_text()) for case, p in jobs.prepared.items()}
    assert told["dense"]["constants"] == [1, 2] and told["norm"]["constants"] == []
    assert told["product"]["constants"] == [1], "TVM marks it for MetaSchedule"


@pytest.mark.slow
def test_roller_has_exp_as_arithmetic_and_its_peers_have_not(jobs):
    found = [jobs.tune("softmax", "roller", 1), jobs.tune("softmax", "untuned", 0)]
    assert [(f["status"], f["reason"]) for f in found] == [("ok", jobs.edge.EDGE.built), ("ok", "")]
    for kernel, calls in zip(found, (False, True), strict=True):
        assert (b"expf" in (jobs.folder / kernel["kernel"]).read_bytes()) == calls
    assert jobs.comes_again("softmax", "roller", 1, found[0])


def test_a_schedule_is_read_back_whoever_made_it():
    from tvm import s_tir, te

    from roller_bench.peers_relax import function_tiles, record_tiles
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

    from roller_bench.peers_relax import record_tiles
    from roller_tvm.device import device_for_target
    from roller_tvm.relax.record_lines import record_line
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
def test_metaschedule(jobs):
    found = jobs.tune("dense", "metaschedule", 4)
    assert found["status"] == "ok" and found["trials"] and found["curve"] and found["claimed_s"] > 0
    assert "inner(" in found["tiles"] or "parallel(" in found["tiles"]
    work = next((jobs.folder / "work").glob("*.metaschedule")) / "4"
    records = work / "database_tuning_record.json"
    before = records.read_text()
    records.write_text(before + '[0, [[["half')  # killed while it wrote
    again = jobs.tune("dense", "metaschedule", 4)
    assert jobs.comes_again("dense", "metaschedule", 4, found)
    assert again["schedule"] == found["schedule"] and records.read_text() == before
