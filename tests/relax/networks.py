"""Small Relax modules for tests, and what they compute."""

import numpy as np
import tvm
from tvm import relax

LLVM = {"kind": "llvm", "num-cores": 2}
RNG = np.random.default_rng(11)


def values(*shape, low=-1.0, high=1.0):
    return RNG.uniform(low, high, shape).astype("float32")


def module(body, *shapes, dtype="float32"):
    """A module whose main is ``body(builder, *params)`` in one dataflow block."""
    builder = relax.BlockBuilder()
    params = [relax.Var(f"x{n}", relax.TensorType(shape, dtype)) for n, shape in enumerate(shapes)]
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(body(builder, *params))
        builder.emit_func_output(result)
    return builder.get()


def classifier(batch=1):
    """Convolution with batch normalisation and ReLU, pooling, a matrix product."""
    weight, last = values(8, 3, 3, 3), values(8, 5)
    shift, mean = values(8), values(8)
    scale, variance = values(8, low=0.5, high=1.5), values(8, low=0.5, high=1.5)

    def body(builder, x):
        y = builder.emit(relax.op.nn.conv2d(x, relax.const(weight), padding=1))
        norm = builder.emit(relax.op.nn.batch_norm(y, *map(relax.const, (scale, shift, mean, variance)), axis=1,
                                                   training=False))  # fmt: skip
        y = builder.emit(relax.op.nn.relu(builder.emit(relax.TupleGetItem(norm, 0))))
        y = builder.emit(relax.op.mean(y, axis=[2, 3]))
        return builder.emit(relax.op.matmul(y, relax.const(last)))

    return module(body, (batch, 3, 12, 12))


def run(executable, *inputs):
    """Outputs of main as arrays."""
    vm = relax.VirtualMachine(executable, tvm.cpu())
    result = vm["main"](*map(tvm.runtime.tensor, inputs))
    return [r.numpy() for r in ([result] if hasattr(result, "numpy") else result)]


def default(mod, *inputs):
    """What TVM's own pipeline computes."""
    return run(tvm.compile(mod, tvm.target.Target("llvm")), *inputs)


def operators(mod, name="main"):
    """Names of the operators that a function calls, in order."""
    bindings = [b.value for block in mod[name].body.blocks for b in block.bindings]
    return [v.op.name.removeprefix("relax.") for v in bindings if hasattr(getattr(v, "op", None), "name")]
