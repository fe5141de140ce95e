"""Models of many small operators, scaled down: fused kernels executed on the CPU against the model as TVM builds it."""

from __future__ import annotations

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
pytest.importorskip("tvm.tirx", reason="needs the Relax line")
pytestmark = pytest.mark.relax

from tvm import relax  # noqa: E402

from roller_bench.branchy import MODELS, PARTS, values  # noqa: E402
from roller_bench.branchy import build as made  # noqa: E402
from roller_check.relax_model import EmulatedModel  # noqa: E402
from roller_tvm.relax import build  # noqa: E402
from roller_tvm.relax.fuse_rtasks import FuseRTasks  # noqa: E402
from roller_tvm.relax.package import save_model, with_signature  # noqa: E402
from roller_tvm.relax.targets import make_target  # noqa: E402

from ..sampling import sampled  # noqa: E402

TARGET = {"kind": "cuda", "arch": "sm_80"}
#: Sizes are divided by so much.
SCALE = 16


@pytest.mark.parametrize("name", sampled([*PARTS, *MODELS]))  # at each change tests/relax/test_fuse_rtasks.py
def test_fused_answers_are_the_models(name, tmp_path):
    mod, shapes = made(name, SCALE)
    given = values(shapes)
    plain = relax.VirtualMachine(tvm.compile(mod, tvm.target.Target("llvm")), tvm.cpu())
    due = plain["main"](*(tvm.runtime.tensor(v) for v in given.values()))
    fuse = FuseRTasks(make_target(TARGET))
    signature = {n: (s, "float32") for n, s in shapes.items()}
    path = save_model(build(with_signature(mod, signature), TARGET, fuse_rtasks=fuse), tmp_path / "model.so")
    results = EmulatedModel(path).run(given)
    for result, expected in zip(results, [due] if hasattr(due, "numpy") else due, strict=True):
        expected = expected.numpy()
        assert np.isfinite(expected).all() and np.abs(expected).max() > 0
        np.testing.assert_allclose(result, expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max())
    report = fuse.report
    assert 3 * report.launches <= report.sequential_launches
    assert report.predicted_seconds < report.sequential_seconds
