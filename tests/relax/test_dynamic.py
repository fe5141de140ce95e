"""Buckets: static copies for the sizes named, the open function for the rest, the same answers for all."""

import numpy as np
import pytest

pytestmark = pytest.mark.relax
tvm = pytest.importorskip("tvm")

from tvm import relax  # noqa: E402

from roller_tvm.errors import BadInput, UsageError  # noqa: E402
from roller_tvm.relax.dynamic import Buckets, symbols_of  # noqa: E402

from .networks import classifier, default, module, run, values  # noqa: E402

WEIGHT = values(4, 3)


def open_matmul():
    def body(builder, x):
        return builder.emit(relax.op.nn.relu(builder.emit(relax.op.matmul(x, relax.const(WEIGHT)))))

    return module(body, (tvm.tirx.Var("n", "int64"), 4))


def names(mod):
    return sorted(str(v.name_hint) for v in mod.get_global_vars())


@pytest.mark.parametrize("size", [1, 2, 3, 8, 9])
def test_every_size_computes_the_same(size):
    mod = Buckets((1, 3, 8))(open_matmul())
    assert names(mod) == ["main", "main_any", "main_n1", "main_n3", "main_n8"]
    x = values(size, 4)
    np.testing.assert_allclose(default(mod, x)[0], np.maximum(x @ WEIGHT, 0), rtol=1e-5, atol=1e-6)


def test_the_copy_is_what_runs_for_its_size():
    """A copy whose weights are changed answers differently, for its size alone."""
    mod = Buckets((1, 8))(open_matmul())
    wrong = Buckets([8])(module(lambda b, x: b.emit(relax.op.matmul(x, relax.const(0 * WEIGHT))),
                                (tvm.tirx.Var("n", "int64"), 4)))  # fmt: skip
    mod.update_func(mod.get_global_var("main_n8"), wrong["main_n8"])
    for size, same in ((1, True), (7, True), (8, False)):
        x = values(size, 4)
        assert np.allclose(default(mod, x)[0], np.maximum(x @ WEIGHT, 0), atol=1e-6) == same


def test_two_open_extents_and_several_results():
    n, s = (tvm.tirx.Var(name, "int64") for name in "ns")

    def body(builder, x):
        y = builder.emit(relax.op.matmul(x, relax.const(WEIGHT)))
        return builder.emit(relax.Tuple([y, builder.emit(relax.op.concat([y, y], axis=1))]))

    mod = Buckets({"n": (1, 2), "s": (3,)})(module(body, (n, s, 4)))
    assert names(mod) == ["main", "main_any", "main_n1_s3", "main_n2_s3"]
    for shape in ((1, 3, 4), (2, 3, 4), (2, 2, 4), (5, 3, 4)):
        x = values(*shape)
        first, second = default(mod, x)
        np.testing.assert_allclose(first, x @ WEIGHT, rtol=1e-5, atol=1e-6)
        assert second.shape == (shape[0], 2 * shape[1], 3)


def test_planned_for_its_sizes_by_the_whole_pipeline():
    from roller_tvm.relax.pipeline import build, prepare, schedule

    from .networks import LLVM

    mod = classifier(tvm.tirx.Var("n", "int64"))
    prepared = prepare(mod, LLVM, buckets=(1, 4))
    _, report = schedule(prepared, LLVM)
    assert len(report.scheduled) >= 6  # three functions for each of two sizes
    assert len(report.scheduled) >= 9 and not report.left, report  # and three of any other size
    executable = build(prepared, LLVM)
    for size in (1, 2, 4):
        x = values(size, 3, 12, 12)
        np.testing.assert_allclose(run(executable, x)[0], default(mod, x)[0], rtol=1e-4, atol=1e-5)


def test_without_buckets_the_default_runs_every_size():
    from roller_tvm.relax.pipeline import build

    from .networks import LLVM

    mod = classifier(tvm.tirx.Var("n", "int64"))
    executable = build(mod, LLVM)
    for size in (1, 3):
        x = values(size, 3, 12, 12)
        np.testing.assert_allclose(run(executable, x)[0], default(mod, x)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("sizes", [(), (0,), (True,), {"n": ()}, {"n": (1, -2)}, {}, 8, {"n": 8}, ("a",)])
def test_sizes_that_are_none(sizes):
    with pytest.raises(UsageError, match="sizes from 1"):
        Buckets(sizes)


def test_which_extent_is_meant_must_be_said():
    n, s = (tvm.tirx.Var(name, "int64") for name in "ns")
    two = module(lambda b, x: b.emit(relax.op.nn.relu(x)), (n, s))
    assert list(symbols_of(two["main"])) == ["n", "s"]
    with pytest.raises(UsageError, match='buckets for which of n, s.*\n.*{"n": \\(1, 8\\), "s": \\(1, 8\\)}'):
        Buckets((1, 2))(two)
    with pytest.raises(BadInput, match="has no open extent 'm'\n.*it has n, s"):
        Buckets({"m": (1,)})(two)
    with pytest.raises(BadInput, match="has no open extent"):
        Buckets((1, 2))(classifier())


def test_what_depends_on_no_open_extent_is_of_each_copy():
    """One variable in two functions is what FuseOps ends at."""
    from roller_tvm.relax.pipeline import build, prepare

    from .networks import LLVM, run

    shift = values(4)

    def body(builder, x):
        fixed = builder.emit(relax.op.exp(relax.const(shift)))
        return builder.emit(relax.op.add(builder.emit(relax.op.subtract(x, fixed)), fixed))

    mod = module(body, (tvm.tirx.Var("n", "int64"), 4))
    prepare(mod, LLVM, (1, 3))
    executable = build(mod, LLVM, buckets=(1, 3))
    for size in (1, 2, 3):
        x = values(size, 4)
        np.testing.assert_allclose(run(executable, x)[0], x, rtol=1e-4, atol=1e-5)
