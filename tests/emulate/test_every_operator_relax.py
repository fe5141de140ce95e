"""Every operator as the Relax line's GPU kernels, executed: its numbers those of TVM's own loops on the CPU.

A sample at every change, all of them in ``make nightly``: one or two minutes, most of it the C++ compiler; a second run
takes what was compiled from the cache.
"""

from math import prod, sqrt

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
pytest.importorskip("tvm.tirx", reason="needs the Relax line")
pytestmark = [pytest.mark.relax, pytest.mark.slow]

from tvm import te  # noqa: E402

from roller_tvm.codegen.apply_tensorir import apply_steps_tir  # noqa: E402
from roller_tvm.planner import construct  # noqa: E402
from roller_tvm.planner.lower import lower  # noqa: E402
from roller_tvm.relay import reference  # noqa: E402
from roller_tvm.tir import read_prim_func  # noqa: E402
from roller_tvm.tir.emulated import emulated_function  # noqa: E402
from roller_tvm.tuning import numerics  # noqa: E402

from ..lower.gpu_check import spread  # noqa: E402
from ..plan.devices import device  # noqa: E402
from ..sampling import sampled  # noqa: E402
from ..te.every_operator import FAMILIES, NOT_ON_A_GPU, POSITIVE  # noqa: E402
from ..tir.test_every_operator import NOT_MADE, REFUSED  # noqa: E402

GPU, PLANS = "a100", 2
LEFT_OUT = {**NOT_ON_A_GPU, **NOT_MADE, **REFUSED}
NAMES = [(family, name) for family, cases in FAMILIES.items() for name in cases if name not in LEFT_OUT]
# Others than the Relay line's sample has.
SAMPLE, FIRST = 32, 4
# What TVM makes wrong kernels of unless a plan avoids it.
ALWAYS = ("max int8",)


@pytest.mark.parametrize(("family", "name"), sampled(NAMES, SAMPLE, FIRST, [c for c in NAMES if c[1] in ALWAYS]))
def test_kernels(family, name):
    tensors = list(FAMILIES[family][name]())
    placeholders = [t for t in tensors if isinstance(t.op, te.PlaceholderOp)]
    func = te.create_prim_func(tensors)
    kinds = (True,) if name in POSITIVE else (False, True)
    feeds, expected = numerics.reference_on(placeholders, lambda given: own(func, tensors, given), kinds)
    reading = read_prim_func(func, name="op")
    sums = [prod(a.extent for a in s.reduce) for s in reading.expression.stages if s.reduce]
    terms = max(1, round(sum(sqrt(n) for n in sums) ** 2))
    given = iter(feeds)
    arrays = [next(given) if isinstance(t.op, te.PlaceholderOp) else None for t in tensors]
    for plan in spread([r.plan for r in construct(reading.expression, device(GPU), top=10).plans], PLANS):
        function = emulated_function(apply_steps_tir(func, reading, lower(plan)), "sm_80")
        for got, wanted in zip(function.run(arrays), expected, strict=True):
            wrong = reference.difference(got, wanted, terms)
            assert not wrong, f"{wrong}\n{function}\n{plan}"


def own(func, tensors, feeds):
    """What TVM computes of the loops as they are."""
    kernel = tvm.compile(func, target="llvm")
    given = iter(feeds)
    arrays = [
        tvm.runtime.tensor(
            next(given) if isinstance(t.op, te.PlaceholderOp) else np.zeros(reference.shape_of(t), str(t.dtype))
        )
        for t in tensors
    ]
    kernel(*arrays)
    return [a.numpy() for a, t in zip(arrays, tensors, strict=True) if not isinstance(t.op, te.PlaceholderOp)]
