"""Every operator as GPU kernels of either line, executed: its numbers those of TVM's own loops on the CPU.

Each SAMPLE-th at every change, all of them in ``make nightly``: one or two minutes, most of it the C++ compiler; a
second run takes what was compiled from the cache.
"""

import pytest

tvm = pytest.importorskip("tvm")
pytestmark = [pytest.mark.te, pytest.mark.slow]

from ..sampling import sampled  # noqa: E402
from ..te.every_operator import COMPARED, FAMILIES, NOT_ON_A_GPU, POSITIVE  # noqa: E402
from .lines import RELAY, Operator  # noqa: E402

GPU, PLANS, SAMPLE = "a100", 2, 48
if RELAY:
    # What TVM 0.17 makes wrong kernels of, or none, unless a plan avoids it.
    LEFT_OUT, FIRST, ALWAYS = {*NOT_ON_A_GPU, *COMPARED}, 0, ("conv2d int8", "depthwise int8", "max int8")
else:
    from ..tir.test_every_operator import NOT_MADE, REFUSED

    # The sample is another than the Relay line's.
    LEFT_OUT, FIRST, ALWAYS = {*NOT_ON_A_GPU, *NOT_MADE, *REFUSED}, 4, ("max int8",)
NAMES = [(family, name) for family, cases in FAMILIES.items() for name in cases if name not in LEFT_OUT]


@pytest.mark.parametrize(("family", "name"), sampled(NAMES, SAMPLE, FIRST, [c for c in NAMES if c[1] in ALWAYS]))
def test_kernels(family, name):
    operator = Operator(FAMILIES[family][name](), (True,) if name in POSITIVE else (False, True))
    if RELAY:
        from roller_check.relay_plans import terms_of

        operator.terms = terms_of(operator.tensors)
    for plan in operator.plans(GPU, PLANS):
        operator.check(operator.emulated(plan), plan)
