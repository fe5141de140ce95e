"""Calls connected by their tiles: which ones, in which blocks, and that they compute the same."""

import numpy as np
import pytest

pytestmark = pytest.mark.relax
tvm = pytest.importorskip("tvm")

from tvm import relax  # noqa: E402

from roller_tvm.micro_perf.cpu_caches import passing_seconds  # noqa: E402
from roller_tvm.relax import connected  # noqa: E402
from roller_tvm.relax.connected import ConnectTiles  # noqa: E402
from roller_tvm.relax.dataflow import read_blocks  # noqa: E402
from roller_tvm.relax.pipeline import build, prepare  # noqa: E402
from roller_tvm.relax.rtask_fusion import in_dataflow  # noqa: E402
from roller_tvm.tir.shared_axes import shared_axes  # noqa: E402

from ..plan.devices import device  # noqa: E402
from ..sampling import covering  # noqa: E402
from .networks import LLVM, module, run, values  # noqa: E402

OP = relax.op
CPU = device("avx512")


def attention(heads, rows, columns, size, masked=False, twice=False):
    """Scores, perhaps masked, their softmax, its product with the values; and inputs."""

    def body(builder, q, k, v, *mask):
        scores = builder.emit(OP.matmul(q, k))
        if mask:
            scores = builder.emit(OP.add(scores, mask[0]))
        shares = builder.emit(OP.nn.softmax(scores, -1))
        out = builder.emit(OP.matmul(shares, v))
        return builder.emit(OP.add(out, builder.emit(OP.sum(shares, -1, keepdims=True)))) if twice else out

    shapes = [(1, heads, rows, size), (1, heads, size, columns), (1, heads, columns, size)]
    shapes += [(1, 1, rows, columns)] if masked else []
    return module(body, *shapes), [values(*shape) for shape in shapes]


def right(q, k, v, mask=0.0):
    scores = (q.astype("float64") @ k + mask).astype("float64")
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    return (shares / shares.sum(-1, keepdims=True)) @ v


#: Queries, keys and values of eight heads that are connected.
LARGE = [(1, 8, 1500, 64), (1, 8, 64, 1500), (1, 8, 1500, 64)]


def connected_of(mod):
    connect = ConnectTiles(LLVM, CPU)
    connect(prepare(mod, LLVM, device=CPU))
    return [note.name for note in connect.notes]


#: Heads, rows, columns and their size: rows cut in blocks; primes; one head and more columns than rows.
SHAPES = [(3, 40, 40, 8), (CPU.units, 37, 50, 16), (1, 8 * CPU.units, 70, 5)]


@pytest.mark.parametrize("heads, rows, columns, size, masked", covering(SHAPES, [False, True]))
def test_attention_in_one_kernel_computes_the_same(heads, rows, columns, size, masked, monkeypatch):
    monkeypatch.setattr(connected, "GAIN", 0.0)
    monkeypatch.setattr(connected, "BETWEEN", 0.0)
    mod, inputs = attention(heads, rows, columns, size, masked)
    if masked:  # causal
        inputs[3] = np.where(np.tri(rows, columns), 0.0, -1e30).astype("float32")[None, None]
    executable = build(mod, LLVM, device=CPU)
    kernels = [plan.kernel for plan in executable.roller_tvm_report.plans]
    assert len(kernels) == 1 and kernels[0].startswith("connected_")
    np.testing.assert_allclose(run(executable, *inputs)[0], right(*inputs), rtol=1e-4, atol=1e-5)


def test_blocks_stay_in_the_cache_of_a_core():
    mod, _ = attention(8, 1500, 1500, 64)
    connect = ConnectTiles(LLVM, CPU)
    connect(prepare(mod, LLVM, device=CPU))
    (note,) = connect.notes
    rows = int(note.plan.split(":")[0].split("x")[-1])
    assert note.recipe == "connected" and 1500 % rows == 0
    assert 2 * 4 * rows * 1500 <= CPU.level("l2").capacity_bytes  # scores and their softmax


