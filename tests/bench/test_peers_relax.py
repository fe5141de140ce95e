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


@pytest.mark.nightly
def test_metaschedule(jobs):
    found = jobs.tune("dense", "metaschedule", 4)
    assert found["status"] == "ok" and found["trials"] and found["curve"] and found["claimed_s"] > 0
    work = next((jobs.folder / "work").glob("*.metaschedule")) / "4"
    records = work / "database_tuning_record.json"
    before = records.read_text()
    records.write_text(before + '[0, [[["half')  # killed while it wrote
    again = jobs.tune("dense", "metaschedule", 4)
    assert jobs.comes_again("dense", "metaschedule", 4, found)
    assert again["claimed_s"] == found["claimed_s"] and again["curve"] == found["curve"]  # TVM writes layouts anew
    assert again["trials"] == found["trials"] and records.read_text() == before
