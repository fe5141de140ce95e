"""Random convolutional networks through the whole pipeline, compared with TVM's own: passes must fit together."""

import numpy as np
import pytest

pytestmark = [pytest.mark.relax, pytest.mark.optimised]
tvm = pytest.importorskip("tvm")

from tvm import relax  # noqa: E402

from roller_tvm.relax.pipeline import build  # noqa: E402

from ..sampling import sampled  # noqa: E402
from .networks import LLVM, default, module, run  # noqa: E402

OP = relax.op


class Grower:
    """Adds random operators to what there is; values may be read by several."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def const(self, *shape, low=-1.0, high=1.0):
        return relax.const(self.rng.uniform(low, high, shape).astype("float32"))

    def pick(self, *choices):
        return choices[self.rng.integers(len(choices))]

    def network(self, builder, x):
        made = [x]
        for _ in range(self.rng.integers(4, 9)):
            source = made[-1] if self.rng.random() < 0.7 else self.pick(*made)
            made.append(getattr(self, self.pick("conv", "conv", "norm", "scale", "bound", "join", "pool", "drop"))(
                builder, source, made))  # fmt: skip
        y = builder.emit(OP.mean(made[-1], axis=[2, 3]))
        y = builder.emit(OP.matmul(y, self.const(int(y.ty.shape[1]), 7)))
        return builder.emit(relax.Tuple([builder.emit(OP.nn.softmax(y)), self.pick(*made[1:])]))

    def conv(self, builder, x, _made):
        channels, kernel = int(x.ty.shape[1]), self.pick(1, 3)
        groups = channels if kernel == 3 and self.rng.random() < 0.3 else 1
        outputs = channels if groups > 1 else int(self.pick(4, 16, 24))
        weight = self.const(outputs, channels // groups, kernel, kernel, low=-0.3, high=0.3)
        return builder.emit(
            OP.nn.conv2d(x, weight, strides=int(self.pick(1, 1, 2)), padding=kernel // 2, groups=groups)
        )

    def norm(self, builder, x, _made):
        parts = [self.const(int(x.ty.shape[1]), low=0.5, high=1.5) for _ in range(4)]
        return builder.emit(relax.TupleGetItem(builder.emit(OP.nn.batch_norm(x, *parts, axis=1, training=False)), 0))

    def scale(self, builder, x, _made):
        constant = self.pick(self.const(1, int(x.ty.shape[1]), 1, 1, low=0.5, high=1.5), relax.const(1.7, "float32"))
        return builder.emit(self.pick(OP.add, OP.multiply, OP.subtract, OP.divide)(x, constant))

    def bound(self, builder, x, _made):
        return builder.emit(self.pick(OP.nn.relu, OP.sigmoid, lambda y: OP.clip(y, 0.0, 2.0))(x))

    def join(self, builder, x, made):
        alike = [m for m in made if list(map(int, m.ty.shape)) == list(map(int, x.ty.shape))]
        if self.rng.random() < 0.5:
            return builder.emit(OP.add(x, self.pick(*alike)))
        return builder.emit(OP.concat([x, self.pick(*alike)], axis=1))

    def pool(self, builder, x, _made):
        kind = self.pick(OP.nn.max_pool2d, OP.nn.avg_pool2d)
        return builder.emit(kind(x, pool_size=[3, 3], strides=[1, 1], padding=[1, 1]))

    def drop(self, builder, x, _made):
        return builder.emit(relax.TupleGetItem(builder.emit(OP.nn.dropout(x)), 0))


@pytest.mark.parametrize("seed", sampled(range(4), 4))
def test_random_network(seed):
    grower = Grower(seed)
    shape = (int(grower.pick(1, 2)), int(grower.pick(3, 16)), int(grower.pick(9, 14)), int(grower.pick(9, 16)))
    mod = module(grower.network, shape)
    x = grower.rng.uniform(-1, 1, shape).astype("float32")
    for got, wanted in zip(run(build(mod, LLVM), x), default(mod, x), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-4 * max(1.0, abs(wanted).max()))
