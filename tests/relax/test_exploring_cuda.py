"""Exploration on CUDA without a card: what a library holds, and whole explorations on a card that is none."""

import subprocess

import pytest

pytestmark = pytest.mark.relax
tvm = pytest.importorskip("tvm")

import roller_tvm  # noqa: E402
from roller_tvm.codegen import kept_cubins  # noqa: E402
from roller_tvm.codegen.compile import Cubin  # noqa: E402
from roller_tvm.errors import BadInput, MeasureError, UsageError  # noqa: E402
from roller_tvm.explore.device_times import Driver  # noqa: E402
from roller_tvm.explore.dispatch import FFI, Site, Variant, source  # noqa: E402
from roller_tvm.models.line import Request  # noqa: E402
from roller_tvm.relax import carried  # noqa: E402
from roller_tvm.relax.carrying import carry  # noqa: E402
from roller_tvm.relax.model_line import LINE  # noqa: E402
from roller_tvm.session import Session  # noqa: E402

from ..fake_card import told_by  # noqa: E402
from .networks import LLVM  # noqa: E402
from .test_exploring import network  # noqa: E402


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What a process with the card has seen."""
    return told_by("relax", tmp_path_factory.mktemp("card"), "libcudart.so.13")


@pytest.mark.slow
@pytest.mark.nightly
def test_a_model_is_explored_on_the_card_and_a_wrong_variant_never_runs(told):
    assert told["card"] and told["plain"] < 1e-5 and told["explored"] < 1e-5
    assert told["runs"] == 25 and told["again"] == 27
    assert len(told["failed"]) == 1 and "error" in next(iter(told["failed"].values())), told["failed"]
    assert all(s > 0 for s in told["seconds"])


@pytest.mark.slow
@pytest.mark.nightly
def test_an_exploration_is_carried_and_every_variant_is_right(told):
    assert told["carried"] and max(told["variants"]) < 1e-5 and told["positive"]
    assert told["hold_s"] > 0, "runs are not held until they are queued"


@pytest.mark.slow
@pytest.mark.nightly
def test_captured_kernels_answer_alike(told):
    assert max(told["graph"]) < 1e-5
    assert any(note.startswith("CUDA graphs: ") for note in told["notes"]), told["notes"]
    assert told["graphs"] == any("taken (" in note for note in told["notes"])


@pytest.fixture(scope="module")
def job():
    return Session(LINE, Request("cuda -arch=sm_90")).read(network()).job


def test_one_library_holds_the_plans_of_all_operators(job, tmp_path, monkeypatch):
    sources = []

    def compiled(text, arch):
        sources.append(text)
        return Cubin(b"\x7fELF", "", arch, "nvrtc")

    monkeypatch.setattr(kept_cubins, "compile_cuda", compiled)
    monkeypatch.setattr(kept_cubins, "kernel_cache", lambda: None)
    made, planned = carry(job, tmp_path, top=2)
    kernels = {v.kernel for site in made.sites for v in site.variants}
    assert len(kernels) == len(sources) and all(any(f"{k}_kernel" in s for s in sources) for k in kernels)
    assert all(site.options == tuple(planned.known[made.classes[site.operator]].plans) for site in made.sites)
    assert {check.key for check in made.checks} == {made.classes[s.operator] for s in made.sites if len(s.options) > 1}
    assert all((tmp_path / check.answers).is_file() for check in made.checks)
    text = (tmp_path / carried.LIBRARY).read_bytes()
    assert carried.GRAPH.encode() in text and b"cuda_graph.run_or_capture" in text
    assert made == carried.Carried.load(tmp_path)
    with pytest.raises(BadInput, match="needs a cuda device"):
        made.opened(tmp_path)


def test_a_plan_that_does_not_compile_is_left_out(job, tmp_path, monkeypatch):
    def compiled(text, arch):
        if "v1_" in text:
            raise RuntimeError("ptxas gave up")
        return Cubin(b"\x7fELF", "", arch, "nvrtc")

    monkeypatch.setattr(kept_cubins, "compile_cuda", compiled)
    monkeypatch.setattr(kept_cubins, "kernel_cache", lambda: None)
    made, _ = carry(job, tmp_path, top=2)
    assert made.failed and all("ptxas gave up" in why for _, _, why in made.failed)
    assert all(len(site.options) == 1 for site in made.sites)


def test_where_no_card_is(tmp_path):
    with pytest.raises(BadInput, match="needs a cuda device"):
        roller_tvm.compile(network(), "cuda -arch=sm_90").explore()
    with pytest.raises(MeasureError, match="driver is not here"):
        Driver("libcuda_of_nobody.so.1")
    with pytest.raises(BadInput, match="holds no exploration"):
        carried.Carried.load(tmp_path)
    with pytest.raises(UsageError, match="is for llvm"):
        carry(Session(LINE, Request(LLVM)).read(network()).job, tmp_path)


def test_the_text_of_sites_with_events_compiles_alone(tmp_path):
    sites = [Site("dense", ("a", "b"), (Variant("k0", (0, 1, 3)), Variant("k1", (0, 2, 3))))]
    (tmp_path / "s.cc").write_text(source(sites, FFI, events=True))
    subprocess.run(["g++", "-Wall", "-Werror", "-c", tmp_path / "s.cc", "-o", tmp_path / "s.o"], check=True)
