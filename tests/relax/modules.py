"""Small Relax modules, lowered as importers' pipelines do."""

import numpy as np
import tvm
from tvm import relax, te

TARGET = tvm.target.Target({"kind": "llvm", "num-cores": 2})
FUSE = [
    relax.transform.LegalizeOps(),
    relax.transform.AnnotateTIROpPattern(),
    relax.transform.FoldConstant(),
    relax.transform.FuseOps(),
    relax.transform.FuseTIR(),
]


def unfused():
    """relu(x @ w1 + b) @ w2, and the same first layer again."""
    builder = relax.BlockBuilder()
    rng = np.random.default_rng(1)

    def weight(*shape):
        return relax.const(rng.standard_normal(shape).astype("float32"))

    x = relax.Var("x", relax.TensorType((16, 24), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = x
            for _ in range(2):
                y = builder.emit(relax.op.matmul(y, weight(24, 24)))
                y = builder.emit(relax.op.add(y, weight(24)))
                y = builder.emit(relax.op.nn.relu(y))
            y = builder.emit(relax.op.matmul(y, weight(24, 40)))
            out = builder.emit_output(y)
        builder.emit_func_output(out)
    return builder.get()


def network():
    """Two equal layers and another: two tasks, three calls."""
    with TARGET:
        return tvm.transform.Sequential(FUSE)(unfused())


def matmul(n=16, m=24, k=32, names=("product", "out")):
    """relu(a @ b) as one PrimFunc."""
    a, b = te.placeholder((n, k), name="a"), te.placeholder((k, m), name="b")
    r = te.reduce_axis((0, k), name="r")
    c = te.compute((n, m), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), name=names[0])
    d = te.compute((n, m), lambda i, j: tvm.tirx.max(c[i, j], 0.0), name=names[1])
    return te.create_prim_func([a, b, d], index_dtype_override="int64")


def answer(mod, *inputs):
    """What 'main' of a module computes."""
    machine = relax.VirtualMachine(tvm.compile(mod, target=TARGET), tvm.cpu())
    return machine["main"](*(tvm.runtime.tensor(i) for i in inputs)).numpy()
