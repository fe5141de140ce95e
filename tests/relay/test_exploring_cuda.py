"""Exploration on CUDA without a card: a Relay model explored on a card that is none, and where there is none at all."""

import pytest

pytestmark = pytest.mark.tvm
tvm = pytest.importorskip("tvm")

import roller_tvm  # noqa: E402
from roller_tvm.codegen import kept_cubins  # noqa: E402
from roller_tvm.errors import BadInput  # noqa: E402
from roller_tvm.relay import cuda_variants  # noqa: E402

from ..fake_card import told_by  # noqa: E402
from .test_exploring import network  # noqa: E402


@pytest.mark.slow
@pytest.mark.nightly
def test_a_model_is_explored_on_the_card_and_a_wrong_variant_never_runs(tmp_path):
    told = told_by("relay", tmp_path, "libcudart.so.12")
    assert told["card"] and told["plain"] < 1e-5 and told["explored"] < 1e-5
    assert max(told["variants"]) < 1e-5 and told["positive"] and told["runs"] == 25
    assert sorted(told["options"])[-1] == 2, "nothing to choose from"
    assert len(told["failed"]) == 1 and "error" in next(iter(told["failed"].values())), told["failed"]


def test_where_no_card_is():
    with pytest.raises(BadInput, match="needs a cuda device"):
        roller_tvm.compile(network(), "cuda -arch=sm_80").explore()


def test_a_plan_that_does_not_compile_is_told(tmp_path, monkeypatch):
    def compiled(source, arch):
        if "bad" in source:
            raise RuntimeError("ptxas gave up")
        return type("Cubin", (), {"data": f"{arch} of {source}".encode()})

    monkeypatch.setattr(kept_cubins, "compile_cuda", compiled)
    monkeypatch.setattr(kept_cubins, "kernel_cache", lambda: None)
    paths = [tmp_path / name for name in ("good", "bad")]
    for path in paths:
        path.with_name(f"{path.name}.cubin").write_text(path.name)
    assert cuda_variants.compile_sources(paths, "sm_80", 2) == {paths[1]: "ptxas gave up"}
    assert (tmp_path / "good.cubin").read_text() == "sm_80 of good"
