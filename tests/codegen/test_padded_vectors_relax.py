"""Vectors into padding, and of every second element: the same numbers, whole vectors, no choice where none is left."""

import numpy as np
import pytest

pytestmark = pytest.mark.relax
tvm = pytest.importorskip("tvm")

from tvm import relax, te, tirx  # noqa: E402

from roller_tvm.codegen.dialect import dialect_here  # noqa: E402
from roller_tvm.codegen.flat import CHOICE, called, kind_of, loads_of, parts_of, statements, values_of  # noqa: E402
from roller_tvm.codegen.rewrites.padded_vectors import with_padded_vectors  # noqa: E402
from roller_tvm.codegen.rewrites.peeled_loops import with_peeled_loops  # noqa: E402
from roller_tvm.codegen.rewrites.strided_vectors import with_strided_vectors  # noqa: E402
from roller_tvm.relax import EdgeVectors, build  # noqa: E402

from ..relax.networks import LLVM, module  # noqa: E402
from ..sampling import covering  # noqa: E402

WIDE = {"kind": "llvm", "mcpu": "core-avx2"}


def pooling(height, width, kernel, stride, padding, rows, lanes, dtype="float32"):
    """A sum over windows of a padded image in register tiles of `rows` by `lanes`, windows unrolled."""
    image = te.placeholder((3, height, width), dtype, "image")
    padded = te.compute(
        (3, height + 2 * padding, width + 2 * padding),
        lambda c, i, j: tirx.if_then_else(
            tirx.all(i >= padding, i < height + padding, j >= padding, j < width + padding),
            image[c, i - padding, j - padding],
            tirx.const(0, dtype),
        ),
        "padded",
    )
    read = padded if padding else image
    out = [(size + 2 * padding - kernel) // stride + 1 for size in (height, width)]
    a, b = te.reduce_axis((0, kernel), "a"), te.reduce_axis((0, kernel), "b")
    pool = te.compute((3, *out), lambda c, i, j: te.sum(read[c, i * stride + a, j * stride + b], [a, b]), "pool")
    sch = tvm.s_tir.Schedule(te.create_prim_func([image, pool]))
    if padding:
        sch.compute_inline(sch.get_sblock("padded"))
    block = sch.get_sblock("pool")
    last = sch.cache_write(block, 0, "local")
    c, i, j = sch.get_loops(last)
    im, ii = sch.split(i, [None, rows])
    jm, ji = sch.split(j, [None, lanes])
    sch.reorder(c, im, jm, ii, ji)
    sch.parallel(c)
    sch.unroll(ii)
    sch.vectorize(ji)
    sch.compute_at(block, jm)
    i, j, a, b = sch.get_loops(block)[-4:]
    sch.reorder(a, b, i, j)
    for loop in (a, b, i):
        sch.unroll(loop)
    sch.vectorize(j)
    sch.decompose_reduction(block, a)
    return tvm.IRModule({"main": sch.mod["main"].with_attr("global_symbol", "main")})


def windows(image, kernel, stride, padding):
    padded = np.pad(image, ((0, 0), (padding, padding), (padding, padding)))
    found = np.lib.stride_tricks.sliding_window_view(padded, (kernel, kernel), axis=(1, 2))
    return found[:, ::stride, ::stride].sum((-1, -2))


@pytest.mark.parametrize(
    "height, width, kernel, stride, padding, rows, lanes, dtype",
    covering([(12, 16, 3, 1, 1, 2, 8), (12, 28, 3, 1, 1, 3, 14), (13, 32, 3, 2, 1, 7, 8), (12, 24, 5, 1, 2, 4, 4),
              (11, 31, 3, 3, 1, 4, 11), (30, 43, 3, 6, 2, 2, 8), (9, 8, 3, 1, 1, 9, 8), (16, 64, 2, 2, 0, 4, 16)],
             ["float32", "int32"]),
)  # fmt: skip
def test_the_numbers_are_the_same(height, width, kernel, stride, padding, rows, lanes, dtype):
    mod = pooling(height, width, kernel, stride, padding, rows, lanes, dtype)
    image = np.random.default_rng(1).integers(-9, 9, (3, height, width)).astype(dtype)
    expected = windows(image, kernel, stride, padding)
    out = tvm.runtime.tensor(np.full(expected.shape, 77, dtype))
    tvm.compile(EdgeVectors()(mod), WIDE)["main"](tvm.runtime.tensor(image), out)
    assert (out.numpy() == expected).all()


def flattened(mod):
    """The body as the rewritings get it."""
    seen = []

    def look(body, _dialect):
        seen.append(body)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("roller_tvm.codegen.rewrites.whole_vectors.REWRITINGS", (look,))
        tvm.compile(EdgeVectors()(mod), WIDE)
    return seen[0]


def choices(body):
    found = (part for node in statements(body) for value in values_of(node) for part in parts_of(value))
    return [part for part in found if called(part) == CHOICE and kind_of(part.ty) == "PrimType"]


def test_no_lane_is_chosen_by_itself():
    body = flattened(pooling(12, 32, 3, 1, 1, 3, 8))
    vectors = with_padded_vectors(body, dialect_here())
    assert choices(body) and with_padded_vectors(vectors, dialect_here()) is None
    peeled = with_peeled_loops(vectors, dialect_here())
    assert choices(vectors) and not choices(peeled), "rows of padding are known of each trip too"
    trips = sorted(int(node.extent) for node in statements(peeled) if kind_of(node) == "For")
    assert trips == [2, 2, 2, 2, 3], "of four rows of tiles, and of four tiles in each, the two in the middle are alike"


@pytest.mark.parametrize("step, near", [(2, True), (4, True), (8, False)])
def test_elements_near_each_other_are_picked_out_of_vectors(step, near):
    body = flattened(pooling(14 * step + 3, 15 * step + 3, 3, step, 0, 3, 4))
    made = with_strided_vectors(body, dialect_here())
    assert (made is not None) == near
    if near:
        ramps = [load.indices[0] for load in loads_of(made) if kind_of(load.indices[0]) == "Ramp"]
        assert ramps and {int(ramp.stride) for ramp in ramps} == {1}


def test_a_model_built_and_its_answers():
    def body(builder, x):
        pooled = builder.emit(relax.op.nn.max_pool2d(x, (3, 3), (2, 2), padding=(1, 1)))
        return builder.emit(relax.op.nn.avg_pool2d(pooled, (3, 3), padding=(1, 1), count_include_pad=True))

    mod = module(body, (1, 4, 23, 64))
    x = np.random.default_rng(2).standard_normal((1, 4, 23, 64)).astype("float32")
    found = relax.VirtualMachine(build(mod, LLVM), tvm.cpu())["main"](x).numpy()
    padded = np.pad(x[0], ((0, 0), (1, 1), (1, 1)), constant_values=-np.inf)
    view = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))[:, ::2, ::2].max((-1, -2))
    np.testing.assert_allclose(found[0], windows(view, 3, 1, 1) / 9, rtol=1e-5, atol=1e-5)