def test_nothing_is_connected_that_is_not_predicted_to_gain(monkeypatch):
    mod, _ = attention(8, 1500, 1500, 64)
    monkeypatch.setattr(connected, "GAIN", 10.0)
    assert not connected_of(mod)


def test_one_block_is_too_few_for_two_cores(monkeypatch):
    monkeypatch.setattr(connected, "GAIN", 0.0)
    assert not connected_of(attention(1, 37, 1024, 8)[0])


def test_what_two_calls_of_a_chain_read_is_passed_on_to_both():
    mod, inputs = attention(8, 1500, 1500, 64, twice=True)
    (name,) = connected_of(mod)
    assert name.startswith("connected_matmul_softmax_") and "sum" in name
    shares = right(*inputs[:2], np.eye(1500))
    np.testing.assert_allclose(run(build(mod, LLVM, device=CPU), *inputs)[0],
                               shares @ inputs[2] + shares.sum(-1, keepdims=True), rtol=1e-4, atol=1e-5)  # fmt: skip


def test_what_others_read_too_is_stored():
    def body(builder, q, k, v):
        shares = builder.emit(OP.nn.softmax(builder.emit(OP.matmul(q, k)), -1))
        half = builder.emit(OP.split(shares, 2, -1))  # several results: in no chain
        out = builder.emit(OP.matmul(shares, v))
        return builder.emit(relax.Tuple([out, builder.emit(relax.TupleGetItem(half, 0))]))

    assert connected_of(module(body, *LARGE)) == ["connected_matmul_softmax"]  # the product with the values is apart


def test_nothing_written_in_place_comes_between():
    def body(builder, q, k, v, cache):
        scores = builder.emit(OP.matmul(q, k))
        packed = OP.call_inplace_packed("none", cache, inplace_indices=[0], ty_args=[cache.ty])
        after = builder.emit(packed)
        shares = builder.emit(OP.nn.softmax(scores, -1))
        return builder.emit(relax.Tuple([builder.emit(OP.matmul(shares, v)), after]))

    assert connected_of(module(body, *LARGE, (8,))) == ["connected_softmax_matmul1"]


def instance_norm(builder, x, scale, shift):
    """The norm of an image's channels."""
    return builder.emit(OP.nn.group_norm(x, scale, shift, int(x.ty.shape[1]), 1, [2, 3]))


@pytest.mark.parametrize("shape", [(2, 64, 64, 64), (1, 8 * CPU.units, 50, 70)])
def test_a_norm_of_channels_in_one_kernel_computes_the_same(shape, monkeypatch):
    monkeypatch.setattr(connected, "GAIN", 0.0)
    executable = build(module(instance_norm, shape, shape[1:2], shape[1:2]), LLVM, device=CPU)
    (plan,) = executable.roller_tvm_report.plans
    assert plan.kernel.startswith("connected_mean_")
    x, scale, shift = values(*shape), values(shape[1]), values(shape[1])
    wide = x.astype("float64")
    apart = wide - wide.mean((2, 3), keepdims=True)
    norm = apart / np.sqrt((apart**2).mean((2, 3), keepdims=True) + 1e-5)
    given = [part[:, None, None] for part in (scale, shift)]
    np.testing.assert_allclose(run(executable, x, scale, shift)[0], norm * given[0] + given[1], rtol=1e-4, atol=1e-5)


def test_a_norm_of_large_images_is_predicted_to_gain():
    shape = 1, 256, 128, 128
    (name,) = connected_of(module(instance_norm, shape, (256,), (256,)))
    assert name.startswith("connected_mean_")


def test_a_call_of_several_results_ends_a_chain(monkeypatch):
    monkeypatch.setattr(connected, "BETWEEN", 0.0)
    monkeypatch.setattr(connected, "GAIN", 0.0)

    def body(builder, x, y):
        parts = builder.emit(OP.split(builder.emit(OP.matmul(x, y)), 2, axis=1))
        left, right = (builder.emit(relax.TupleGetItem(parts, n)) for n in range(2))
        return builder.emit(OP.matmul(left, builder.emit(OP.matmul(right, y))))

    assert not any("split" in name for name in connected_of(module(body, (4, 128, 64), (4, 64, 64))))


