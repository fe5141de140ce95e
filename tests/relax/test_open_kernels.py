"""Kernels of open extents that no proof decides are executed at sizes that their model takes."""

import pytest

pytestmark = pytest.mark.relax
tvm = pytest.importorskip("tvm")

import numpy as np  # noqa: E402
from tvm import relax  # noqa: E402

from roller_check.open_kernels import check_open  # noqa: E402
from roller_tvm.errors import RollerError, WrongAnswer  # noqa: E402
from roller_tvm.relax.pipeline import prepare, schedule  # noqa: E402
from roller_tvm.relax.proving import prove_module  # noqa: E402
from roller_tvm.relax.size_checks import with_bounds  # noqa: E402

from ..plan.devices import device  # noqa: E402
from .networks import LLVM, module, values  # noqa: E402
from .test_open_proofs import kernels, var  # noqa: E402

CHECKS = ["1 <= n", "n <= 40"]


def one(body):
    """Return the one kernel of a model of open rows, scheduled, and before."""
    (found,) = kernels(module(body, (var(), 24)))
    return found


def product(factor=1.0):
    return one(lambda b, x: b.emit(relax.op.matmul(x, relax.const(factor * values(24, 96)))))


def test_smallest_sizes_some_between_and_the_largest_are_executed():
    scheduled, plain = product()
    told = check_open(plain, scheduled, CHECKS)
    assert told == "all elements agree with the reference at n=1; n=21; n=40"


def test_a_wrong_kernel_is_told():
    (scheduled, _), (_, plain) = (
        one(lambda b, x, op=op: b.emit(op(x, b.emit(relax.op.nn.relu(x))))) for op in (relax.op.add, relax.op.multiply)
    )
    with pytest.raises(WrongAnswer):
        check_open(plain, scheduled, CHECKS)


def test_sizes_that_no_model_has_are_not_executed():
    scheduled, plain = product()
    with pytest.raises(RollerError, match="sizes are open"):
        check_open(plain, scheduled, ["n <= 0"])


def test_what_no_proof_knows_of_open_extents_is_executed():
    def gathered(b, x):
        rows = relax.const(np.array([3, 0, 2], "int64"))
        return b.emit(relax.op.take(b.emit(relax.op.nn.relu(x)), rows, axis=1))

    mod = with_bounds(module(gathered, (var(), 24)), {"n": (1, 40)}, {})
    before = prepare(mod, LLVM)
    after = schedule(before, LLVM)[0]
    told = " ".join(prove_module(before, after, tvm.target.Target(LLVM), device("avx512")).values())
    assert "undecided" in told and "all elements agree with the reference at n=1; n=21; n=40" in told
