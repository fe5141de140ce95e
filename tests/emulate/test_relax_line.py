"""Kernels of the Relax line, as TVM 0.27 generates them, executed: SIMT, shuffles, tensor cores, pipelines."""

import contextlib

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
pytest.importorskip("tvm.tirx", reason="needs the Relax line")
pytestmark = pytest.mark.relax

from tvm import s_tir, te  # noqa: E402

from roller_check import KernelFault, compile  # noqa: E402
from roller_check.relax_plans import emulated_function  # noqa: E402
from roller_tvm.codegen.errors import NotEmulated  # noqa: E402


def matmul(m, n, k, dtype="float32", result="float32"):
    a = te.placeholder((m, k), name="A", dtype=dtype)
    b = te.placeholder((k, n), name="B", dtype=dtype)
    r = te.reduce_axis((0, k), name="r")
    product = te.compute(
        (m, n), lambda i, j: te.sum(a[i, r].astype(result) * b[r, j].astype(result), axis=r), name="C"
    )
    return s_tir.Schedule(te.create_prim_func([a, b, product]))


def tiled_matmul(m, n, k, tile=16):
    """A tile of the result by a block of threads, its operands in shared memory."""
    sch = matmul(m, n, k)
    block = sch.get_sblock("C")
    i, j, r = sch.get_loops(block)
    (i, ii), (j, jj), (r, rr) = (sch.split(x, [None, tile]) for x in (i, j, r))
    sch.reorder(i, j, ii, jj, r, rr)
    for loop, thread in ((i, "blockIdx.y"), (j, "blockIdx.x"), (ii, "threadIdx.y"), (jj, "threadIdx.x")):
        sch.bind(loop, thread)
    for operand in (0, 1):
        copy = sch.cache_read(block, operand, "shared")
        sch.compute_at(copy, r)
        fused = sch.fuse(*sch.get_loops(copy)[-2:])
        _, y, x = sch.split(fused, [None, tile, tile])
        sch.bind(y, "threadIdx.y")
        sch.bind(x, "threadIdx.x")
    local = sch.cache_write(block, 0, "local")
    sch.reverse_compute_at(local, jj)
    sch.decompose_reduction(block, r)
    return sch


@pytest.mark.parametrize("shape", [(64, 48, 32), (37, 50, 41)])
def test_matmul(shape):
    m, n, k = shape
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype("float32") for s in ((m, k), (k, n)))
    (got,) = emulated_function(tiled_matmul(m, n, k)).run([a, b])
    np.testing.assert_allclose(got, a @ b, rtol=1e-5, atol=1e-5)


def softmax(columns=100):
    a = te.placeholder((24, columns), name="A")
    k1, k2 = (te.reduce_axis((0, columns), name=n) for n in ("k1", "k2"))
    high = te.compute((24,), lambda i: te.max(a[i, k1], axis=k1), name="high")
    total = te.compute((24,), lambda i: te.sum(te.exp(a[i, k2] - high[i]), axis=k2), name="total")
    out = te.compute((24, columns), lambda i, j: te.exp(a[i, j] - high[i]) / total[i], name="out")
    sch = s_tir.Schedule(te.create_prim_func([a, out]))
    for name in ("high", "total", "out"):
        row, column = sch.get_loops(sch.get_sblock(name))
        sch.bind(row, "blockIdx.x")
        _, column = sch.split(column, [None, 64])
        sch.bind(column, "threadIdx.x")
    return sch


def test_softmax_in_three_kernels_with_shuffles():
    function = emulated_function(softmax())
    assert "__shfl_down_sync" in function.program.source.text
    assert [len(launch.arguments) for launch in function.launches] == [2, 3, 4]
    a = np.random.default_rng(0).standard_normal((24, 100)).astype("float32")
    (got,) = function.run([a])
    e = np.exp(a - a.max(1, keepdims=True))
    np.testing.assert_allclose(got, e / e.sum(1, keepdims=True), rtol=1e-5)


