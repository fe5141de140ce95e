"""Long sums of products: which are cut, in how many parts, and that they compute the same."""

from dataclasses import replace

import numpy as np
import pytest

pytestmark = pytest.mark.relax
tvm = pytest.importorskip("tvm")

from tvm import relax  # noqa: E402

from roller_tvm.relax import long_sums  # noqa: E402
from roller_tvm.relax.long_sums import CutLongSums, parts_of  # noqa: E402
from roller_tvm.relax.pipeline import build, prepare  # noqa: E402

from ..plan.devices import device  # noqa: E402
from .networks import LLVM, module, run, values  # noqa: E402

OP = relax.op
CPU = device("avx512")
#: The same with an L3 as slow as memory, as virtual machines on a large server see it.
SLOW = replace(
    CPU, levels=tuple(
        replace(level, bandwidth_gbps=CPU.far.bandwidth_gbps) if level.name == "l3" else level for level in CPU.levels
    ),
)  # fmt: skip


def test_what_fits_the_cache_of_a_core_is_left_whole():
    assert parts_of(8, 768, 3072, SLOW) == parts_of(1, 11008, 4096, SLOW) == 1


def test_a_slow_memory_behind_the_cache_has_sums_cut_into_parts_that_fit():
    count = parts_of(128, 11008, 4096, SLOW)
    assert count > 1 and 11008 % count == 0
    assert 4 * 128 * 11008 // count < CPU.level("l2").capacity_bytes
    assert parts_of(128, 11008, 4096, CPU) <= count


def test_nothing_is_cut_that_saves_little():
    assert parts_of(384, 768, 768, CPU) == 1 < parts_of(384, 3072, 768, CPU)
    assert parts_of(7, 3072, 768, SLOW) == 1  # a register tile reads the constant once, however long its rows
    assert parts_of(128, 11003, 4096, SLOW) == 1  # a prime


@pytest.mark.parametrize("shape", [(20, 48), (1, 20, 48), (2, 5, 48)])
def test_parts_add_up_with_what_follows_them(shape, monkeypatch):
    monkeypatch.setattr(long_sums, "parts_of", lambda *asked: 3)
    weights, shift = values(48, 33), values(33)

    def body(builder, x):
        product = builder.emit(OP.matmul(x, relax.const(weights)))
        return builder.emit(OP.nn.relu(builder.emit(OP.add(product, relax.const(shift)))))

    mod, x = module(body, shape), values(*shape)
    prepared = prepare(mod, LLVM, device=CPU)
    names = [var.name_hint for var in prepared.get_global_vars()]
    assert sum("matmul_part" in name for name in names) == 3
    assert any(name.startswith("fused_matmul_part") and name.endswith("_relu") for name in names)
    got = run(build(prepared, LLVM, device=CPU), x)[0]
    np.testing.assert_allclose(got, np.maximum(x @ weights + shift, 0), rtol=1e-5, atol=1e-5)


def test_products_of_two_inputs_and_of_halves_are_left(monkeypatch):
    monkeypatch.setattr(long_sums, "parts_of", lambda *asked: 2)

    def two(builder, x, y):
        return builder.emit(OP.matmul(x, y))

    def halves(builder, x):
        return builder.emit(OP.matmul(x, relax.const(values(8, 4).astype("float16"))))

    for mod in (module(two, (4, 8), (8, 4)), module(halves, (4, 8), dtype="float16")):
        assert CutLongSums(LLVM, CPU)(mod) is mod or len(CutLongSums(LLVM, CPU)(mod).get_global_vars()) == 1
