"""DAGs as Relay's task extraction gives them."""

import numpy as np
import pytest

pytestmark = pytest.mark.tvm
relay = pytest.importorskip("tvm.relay")

import tvm  # noqa: E402
from tvm import auto_scheduler  # noqa: E402

from roller_tvm.ir.pattern import pattern  # noqa: E402
from roller_tvm.te import read_te  # noqa: E402

from ..sampling import covering  # noqa: E402


def weight(*shape, dtype="float32"):
    return relay.const(np.zeros(shape, dtype))


def convolutions():
    x = relay.var("x", shape=(1, 32, 14, 14))
    y = relay.nn.conv2d(x, weight(64, 32, 3, 3), padding=(1, 1), kernel_size=(3, 3), channels=64)
    y = relay.nn.relu(relay.nn.bias_add(y, weight(64)))
    y = relay.nn.conv2d(y, weight(64, 1, 3, 3), (2, 2), (1, 1), kernel_size=(3, 3), channels=64, groups=64)
    y = relay.nn.conv2d(y, weight(64, 16, 3, 3), (1, 1), (1, 1), kernel_size=(3, 3), channels=64, groups=4)
    y = relay.nn.conv2d(y, weight(8, 64, 3, 3), (1, 1), (2, 2), (2, 2), kernel_size=(3, 3), channels=8)
    return relay.nn.conv2d_transpose(y, weight(8, 4, 2, 2), (2, 2), channels=4, kernel_size=(2, 2))


def channels_last():
    x = relay.var("x", shape=(1, 14, 14, 32))
    layout = dict(data_layout="NHWC", kernel_layout="HWIO")
    y = relay.nn.conv2d(x, weight(3, 3, 32, 64), (1, 1), (1, 1), kernel_size=(3, 3), channels=64, **layout)
    skip = relay.nn.conv2d(x, weight(1, 1, 32, 64), kernel_size=(1, 1), channels=64, **layout)
    return relay.nn.relu(relay.add(y, skip))


def heads():
    x = relay.var("x", shape=(2, 16, 8, 8))
    y = relay.nn.max_pool2d(x, (3, 3), (2, 2), padding=(1, 1))
    y = relay.nn.batch_flatten(relay.nn.global_avg_pool2d(y))
    y = relay.nn.dense(y, weight(10, 16))
    return relay.nn.softmax(relay.nn.bias_add(y, weight(10)))


def attention(dtype="float16"):
    q = relay.var("q", shape=(4, 16, 8), dtype=dtype)
    k = relay.var("k", shape=(4, 16, 8), dtype=dtype)
    v = relay.var("v", shape=(4, 16, 8), dtype=dtype)
    scores = relay.nn.softmax(relay.nn.batch_matmul(q, k))
    return relay.nn.batch_matmul(scores, v, transpose_b=False)


def products():
    a = relay.var("a", shape=(12, 20))
    b = relay.var("b", shape=(20, 16))
    c = relay.var("c", shape=(16, 12))
    chain = relay.nn.matmul(relay.nn.matmul(a, b), c)
    return relay.Tuple([chain, relay.nn.matmul(b, a, transpose_a=True, transpose_b=True)])


def tasks_of(body, target="llvm -mcpu=skylake-avx512 -num-cores 2"):
    mod = tvm.IRModule.from_expr(relay.Function(relay.analysis.free_vars(body), body))
    tasks, _ = auto_scheduler.extract_tasks(mod, {}, tvm.target.Target(target), hardware_params=GPU)
    return [(task, read_te(task.compute_dag, name=task.desc)) for task in tasks]


GPU = auto_scheduler.HardwareParams(-1, 16, 64, 49152, 2**31 - 1, 1024, 8, 32)


@pytest.mark.parametrize(
    ("network", "expected", "target"),
    covering(
        [
            (convolutions, ["contraction"] * 4 + ["depthwise"]),
            (channels_last, ["contraction"] * 2),
            (heads, ["contraction", "pooling", "reduction", "softmax"]),
            (attention, ["contraction", "contraction", "softmax"]),
            (products, ["contraction"] * 3),
        ],
        ["llvm -mcpu=skylake-avx512 -num-cores 2", "cuda -arch=sm_80"],
    ),
)
def test_every_task_is_read(network, expected, target):
    readings = tasks_of(network(), target=target)
    assert sorted(pattern(r.expression) for _, r in readings) == expected
    for task, reading in readings:
        positions = {name: task.compute_dag.ops[i] for name, i in reading.positions.items()}
        assert all(op.same_as(positions[name]) for name, op in reading.ops.items())
        for stage in reading.expression.stages:
            op = reading.ops[stage.name]
            own = [*op.axis, *op.reduce_axis]
            assert len(own) == len(reading.axes[stage.name])
            for iv, parts in zip(own, reading.axes[stage.name].values(), strict=True):
                extent = tvm.arith.Analyzer().simplify(iv.dom.extent)  # pooling leaves it an expression
                assert np.prod([stage.extents[p] for p in parts]) == int(extent)
        # Ansor counts the select of a transposed convolution, and no flop at all where an index is odd.
        if task.compute_dag.flop_ct > 0:
            assert reading.expression.flops == pytest.approx(task.compute_dag.flop_ct, rel=0.25)


def test_blocks_of_channels_split_the_reduction():
    (first,) = [r for _, r in tasks_of(convolutions()) if "NCHWc_add_nn_relu" in r.expression.name]
    anchor = first.expression.anchor
    assert {n: a for n, a in anchor.extents.items() if n.startswith("ic")} == {"ic.o": 2, "ic.i": 16}
    assert first.axes[anchor.name]["ic"] == ("ic.o", "ic.i")
    assert [s.name for s in first.expression.prologues] == ["data_pad"]
    assert [s.name for s in first.expression.epilogues] == ["T_add", "T_relu"]
    data, kernel = first.expression.resolve(anchor, ["data_pad"])
    assert str(data) == "p0[n, ic.o, oh + kh - 1, ow + kw - 1, ic.i]?"
    assert str(kernel) == "p1[oc_chunk, ic.o, kh, kw, ic.i, oc_block]"


def test_winograd_is_carried_by_its_batched_product():
    layout = dict(data_layout="NHWC", kernel_layout="HWIO", kernel_size=(3, 3), channels=256)
    x = relay.var("x", shape=(1, 14, 14, 256))
    ((task, reading),) = tasks_of(relay.nn.conv2d(x, weight(3, 3, 256, 256), (1, 1), (1, 1), **layout))
    if "winograd" not in task.desc:
        pytest.skip("this TVM convolves directly")
    assert reading.expression.anchor_name == "bgemm"
    assert reading.layout_free == ("p1",)


def test_half_precision_stays_half():
    for _, reading in tasks_of(attention("float16")):
        assert {t.dtype for t in reading.expression.inputs} == {"float16"}
