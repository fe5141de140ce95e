"""ConcatInPlace: what is put side by side is computed where it belongs; the same answers, fewer kernels."""

import numpy as np
import pytest

pytestmark = [pytest.mark.relax, pytest.mark.optimised]
tvm = pytest.importorskip("tvm")

from tvm import relax  # noqa: E402

from roller_tvm.relax import allocations  # noqa: E402
from roller_tvm.relax.concat_in_place import ConcatInPlace  # noqa: E402
from roller_tvm.relax.pipeline import build, prepare, schedule  # noqa: E402
from roller_tvm.tir.joined import Place, joined_by, written_by  # noqa: E402

from .networks import LLVM, default, module, run, values  # noqa: E402

OP = relax.op


def const(*shape):
    return relax.const(values(*shape))


def product(builder, x, columns):
    return builder.emit(OP.nn.relu(builder.emit(OP.matmul(x, const(int(x.ty.shape[1]), columns)))))


def branches(builder, x):
    """Parts of different sizes, read by one more kernel."""
    beside = builder.emit(OP.concat([product(builder, x, n) for n in (8, 24, 16)], axis=1))
    return product(builder, beside, 8)


def dense_block(builder, x):
    """Each layer's result beside all before it, which later layers read again."""
    kept = product(builder, x, 16)
    for _ in range(3):
        kept = builder.emit(OP.concat([kept, product(builder, kept, 8)], axis=1))
    return product(builder, kept, 8)


def along_rows(builder, x):
    return builder.emit(OP.concat([product(builder, x, 8), product(builder, x, 8)], axis=0))


def read_elsewhere_too(builder, x):
    a, b = product(builder, x, 8), product(builder, x, 8)
    beside = builder.emit(OP.concat([a, b], axis=1))
    return relax.Tuple([product(builder, beside, 4), product(builder, a, 4), builder.emit(OP.add(a, b))])


def one_twice(builder, x):
    a = product(builder, x, 8)
    return product(builder, builder.emit(OP.concat([a, a], axis=1)), 4)


def an_input(builder, x):
    return product(builder, builder.emit(OP.concat([x, product(builder, x, 8)], axis=1)), 4)


def a_result(builder, x):
    a = product(builder, x, 8)
    return relax.Tuple([a, product(builder, builder.emit(OP.concat([a, product(builder, x, 8)], axis=1)), 4)])


def through_a_view(builder, x):
    """What joins them changes their shapes too: no plain join."""
    a = builder.emit(OP.reshape(product(builder, x, 16), (32, 8)))
    b = builder.emit(OP.reshape(product(builder, x, 16), (32, 8)))
    return builder.emit(OP.concat([a, b], axis=1))


def in_two(builder, x):
    """Part of the first; the second copies it from there."""
    a, b, c = (product(builder, x, 8) for _ in range(3))
    beside = [builder.emit(OP.concat(pair, axis=1)) for pair in ([a, b], [a, c])]
    return relax.Tuple([product(builder, one, 4) for one in beside])


def joins(mod):
    """How many calls join tensors, and how many work on a part of one."""
    called = [b.value.op for block in mod["main"].body.blocks for b in block.bindings if hasattr(b.value, "op")]
    names = [op for op in called if isinstance(op, tvm.ir.GlobalVar)]
    return sum(bool(joined_by(mod[name])) for name in names), sum("_in_place" in name.name_hint for name in names)


def lowered(mod):
    """Right before the pass."""
    passes = relax.transform
    mod, _ = schedule(prepare(mod, LLVM), LLVM)
    steps = [passes.ToNonDataflow(), passes.RemovePurityChecking(), passes.CallTIRRewrite()]
    return tvm.transform.Sequential(steps)(mod)


@pytest.mark.parametrize(
    "body, left, parts",
    [
        (branches, 0, 3), (dense_block, 0, 4), (along_rows, 0, 2), (read_elsewhere_too, 0, 4), (one_twice, 1, 0),
        (an_input, 1, 0), (a_result, 1, 0), (through_a_view, 0, 0), (in_two, 0, 3),
    ],
)  # fmt: skip
def test_the_answers_are_the_same_and_copies_go(body, left, parts):
    mod, x = module(body, (16, 32)), values(16, 32)
    changed = ConcatInPlace()(lowered(mod))
    found, made = joins(changed)
    assert (found, made) == (left, parts)
    for got, wanted in zip(run(build(mod, LLVM), x), default(mod, x), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(2, 32, 7, 9), pytest.param((1, 16, 14, 14), marks=pytest.mark.nightly)])
def test_a_fire_module(shape, monkeypatch):
    """Convolutions in either layout, images one after the other; bit by bit as with copies."""

    def fire(builder, x):
        def conv(y, filters, size):
            weight = const(filters, int(y.ty.shape[1]), size, size)
            return builder.emit(OP.nn.relu(builder.emit(OP.nn.conv2d(y, weight, padding=size // 2))))

        squeezed = conv(x, 16, 1)
        beside = builder.emit(OP.concat([conv(squeezed, 32, 1), conv(squeezed, 32, 3)], axis=1))
        return conv(builder.emit(OP.nn.max_pool2d(beside, (3, 3), (2, 2))), 16, 1)

    mod, x = module(fire, shape), values(*shape)
    in_place = run(build(mod, LLVM), x)[0]
    monkeypatch.setattr("roller_tvm.relax.pipeline.ConcatInPlace", lambda: tvm.transform.Sequential([]))
    np.testing.assert_array_equal(in_place, run(build(mod, LLVM), x)[0])


def test_what_is_written_again_is_no_part():
    """A kernel that changes a tensor in place after it was copied would change the copy."""

    def body(builder, x):
        a, b = product(builder, x, 8), product(builder, x, 8)
        beside = builder.emit(OP.concat([a, b], axis=1))
        return relax.Tuple([product(builder, beside, 4), builder.emit(OP.add(a, const(1, 8)))])

    mod = lowered(module(body, (16, 32)))
    funcs = {v: f for v, f in mod.functions_items() if type(f).__name__ == "PrimFunc"}
    adds = next(v for v, f in funcs.items() if "add" in v.name_hint)
    everything = {n for n in range(len(mod[adds].params))}
    plain = joins(ConcatInPlace()(mod))
    assert plain[0] == 0
    real = allocations.written_by
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(allocations, "written_by", lambda f: everything if f.same_as(mod[adds]) else real(f))
        assert joins(ConcatInPlace()(mod))[0] == 1


def test_functions_that_join_are_known_and_others_are_not():
    def names(body, shape=(16, 32)):
        mod = lowered(module(body, shape))
        return {v.name_hint: joined_by(f) for v, f in mod.functions_items() if type(f).__name__ == "PrimFunc"}

    found = [joined for joined in names(branches).values() if joined]
    assert [(j.axis, j.order) for j in found] == [(1, (0, 1, 2))]
    mod = lowered(module(branches, (16, 32)))
    for var, func in mod.functions_items():
        if type(func).__name__ == "PrimFunc":
            assert written_by(func) == {len(func.params) - 1}, var
    assert not any(names(lambda b, x: b.emit(OP.nn.relu(b.emit(OP.flip(x, 1))))).values())
    assert Place((4, 9), (0, 3)).inside(Place((4, 20), (0, 5))) == Place((4, 20), (0, 8))
