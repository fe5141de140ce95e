"""Pictures of known sides, of which any number is a batch: images are tiles that run in turn."""

import numpy as np
import pytest

pytestmark = pytest.mark.relax
tvm = pytest.importorskip("tvm")

from tvm import relax  # noqa: E402

from roller_tvm.planner import family, family_batches  # noqa: E402
from roller_tvm.relax.arrangement import Arrangement, Convolution, winograd_convolution  # noqa: E402
from roller_tvm.relax.layout import PlanLayout  # noqa: E402
from roller_tvm.relax.pipeline import build, prepare, schedule  # noqa: E402
from roller_tvm.relax.schedule import _open_planned  # noqa: E402
from roller_tvm.te.winograd import transformed_weights  # noqa: E402

from ..plan.devices import device  # noqa: E402
from ..sampling import sampled  # noqa: E402
from .networks import LLVM, module, run, values  # noqa: E402

#: One image, around the tile of 4, primes.
BATCHES = (1, 3, 4, 5, 8, 13)


@pytest.fixture
def tiles(monkeypatch):
    """All tiles are taken, whatever they are predicted to cost."""
    monkeypatch.setattr(family_batches, "_gains", lambda _large, _small: True)
    monkeypatch.setattr(family_batches, "WORTH", 0)
    monkeypatch.setattr(family._Planning, "blocks", lambda _planning: None)
    monkeypatch.setattr(family, "_put_in", lambda own, others, *_: iter([own] if own else others))
    monkeypatch.setenv("ROLLER_KERNEL_CACHE", "off")
    _open_planned.cache_clear()
    yield
    _open_planned.cache_clear()


def batch():
    return tvm.tirx.Var("n", "int64")


def built(mod, kernel):
    _, report = schedule(prepare(mod, LLVM), LLVM)
    assert not report.left, str(report)
    (note,) = (n for n in report.notes if kernel in n.name)
    assert "what is left of 4" in note.plan
    return build(mod, LLVM)


@pytest.mark.parametrize("tile", sampled([2, 4], 2))
def test_winograds_algorithm(tiles, tile):
    """Sides of 7: tiles over the edge, padding on both."""
    weight = values(16, 16, 3, 3)
    conv = Convolution((1, 16, 7, 7), weight.shape, (1, 1), (1, 1, 1, 1), (1, 1), 1, "float32", "float32")
    arrangement = Arrangement()

    def body(b, x):
        made = b.emit_te(
            lambda d, w: winograd_convolution(d, w, conv, arrangement, tile), x,
            relax.const(transformed_weights(weight, tile)), primfunc_name_hint="conv2d_winograd",
        )  # fmt: skip
        return b.emit(relax.op.nn.relu(made))

    executable = built(module(body, (batch(), 7, 7, 16)), "winograd")
    for images in BATCHES:
        x = values(images, 7, 7, 16)
        views = np.lib.stride_tricks.sliding_window_view(np.pad(x, [(0, 0), (1, 1), (1, 1), (0, 0)]), (3, 3), (1, 2))
        wanted = np.maximum(np.einsum("nyxcpq,ocpq->nyxo", views.astype("float64"), weight, optimize=True), 0)
        np.testing.assert_allclose(run(executable, x)[0], wanted, rtol=1e-4, atol=2e-5 * wanted.max())


def test_a_strided_convolution_and_a_pooling(tiles):
    weight = values(16, 8, 3, 3)

    def body(b, x):
        y = b.emit(relax.op.nn.conv2d(x, relax.const(weight), strides=2, padding=1))
        return b.emit(relax.op.nn.max_pool2d(b.emit(relax.op.nn.relu(y)), (2, 2), (2, 2)))

    executable = built(module(body, (batch(), 8, 12, 12)), "conv2d")
    for images in BATCHES:
        x = values(images, 8, 12, 12)
        views = np.lib.stride_tricks.sliding_window_view(np.pad(x, [(0, 0), (0, 0), (1, 1), (1, 1)]), (3, 3), (2, 3))
        y = np.maximum(np.einsum("ncyxpq,ocpq->noyx", views[:, :, ::2, ::2], weight, optimize=True), 0)
        wanted = y.reshape(images, 16, 3, 2, 3, 2).max((3, 5))
        np.testing.assert_allclose(run(executable, x)[0], wanted, rtol=1e-4, atol=1e-4)


def test_winograds_algorithm_is_chosen_for_any_batch():
    weight = values(64, 64, 3, 3)
    mod = module(lambda b, x: b.emit(relax.op.nn.conv2d(x, relax.const(weight), padding=1)), (batch(), 64, 28, 28))
    plan = PlanLayout(LLVM, device("avx512"), "blocked")
    plan(mod)
    assert plan.report.winograd == 1
