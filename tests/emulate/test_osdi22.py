"""The paper's 119 operators, scaled down, as GPU kernels of either line: executed by the emulator, and by PoCL.

Each SAMPLE-th at every change, all in ``make nightly``. Those that are the same once scaled down are one test.
"""

import doctest

import pytest

pytest.importorskip("tvm")
pytestmark = [pytest.mark.te, pytest.mark.slow]

from roller_check import pocl as witness  # noqa: E402
from roller_tvm.errors import ToolchainError  # noqa: E402
from roller_tvm.roller.features import Features  # noqa: E402
from roller_tvm.te import te_operator  # noqa: E402

from ..plan.devices import device  # noqa: E402
from ..sampling import sampled  # noqa: E402
from . import osdi22  # noqa: E402
from .lines import RELAY, Operator  # noqa: E402

GPU, PLANS, SAMPLE = "a100", 2, 40


def alike():
    """Names of the operators that are the same -> (operator, parameters)."""
    found = {}
    for identity, (name, params) in osdi22.rows().items():
        found.setdefault((name, *params.items()), []).append(identity)
    return {" ".join(ids): (key[0], dict(key[1:])) for key, ids in found.items()}


OPERATORS = alike()
PRODUCTS = [ids for ids, (name, _) in OPERATORS.items() if name in ("matmul", "conv2d_nchw")]


def operator(ids, **more):
    name, params = OPERATORS[ids]
    return Operator(te_operator(name, **params, **more))


def test_all_are_here():
    assert len(osdi22.rows()) == 119 == sum(len(ids.split()) for ids in OPERATORS)
    assert doctest.testmod(osdi22).failed == 0


@pytest.mark.parametrize(("nightly", "outcome"), [(True, pytest.fail.Exception), (False, pytest.skip.Exception)])
def test_a_nightly_run_without_its_witness_fails(request, monkeypatch, nightly, outcome):
    def missing():
        raise ToolchainError("pyopencl finds no platform of PoCL", remedy="apt install pocl-opencl-icd")

    monkeypatch.setattr(witness, "queue", missing)
    monkeypatch.setattr(request.config.option, "nightly", nightly)
    with pytest.raises(outcome, match="apt install pocl-opencl-icd"):
        request.getfixturevalue("pocl")


# The lines' samples differ, and so do the witnesses'.
@pytest.mark.parametrize("ids", sampled(OPERATORS, SAMPLE, 0 if RELAY else 4))
def test_emulated(ids):
    subject = operator(ids)
    for plan in subject.plans(GPU, PLANS):
        subject.check(subject.emulated(plan), plan)


@pytest.mark.parametrize("ids", sampled(OPERATORS, SAMPLE, 2 if RELAY else 6))
def test_on_pocl(pocl, ids):
    subject = operator(ids)
    for plan in subject.plans(GPU, PLANS):
        subject.check(subject.on_pocl(plan), plan)


@pytest.mark.relax
@pytest.mark.parametrize("ids", sampled(PRODUCTS, SAMPLE, 8))
def test_in_half_precision_on_tensor_cores(ids):
    subject = operator(ids, dtype="float16")
    plans = subject.plans(GPU, PLANS, Features.of_tensor_ir(device(GPU)))
    for plan in plans:
        subject.check(subject.emulated(plan), plan)
