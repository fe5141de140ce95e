"""Random graphs of operators, fused, emulated, compared with TVM's own kernels on the CPU."""

import random

import pytest

tvm = pytest.importorskip("tvm")
pytestmark = pytest.mark.tvm

from tvm import relay  # noqa: E402

from ..sampling import sampled  # noqa: E402
from .fused_nets import Net, compare  # noqa: E402

CHANNELS = 8
OPERATORS = ("conv1", "conv3", "depthwise", "sum", "gate", "max", "mean", "concat", "softmax", "transpose", "slices",
             "dense", "split", "outside")  # fmt: skip


def operator(kind, a, b, net, name, size):
    """One more tensor of the same shape, of one or two others."""
    c = CHANNELS
    if kind in ("conv1", "conv3"):
        return net.conv(a, name, c, c, int(kind[-1]))
    if kind == "depthwise":
        weight = net.weight(name, c, 1, 3, 3)
        return relay.nn.conv2d(a, weight, padding=(1, 1), kernel_size=(3, 3), channels=c, groups=c)
    if kind == "sum":
        return a + b
    if kind == "gate":
        return relay.tanh(a) * relay.sigmoid(b)
    if kind in ("max", "mean"):
        pool = relay.nn.max_pool2d if kind == "max" else relay.nn.avg_pool2d
        return pool(a, (3, 3), (1, 1), padding=(1, 1))
    if kind == "concat":
        return net.conv(relay.concatenate([a, b], 1), name, 2 * c, c, 1)
    if kind == "softmax":
        return relay.nn.softmax(a, axis=1)
    if kind == "transpose":
        return relay.transpose(a, (0, 1, 3, 2))
    if kind == "slices":
        high = relay.strided_slice(a, [0, c // 2, 0, 0], [1, c, size, size])
        return relay.concatenate([high, relay.strided_slice(b, [0, 0, 0, 0], [1, c // 2, size, size])], 1)
    if kind == "dense":  # between views
        flat = relay.nn.dense(relay.reshape(a, (c, size * size)), net.weight(name, size * size, size * size))
        return relay.reshape(relay.tanh(flat), (1, c, size, size))
    if kind == "split":
        halves = relay.split(a, 2, 1)
        return relay.concatenate([halves[1], relay.tanh(halves[0])], 1)
    return relay.scatter_elements(a, relay.zeros((1, c, size, size), "int32"), b, axis=1)


def check(seed, tmp_path):
    chance, net = random.Random(seed), Net()
    size = chance.choice([4, 6, 8])
    tensors = [relay.var("x", shape=(1, CHANNELS, size, size))]
    for number in range(chance.randint(6, 14)):
        a, b = chance.choice(tensors[-4:]), chance.choice(tensors)
        tensors.append(operator(chance.choice(OPERATORS), a, b, net, f"w{number}", size))
    results = [tensors[-1], chance.choice(tensors[1:])]
    policy = ("best", "wavefront", "list")[seed % 3]
    _, fusion, steps = compare(net, net.module(relay.Tuple(results)), tmp_path, policy=policy)
    assert fusion.launches <= fusion.sequential_launches and not fusion.refused, str(fusion)


@pytest.mark.parametrize("seed", sampled(range(3), 3))
def test_random_graphs(seed, tmp_path):
    check(seed, tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(3, 40))
def test_more_random_graphs(seed, tmp_path):
    check(seed, tmp_path)