def test_symbolic_sizes_are_given_by_name():
    n = te.var("n")
    a = te.placeholder((n,), name="A")
    sch = s_tir.Schedule(te.create_prim_func([a, te.compute((n,), lambda i: a[i] * 2.0, name="B")]))
    block, thread = sch.split(sch.get_loops(sch.get_sblock("B"))[0], [None, 32])
    sch.bind(block, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    with pytest.raises(NotEmulated, match="sizes="):
        emulated_function(sch)
    (got,) = emulated_function(sch, sizes={"n": 70}).run([np.arange(70, dtype="float32")])
    assert (got == 2 * np.arange(70)).all()


def tensor_matmul(kind, size=128, stages=0, result="float32", dtype="float16"):
    """Warps of 32x32 in blocks of 64x64, operands through shared memory, fragments by TVM's own intrinsics."""
    from tvm.s_tir.tensor_intrin.cuda import (
        get_mma_intrin_group,
        get_wmma_intrin_group,
        shared_16x16_to_ldmatrix_32x8_layout,
    )

    sch = matmul(size, size, size, dtype, result)
    block = sch.get_sblock("C")
    split = [sch.split(loop, [None, 16]) for loop in sch.get_loops(block)]
    sch.reorder(*(s[0] for s in split), *(s[1] for s in split))
    inner, outer = block, sch.blockize(split[0][1])
    (i, j, k) = (s[0] for s in split)
    by, wy, i = sch.split(i, [None, 2, 2])
    bx, wx, j = sch.split(j, [None, 2, 2])
    ko, ki = sch.split(k, [None, 2])
    sch.reorder(by, bx, wy, wx, ko, ki, i, j)
    warp = sch.fuse(wy, wx)
    for loop, thread in ((by, "blockIdx.y"), (bx, "blockIdx.x"), (warp, "threadIdx.y")):
        sch.bind(loop, thread)
    options = dict(load_scope="shared.dyn", store_scope="global", in_dtype=dtype, out_dtype=result, trans_b=False)
    if kind == "wmma":
        group, scopes = get_wmma_intrin_group(**options), ("wmma.matrix_a", "wmma.matrix_b", "wmma.accumulator")
    else:
        group, scopes = get_mma_intrin_group(**options, trans_a=False, not_use_mma_store_intrinic=False), ("warp",) * 3
    for operand in (0, 1):
        copy = sch.cache_read(outer, operand, "shared.dyn")
        sch.compute_at(copy, ko)
        _, y, x, v = sch.split(sch.fuse(*sch.get_loops(copy)[-2:]), [None, 4, 32, 8])
        sch.bind(y, "threadIdx.y")
        sch.bind(x, "threadIdx.x")
        sch.vectorize(v)
        sch.storage_align(copy, 0, axis=-2, factor=32, offset=8)
    a, b = (sch.cache_read(outer, operand, scopes[operand]) for operand in (0, 1))
    sch.compute_at(a, ki)
    sch.compute_at(b, ki)
    store = sch.cache_write(outer, 0, scopes[2])
    sch.reverse_compute_at(store, warp)
    if kind == "mma":
        for place in ((a, ("write", 0)), (b, ("write", 0)), (outer, ("write", 0))):
            sch.transform_layout(
                *place, lambda p, q: (p // 16, q // 16, *shared_16x16_to_ldmatrix_32x8_layout(p % 16, q % 16))
            )

    def tile(of):
        x, y = sch.get_loops(of)[-2:]
        (x, xi), (y, yi) = sch.split(x, [None, 16]), sch.split(y, [None, 16])
        sch.reorder(x, y, xi, yi)
        return xi

    tiles = [tile(of) for of in (a, b, store)]
    init = sch.get_child_blocks(sch.decompose_reduction(outer, ko))[0]
    for loop, name in zip(tiles, ("load_a", "load_b", "store"), strict=True):
        sch.tensorize(loop, group[name])
    sch.tensorize(sch.get_loops(init)[-2], group["init"])
    sch.tensorize(sch.get_loops(inner)[-3], group["compute"])
    if stages:
        sch.annotate(ko, "software_pipeline_stage", [0, 0, stages])
        sch.annotate(ko, "software_pipeline_order", [0, 1, 2])
        sch.annotate(ko, "software_pipeline_async_stages", [0])
    return sch


def emulated_tensor_matmul(*args, stages=0, **options):
    context = tvm.transform.PassContext(config={"tirx.use_async_copy": True}) if stages else contextlib.nullcontext()
    with context:
        return emulated_function(tensor_matmul(*args, stages=stages, **options), "sm_80")


@pytest.mark.nightly  # importing TVM's intrinsics alone takes 16 s
@pytest.mark.parametrize("kind", ["wmma", "mma"])
@pytest.mark.parametrize("stages", [0, 2])
@pytest.mark.parametrize("result", ["float32", "float16"])
def test_tensor_cores(kind, stages, result):
    function = emulated_tensor_matmul(kind, stages=stages, result=result)
    source = function.program.source.text
    assert ("wmma::mma_sync" if kind == "wmma" else "ldmatrix") in source and ("cp.async" in source) == bool(stages)
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, (128, 128)).astype("float16") for _ in range(2))
    (got,) = function.run([a, b])
    # Whole numbers: sums are exact in either precision.
    assert (got == a.astype("float32") @ b.astype("float32")).all()


def without(function, text, count=-1):
    """The function with a statement of its source left out."""
    import dataclasses

    source = function.program.source.text
    assert text in source
    return dataclasses.replace(function, program=compile(source.replace(text, "", count), arch="sm_80"))


@pytest.mark.slow
@pytest.mark.nightly  # TVM's intrinsics again
def test_a_pipeline_without_its_waits_or_barriers_is_caught():
    function = emulated_tensor_matmul("mma", stages=2)
    rng = np.random.default_rng(0)
    operands = [rng.standard_normal((128, 128)).astype("float16") for _ in range(2)]
    for wait in ("cp.async.wait_group 2;", "cp.async.wait_group 1;", "cp.async.wait_group 0;"):
        with pytest.raises(KernelFault, match="a cp.async brings it"):
            without(function, wait).run(operands)
    barriers = function.program.source.text.count("__syncthreads();")
    assert barriers >= 3
    with pytest.raises(KernelFault, match="cp.async|race|no barrier|barrier is missing"):
        without(function, "__syncthreads();").run(operands)


@pytest.mark.slow
@pytest.mark.nightly
def test_less_shared_memory_than_the_kernel_uses():
    import dataclasses

    function = emulated_tensor_matmul("wmma")
    (launch,) = function.launches
    launch = dataclasses.replace(launch, dynamic_shared=launch.dynamic_shared - 128)
    short = dataclasses.replace(function, launches=(launch,))
    with pytest.raises(KernelFault, match="out of bounds"):
        short.run([np.zeros((128, 128), "float16")] * 2)
