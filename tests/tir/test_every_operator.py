"""Every operator as a PrimFunc: read as its TE is, planned for a CPU, and its numbers those of TVM's own schedule."""

from functools import cache
from math import prod, sqrt

import pytest

tvm = pytest.importorskip("tvm")
pytestmark = pytest.mark.relax

from tvm import te  # noqa: E402

from roller_tvm.codegen.apply_tensorir import apply_steps_tir  # noqa: E402
from roller_tvm.errors import UnsupportedOperator  # noqa: E402
from roller_tvm.planner import construct  # noqa: E402
from roller_tvm.planner.lower import lower  # noqa: E402
from roller_tvm.relay import reference  # noqa: E402
from roller_tvm.te import read_te  # noqa: E402
from roller_tvm.tir import read_prim_func  # noqa: E402
from roller_tvm.tuning import numerics  # noqa: E402

from ..lower.kernels import poison, varied  # noqa: E402
from ..plan.devices import device  # noqa: E402
from ..sampling import in_sample, sampled  # noqa: E402
from ..te.every_operator import FAMILIES, POSITIVE  # noqa: E402

CPU, PLANS = "avx512", 2
TARGET = {"kind": "llvm", "mcpu": "core-avx2"}
# What TVM 0.27's own topi cannot make.
NOT_MADE = {"batch to space": "crashes the process", "instance norm": "takes other arguments", "roi align": "is gone"}
# TVM computes subexpressions once when it makes the PrimFunc: fewer additions are left to count.
SIMPLIFIED = ("conv2d deformable", "conv2d deformable nhwc", "grid sample")
REFUSED = {
    **dict.fromkeys(("adaptive avg pool uneven", "adaptive max pool uneven", "adaptive avg pool 3d uneven"),
                    "a For in the body"),
    **dict.fromkeys(("two results", "two results used"), "several statements share a loop"),
}  # fmt: skip
# Row 6 lies at a half exactly; LLVM contracts its product and sum in one kernel and not in the other.
TIES = ("nearest half pixel",)
CASES = [(family, name) for family, cases in FAMILIES.items() for name in cases if name not in NOT_MADE]
# A 16th of them at every change, others than the Relay line's; all in make nightly.
# Winograd's unrolled transforms take LLVM four seconds a plan.
LONG = ("conv2d winograd",)
SAMPLE = [case for case in in_sample(CASES, 16, 4) if case[1] not in LONG]


@cache
def tensors_of(family, name):
    return FAMILIES[family][name]()


@cache
def function_of(family, name):
    return te.create_prim_func(tensors_of(family, name))


@cache
def built(family, every):
    """The kernels of a family: operator -> TVM's own and ours, or why there are none; in one module, for speed."""
    found = {name: kernels(family, name) for f, name in (CASES if every else SAMPLE) if f == family}
    functions, names = {}, {}
    for name, made in found.items():
        if isinstance(made, list):
            names[name] = [f"k{len(functions) + n}" for n in range(len(made))]
            functions |= {n: f.with_attr("global_symbol", n) for n, f in zip(names[name], made, strict=True)}
    module = tvm.compile(tvm.IRModule(functions), target=tvm.target.Target(TARGET))
    return found | {name: [module[n] for n in own] for name, own in names.items()}


def kernels(family, name):
    """PrimFuncs of one operator, the reference's first; or the error."""
    try:
        func = function_of(family, name)
        reading = read_prim_func(func, name="op")
        plans = varied(construct(reading.expression, device(CPU), top=10).plans, PLANS)
        return [func, *(apply_steps_tir(func, reading, lower(plan)).mod["main"] for plan in plans)]
    except Exception as error:  # a refusal is told by the test of this operator
        return error


def run(function, tensors, inputs):
    outputs = [tvm.runtime.tensor(poison(t)) for t in tensors if not isinstance(t.op, te.PlaceholderOp)]
    given, made = iter(inputs), iter(outputs)
    placeholder = [isinstance(t.op, te.PlaceholderOp) for t in tensors]
    function(*(tvm.runtime.tensor(next(given)) if p else next(made) for p in placeholder))
    return [o.numpy() for o in outputs]



@pytest.mark.parametrize(("family", "name"), CASES)
def test_it_is_read_as_its_tensor_expression_is(family, name):
    if name in REFUSED:
        with pytest.raises(UnsupportedOperator, match=REFUSED[name]):
            read_prim_func(function_of(family, name))
        return
    reading = read_prim_func(function_of(family, name), name="op")
    if name in SIMPLIFIED:
        assert [s.axes for s in reading.expression.stages]
        return
    assert str(reading.expression) == str(read_te(tensors_of(family, name), "op").expression)


@pytest.mark.parametrize(("family", "name"), sampled(CASES, always=SAMPLE))
def test_it_computes_what_it_should(request, family, name):
    found = built(family, request.config.getoption("--nightly"))[name]
    if name in REFUSED or name in TIES:
        pytest.skip(f"not planned: {REFUSED[name]}" if name in REFUSED else "its rows lie at a tie of rounding")
    if isinstance(found, Exception):
        raise found
    default, *ours = found
    assert ours
    tensors = list(tensors_of(family, name))
    placeholders = [t for t in tensors if isinstance(t.op, te.PlaceholderOp)]
    kinds = (True,) if name in POSITIVE else (False, True)
    inputs, expected = numerics.reference_on(placeholders, lambda given: run(default, tensors, given), kinds)
    assert numerics.numbers(expected) > 0.5
    stages = read_prim_func(function_of(family, name)).expression.stages
    terms = max(1, round(sum(sqrt(prod(a.extent for a in s.reduce)) for s in stages if s.reduce) ** 2))
    for rank, function in enumerate(ours):
        for got, wanted in zip(run(function, tensors, inputs), expected, strict=True):
            assert not reference.difference(got, wanted, terms), f"plan {rank}"
