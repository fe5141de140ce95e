"""Addresses in 64 bits on the Relay line: the same numbers, all indices wide, within its context alone."""

import re

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
pytestmark = [pytest.mark.tvm, pytest.mark.optimised]

from tvm import relay, te, tir  # noqa: E402

from roller_tvm.codegen.rewrites import rewritten  # noqa: E402
from roller_tvm.relay import WideIndices, build  # noqa: E402

from ..relay.drop_in import built_by_drop_in  # noqa: E402


def text(module):
    """Its code, without the addresses that LLVM is given for names."""
    return re.sub(r"0x[0-9a-f]+", "", module.get_source("ll"))


def padded():
    """A window over a border, rows unrolled and vectors across: checks, constants and ramps in its indices."""
    x = te.placeholder((7, 33), name="x")
    p = te.compute((9, 35), lambda i, j: tir.if_then_else(
        tir.all(i > 0, i < 8, j > 0, j < 34), x[i - 1, j - 1], 0.0), name="p")  # fmt: skip
    r, s = te.reduce_axis((0, 3), name="r"), te.reduce_axis((0, 3), name="s")
    y = te.compute((7, 33), lambda i, j: te.sum(p[i + r, j + s] * (1.0 + r), axis=[r, s]), name="y")
    schedule = te.create_schedule(y.op)
    schedule[p].compute_inline()
    outer, inner = schedule[y].split(y.op.axis[1], 8)
    schedule[y].reorder(outer, y.op.axis[0], r, s, inner)
    schedule[y].unroll(s)
    schedule[y].vectorize(inner)
    schedule[y].parallel(outer)
    return schedule, [x, y]


def gathered():
    """What is read where a tensor of 32 bits says."""
    x, at = te.placeholder((40, 6), name="x"), te.placeholder((12,), "int32", name="at")
    y = te.compute((12, 6), lambda i, j: x[tir.min(at[i], 39), j] + at[tir.indexmod(i + 5, 12)].astype("float32"))
    return te.create_schedule(y.op), [x, at, y]


def divided():
    """Loops' variables as numbers, and in divisions, of a shape that nothing divides."""
    x = te.placeholder((13, 11), name="x")
    y = te.compute((143,), lambda i: x[i // 11, i % 11] * i.astype("float32") + tir.Select(i % 3 == 1, 1.0, -1.0))
    schedule = te.create_schedule(y.op)
    schedule[y].parallel(schedule[y].split(y.op.axis[0], 10)[0])
    return schedule, [x, y]


def open_extent():
    """An extent that is known when it runs."""
    n = te.var("n")
    x = te.placeholder((n, 5), name="x")
    y = te.compute((n, 5), lambda i, j: x[n - 1 - i, j] * 2)
    return te.create_schedule(y.op), [x, y]


PROGRAMS = [padded, gathered, divided, open_extent]


def arguments(tensors):
    rng = np.random.default_rng(3)
    shapes = [[int(d) if isinstance(d, tir.IntImm) else 9 for d in t.shape] for t in tensors]
    arrays = [rng.random(s).astype("float32") if t.dtype == "float32" else rng.integers(0, 60, s).astype(t.dtype)
              for s, t in zip(shapes, tensors, strict=True)]  # fmt: skip
    return [tvm.nd.array(a) for a in arrays[:-1]] + [tvm.nd.array(np.full(shapes[-1], 7, tensors[-1].dtype))]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_the_numbers_are_the_same(program):
    schedule, tensors = program()
    plain, args = tvm.build(schedule, tensors, "llvm"), arguments(tensors)
    with WideIndices():
        wide = tvm.build(schedule, tensors, "llvm")
    plain(*args)
    expected = args[-1].numpy()
    wide(*args[:-1], out := tvm.nd.array(np.full(expected.shape, 7, expected.dtype)))
    assert (out.numpy() == expected).all() and not (expected == 7).all()
    assert text(wide) != text(plain)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_every_loop_and_index_is_wide(program):
    func = rewritten(tvm.lower(*program())["main"], {"wide_indices"})
    kinds = {"loop": set(), "index": set()}

    def look(node):
        if isinstance(node, tir.For):
            kinds["loop"] |= {str(node.loop_var.dtype), str(node.extent.dtype)}
        if isinstance(node, tir.BufferLoad | tir.BufferStore):
            kinds["index"] |= {str(i.dtype).split("x")[0] for i in node.indices}

    tir.stmt_functor.post_order_visit(func.body, look)
    assert kinds == {"loop": {"int64"}, "index": {"int64"}}
    assert not tir.analysis.undefined_vars(func.body, [*func.params, *(b.data for b in func.buffer_map.values()),
                                                       *_sizes(func)])  # fmt: skip


def _sizes(func):
    return [d for b in func.buffer_map.values() for d in (*b.shape, *b.strides) if isinstance(d, tir.Var)]


def test_only_within_its_context():
    schedule, tensors = divided()
    plain = text(tvm.build(schedule, tensors, "llvm"))
    with WideIndices():
        wide = text(tvm.build(schedule, tensors, "llvm"))
        with WideIndices(False):
            assert text(tvm.build(schedule, tensors, "llvm")) == plain and not WideIndices.active()
        assert text(tvm.build(schedule, tensors, "llvm")) == wide != plain and WideIndices.active()
    assert text(tvm.build(schedule, tensors, "llvm")) == plain


def test_build_and_the_drop_in_have_it(tmp_path):
    x, w = relay.var("x", shape=(8, 32)), relay.var("w", shape=(16, 32))
    mod = tvm.IRModule.from_expr(relay.Function([x, w], relay.nn.relu(relay.nn.dense(x, w))))
    log = tmp_path / "records.json"
    log.write_text("")

    def drop_in(**options):
        return text(built_by_drop_in(mod, log, **options).get_lib())

    assert drop_in() != drop_in(wide_indices=False) == drop_in(wide_indices=False, vector_math=False)
    ours = [text(build(mod, None, "llvm", str(log), wide_indices=on).get_lib()) for on in (True, False)]
    assert ours[0] != ours[1]