def test_layers_share_a_kernel():
    def body(builder, q, k, v):
        for _ in range(2):
            shares = builder.emit(OP.nn.softmax(builder.emit(OP.matmul(q, k)), -1))
            q = builder.emit(OP.permute_dims(builder.emit(OP.matmul(shares, v)), [0, 1, 3, 2]))
            q = builder.emit(OP.reshape(q, (1, 8, 1500, 64)))
        return q

    connect = ConnectTiles(LLVM, CPU)
    mod = connect(prepare(module(body, *LARGE), LLVM, device=CPU))
    assert len(connect.notes) == 1
    assert mod["main"].script().count(f"call_tir({connect.notes[0].name},") == 2


def axes_of(body, *shapes):
    """The axes that the calls of a function share, by its blocks of bindings."""
    (block,) = read_blocks(in_dataflow(prepare(module(body, *shapes), LLVM, device=CPU)))
    calls = [bound.call for bound in block.bounds if bound.call]
    assert len(calls) > 1
    return shared_axes([call.func for call in calls], [call.tensors for call in calls]).extents


def test_axes_that_a_reduction_goes_along_are_not_shared():
    def columns(builder, x, y):
        return builder.emit(OP.nn.softmax(builder.emit(OP.matmul(x, y)), 1))

    def rows(builder, x, y):
        return builder.emit(OP.nn.softmax(builder.emit(OP.matmul(x, y)), 2))

    shapes = (3, 10, 20), (3, 20, 30)
    assert axes_of(columns, *shapes) == (3,)
    assert axes_of(rows, *shapes) == (3, 10)


def test_rows_are_not_cut():
    def norm(axes):
        def body(builder, x):
            apart = builder.emit(OP.subtract(x, builder.emit(OP.mean(x, axes, keepdims=True))))
            means = builder.emit(OP.mean(builder.emit(OP.exp(apart)), axes, keepdims=True))
            return builder.emit(OP.divide(apart, means))

        return body

    assert axes_of(norm([1, 2]), (2, 8, 9, 24)) == (2,)  # blocks of channels would be parts of each pixel
    assert axes_of(norm([2, 3]), (2, 24, 8, 9)) == (2, 24)


def test_axes_that_are_read_across_are_not_shared():
    def turned(builder, x, y, z):
        product = builder.emit(OP.matmul(x, y))
        return builder.emit(OP.matmul(builder.emit(OP.permute_dims(product, [0, 2, 1])), z))

    assert axes_of(turned, (3, 10, 20), (3, 20, 30), (3, 10, 7)) == (3,)  # rows of the first are summed over

    def shifted(builder, x, y):
        product = builder.emit(OP.matmul(x, y))
        return builder.emit(OP.nn.max_pool2d(product, (3, 1)))

    assert axes_of(shifted, (3, 2, 10, 20), (3, 2, 20, 30)) == (3, 2)  # a window goes along the others


def test_passing_costs_what_the_memory_that_holds_it_takes():
    far, l2 = CPU.far.bandwidth_gbps, CPU.level("l2").capacity_bytes
    assert passing_seconds(l2 / 2, CPU) == 0
    assert passing_seconds(1e12, CPU) == pytest.approx(3e12 * CPU.units / far / 1e9)
    assert 0 < passing_seconds(2.0 * l2, CPU) <= 3 * 2 * l2 * CPU.units / far / 1e9


def test_a_split_passes_more_than_one_tensor():
    def body(builder, a, b):
        parts = builder.emit(OP.split(builder.emit(OP.nn.softmax(OP.matmul(a, b), -1)), 2, -1))
        return builder.emit(OP.matmul(parts[0], OP.permute_dims(parts[1])))

    assert connected_of(module(body, (160, 8), (8, 160))) == ["connected_matmul_softmax"]
