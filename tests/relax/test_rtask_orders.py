"""Random graphs of PrimFuncs as fused kernels, their blocks begun in orders that a GPU may choose too.

The emulator runs a block until it has to wait: begun last to first, or in any order, what reads before it has waited
for all that it reads finds memory that nobody wrote.
"""

import random

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
pytestmark = pytest.mark.relax

from tvm import te, topi  # noqa: E402

from roller_tvm.device import load_device  # noqa: E402
from roller_tvm.rammer.functions import Call  # noqa: E402
from tests.relax.test_rtask_functions import Kernels, reference  # noqa: E402

A100 = load_device("a100")
C, SIZE = 8, 16
SHAPE = (1, C, SIZE, SIZE)


def x(name="x", shape=SHAPE):
    return te.placeholder(shape, "float32", name=name)


def of(function, *inputs):
    return [*inputs, function(*inputs)]


def moved(index):
    """An element-wise function that reads at another place."""
    return lambda: of(lambda a: te.compute(SHAPE, lambda n, c, i, j: a(*index(n, c, i, j)) * 0.5, name="y"), x())


def weighted(function, *shape):
    return lambda: of(function, x(), x("w", shape))


def halo(a):
    """Five rows apart, zero beyond the edge."""
    rows = te.compute(SHAPE, lambda n, c, i, j: te.if_then_else(i >= 5, a[n, c, i - 5, j], 0.0), name="far")
    return te.compute(SHAPE, lambda n, c, i, j: a[n, c, i, j] + rows[n, c, i, j], name="y")


def flat(a):
    """Seen as a matrix of other rows, which is transposed."""
    return topi.reshape(topi.transpose(topi.reshape(a, (C * 4, SIZE * SIZE // 4)), (1, 0)), SHAPE)


def halves(a, b):
    first = topi.strided_slice(b, [0, C // 2, 0, 0], [1, C, SIZE, SIZE])
    return topi.concatenate([first, topi.strided_slice(a, [0, 0, 0, 0], [1, C // 2, SIZE, SIZE])], 1)


UNARY = {
    "conv1": weighted(lambda a, w: topi.nn.relu(topi.nn.conv2d_nchw(a, w, 1, 0, 1)), C, C, 1, 1),
    "conv3": weighted(lambda a, w: topi.nn.conv2d_nchw(a, w, 1, 1, 1), C, C, 3, 3),
    "dilated": weighted(lambda a, w: topi.nn.conv2d_nchw(a, w, 1, 4, 4), C, C, 3, 3),
    "strided": weighted(lambda a, w: topi.image.resize2d(topi.nn.conv2d_nchw(a, w, 2, 1, 1), [0.0] * 4, (SIZE, SIZE),
                                                         method="nearest_neighbor"), C, C, 3, 3),
    "depthwise": weighted(lambda a, w: topi.nn.depthwise_conv2d_nchw(a, w, (1, 1), (1, 1), 1), C, 1, 3, 3),
    "pool": lambda: of(lambda a: topi.nn.pool2d(a, (3, 3), (1, 1), (1, 1), (1, 1, 1, 1), "max"), x()),
    "softmax": lambda: of(lambda a: topi.nn.softmax(a, axis=3), x()),
    "channels": lambda: of(lambda a: topi.nn.softmax(a, axis=1), x()),
    "mean": lambda: of(lambda a: a - topi.broadcast_to(topi.sum(a, axis=2, keepdims=True), SHAPE), x()),
    "turned": moved(lambda n, c, i, j: (n, c, SIZE - 1 - i, j)),
    "across": moved(lambda n, c, i, j: (n, c, j, i)),
    "doubled": moved(lambda n, c, i, j: (n, c, i // 2, j // 2)),
    "shuffled": moved(lambda n, c, i, j: (n, (c % 2) * (C // 2) + c // 2, i, j)),
    "flat": lambda: of(flat, x()),
    "halo": lambda: of(halo, x()),
}  # fmt: skip
BINARY = {
    "add": lambda: of(lambda a, b: a + b, x(), x("b")),
    "gate": lambda: of(lambda a, b: topi.tanh(a) * topi.sigmoid(b), x(), x("b")),
    "halves": lambda: of(halves, x(), x("b")),
    "product": lambda: of(lambda a, b: topi.reshape(topi.nn.batch_matmul(topi.reshape(a, (C, SIZE, SIZE)),
                                                                       topi.reshape(b, (C, SIZE, SIZE))), SHAPE),
                          x(), x("b")),
}  # fmt: skip
_MADE = {}


def func(kind):
    if kind not in _MADE:
        _MADE[kind] = te.create_prim_func((UNARY | BINARY)[kind]())
    return _MADE[kind]


def graph(seed):
    """(calls, what they are given)."""
    chance = random.Random(seed)
    tensors, calls, given = ["x"], [], {"x": SHAPE}
    for number in range(chance.randint(5, 9)):
        a, b = chance.choice(tensors[-3:]), chance.choice(tensors)
        kind = chance.choice([*UNARY, *BINARY])
        made = func(kind)
        names = [a] if kind in UNARY else [a, b]
        if kind in UNARY and len(made.params) == 3:
            names.append(f"w{number}")
            given[f"w{number}"] = weight_shape(kind)
        calls.append(Call(f"{kind}{number}", made, (*names, f"t{number}")))
        tensors.append(f"t{number}")
    return calls, given


def weight_shape(kind):
    return tuple(int(e) for e in UNARY[kind]()[1].shape)


def check(seed):
    calls, given = graph(seed)
    rng = np.random.default_rng(seed)
    values = {n: (rng.standard_normal(s) * 0.4).astype("float32") for n, s in given.items()}
    expected = dict(values)
    policy = ("best", "wavefront", "list")[seed % 3]
    read = {t for c in calls for t in c.tensors[:-1]}
    kept = {c.tensors[-1] for c in calls} - read
    fused = Kernels(calls, kept, policy, top=3)
    assert not fused.refused, fused.refused
    reference(calls, expected)
    orders = [lambda n: list(range(n))[::-1]]
    orders += [lambda n, s=s: random.Random(s).sample(range(n), n) for s in range(3)]
    for order in orders:
        made = dict(values)
        fused.run(made, order)
        for name in kept:
            told = f"{name}\n{fused.plan}"
            np.testing.assert_allclose(made[name], expected[name], rtol=1e-4, atol=1e-4, err_msg=told)
    return fused


@pytest.mark.parametrize("seed", range(1))
def test_blocks_in_any_order(seed):
    check(seed)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(1, 40))
def test_blocks_of_more_graphs_in_any_order(seed):
    check(seed)
