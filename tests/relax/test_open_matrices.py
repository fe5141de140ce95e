"""Products of an open number of rows on a matrix unit: sizes at which it takes over. The unit itself is emulated."""

import numpy as np
import pytest

pytestmark = pytest.mark.relax
tvm = pytest.importorskip("tvm")

from tvm import relax, tirx  # noqa: E402

from roller_tvm.relax import open_matrices  # noqa: E402
from roller_tvm.relax.layout import PlanLayout  # noqa: E402
from roller_tvm.relax.open_matrices import OnUnit, open_product  # noqa: E402
from roller_tvm.relax.pipeline import build, prepare  # noqa: E402

from .networks import LLVM, module, values  # noqa: E402
from .test_matrix_products import PLAIN, UNIT  # noqa: E402

OP = relax.op


def layer(terms=64, columns=96, batch=1):
    """A product of n rows with what follows it, one of the tensors read there has n rows too."""
    weights, bias, n = values(terms, columns), values(columns), tirx.Var("n", "int64")

    def body(b, x, y):
        x = b.emit(OP.add(b.emit(OP.matmul(x, relax.const(weights))), relax.const(bias)))
        return b.emit(OP.nn.relu(b.emit(OP.add(x, y))))

    def wanted(x, y):
        return np.maximum(x.astype("float64") @ weights + bias + y, 0)

    return module(body, (batch, n, terms), (batch, n, columns)), wanted


@pytest.mark.parametrize("used", [[(5, False)], [(1, True)], [(5, True), (37, False)]])
def test_sizes_around_those_where_the_unit_takes_over(emulated, monkeypatch, used):
    chosen = tuple(OnUnit(first, (2 if by_rows else 1, by_rows)) for first, by_rows in used)
    monkeypatch.setattr(open_matrices.OpenProduct, "units", lambda _self, _gain: chosen)
    mod, wanted = layer()
    machine = relax.VirtualMachine(build(mod, LLVM), tvm.cpu())
    for n in (1, 4, 5, 6, 31, 32, 33, 36, 37, 38, 97):
        x, y = values(1, n, 64), values(1, n, 96)
        found = machine["main"](*map(tvm.runtime.tensor, (x, y))).numpy()
        np.testing.assert_allclose(found, wanted(x, y), rtol=1e-4, atol=1e-4)
    (note,) = emulated[0].notes
    assert note.recipe == "cpu.matrix" and f"from {used[-1][0]}: cpu.matrix" in note.plan and "cpu.tiled" in note.plan


def test_numbers_that_bfloat16_does_not_have(emulated, monkeypatch):
    monkeypatch.setattr(open_matrices.OpenProduct, "units", lambda _self, _gain: (OnUnit(1, (2, False)),))
    mod, wanted = layer()
    x, y = values(1, 40, 64), values(1, 40, 96)
    x[0, 35, 7] = np.inf
    machine = relax.VirtualMachine(build(mod, LLVM), tvm.cpu())
    found = machine["main"](*map(tvm.runtime.tensor, (x, y))).numpy()
    np.testing.assert_allclose(found, wanted(x, y), rtol=1e-4, atol=1e-4)


def product_of(mod, device):
    prepared = prepare(mod, LLVM, device=device)
    found = (open_product(func, device) for _, func in prepared.functions_items() if isinstance(func, tirx.PrimFunc))
    return next((one for one in found if one is not None), None)


def test_the_unit_takes_what_it_is_faster_at():
    product = product_of(layer(1024, 1024)[0], UNIT)
    units = product.units(1.15)
    assert 1 < units[0].first <= 128 and len(units) <= 2
    assert not product.units(1e9)


def test_pictures_are_told_apart_one_by_one():
    weights, n = values(64, 64, 1, 1), tirx.Var("n", "int64")
    mod = module(lambda b, x: b.emit(OP.nn.conv2d(x, relax.const(weights))), (n, 64, 14, 14))
    product = product_of(PlanLayout(LLVM, UNIT, only="blocked")(mod), UNIT)
    assert product.nest.is_open and [unit.first for unit in product.units(0.1)][:1] == [1]


def test_without_a_unit_there_is_none():
    assert product_of(layer(256, 256)[0], PLAIN).units(1.15) == ()


def test_rows_of_several_open_axes_are_left():
    weights, n, m = values(64, 64), tirx.Var("n", "int64"), tirx.Var("m", "int64")
    mod = module(lambda b, x: b.emit(OP.matmul(x, relax.const(weights))), (m, n, 64))
    assert product_of(mod, UNIT) is None
