"""Functions before, steps, functions after, as text: plans by hand, so that a change of the model changes none."""

import numpy as np
import pytest

pytestmark = pytest.mark.relax
tvm = pytest.importorskip("tvm")
from tvm import te  # noqa: E402

from roller_tvm.codegen.apply_tensorir import apply_steps_tir  # noqa: E402
from roller_tvm.planner.lower import lower, render  # noqa: E402
from roller_tvm.relax.record_lines import check_replay  # noqa: E402
from roller_tvm.tir import read_prim_func  # noqa: E402
from roller_tvm.tuning.numerics import difference, make_inputs  # noqa: E402

from ..plan.examples import EXAMPLES  # noqa: E402


def zero():
    return tvm.tirx.const(0.0, "float32")


def elements(shape, function, name):
    """An element-wise stage with the plans' names of axes."""
    names = [f"i{n}" for n in range(len(shape))]
    return te.compute(shape, function, name=name, varargs_names=names)


def relu(x):
    return elements(x.shape, lambda *i: tvm.tirx.max(x[i], zero()), "relu")


def matmul(m, n, k, transposed=False):
    a, b = te.placeholder((m, k), name="A"), te.placeholder((n, k) if transposed else (k, n), name="B")
    r = te.reduce_axis((0, k), name="k")
    return [a, b, te.compute(
        (m, n), lambda m, n: te.sum(a[m, r] * (b[n, r] if transposed else b[r, n]), axis=r), name="matmul"
    )]  # fmt: skip


def biased_matmul():
    *given, product = matmul(256, 256, 64, True)
    bias = te.placeholder((256,), name="bias")
    return [*given, bias, relu(elements((256, 256), lambda *i: product[i] + bias[i[1]], "bias_add"))]


def convolution(size, biased):
    data, weight = te.placeholder((1, 8, size, size), name="data"), te.placeholder((32, 8, 3, 3), name="weight")
    pad = te.compute(
        (1, 8, size + 2, size + 2),
        lambda n, c, h, w: te.if_then_else(
            te.all(h >= 1, h < size + 1, w >= 1, w < size + 1), data[n, c, h - 1, w - 1], zero()
        ),
        name="pad",
    )
    c, kh, kw = (te.reduce_axis((0, e), name=n) for n, e in (("c", 8), ("kh", 3), ("kw", 3)))
    conv = te.compute(
        (1, 32, size, size),
        lambda n, f, oh, ow: te.sum(pad[n, c, oh + kh, ow + kw] * weight[f, c, kh, kw], axis=[c, kh, kw]),
        name="conv2d",
    )
    if not biased:
        return [data, weight, relu(conv)]
    bias = te.placeholder((32,), name="bias")
    return [data, weight, bias, relu(elements(conv.shape, lambda *i: conv[i] + bias[i[1]], "bias_add"))]


def rectified():
    data = te.placeholder((8, 16, 14, 14), name="data")
    return [data, relu(data)]


def softmax():
    data = te.placeholder((4, 8, 512), name="data")
    k, r = te.reduce_axis((0, 512), name="k"), te.reduce_axis((0, 512), name="k")
    top = te.compute((4, 8), lambda i0, i1: te.max(data[i0, i1, k], axis=k), name="max")
    power = elements((4, 8, 512), lambda *i: te.exp(data[i] - top[i[:2]]), "exp")
    total = te.compute((4, 8), lambda i0, i1: te.sum(power[i0, i1, r], axis=r), name="sum")
    return [data, elements((4, 8, 512), lambda *i: power[i] / total[i[:2]], "norm")]


def pool():
    data = te.placeholder((4, 16, 16, 16), name="data")
    kh, kw = te.reduce_axis((0, 2), name="kh"), te.reduce_axis((0, 2), name="kw")
    total = te.compute(
        (4, 16, 8, 8), lambda n, c, oh, ow: te.sum(data[n, c, oh * 2 + kh, ow * 2 + kw], axis=[kh, kw]), name="pool_sum"
    )
    return [data, te.compute(
        total.shape, lambda n, c, oh, ow: total[n, c, oh, ow] / tvm.tirx.const(4.0, "float32"), name="pool_avg"
    )]  # fmt: skip


def rows():
    data = te.placeholder((6, 8, 4, 32), name="data")
    r2, r3 = te.reduce_axis((0, 4), name="r2"), te.reduce_axis((0, 32), name="r3")
    return [data, te.compute((6, 8), lambda i0, i1: te.sum(data[i0, i1, r2, r3], axis=[r2, r3]), name="reduce_sum")]


#: What each plan is of, in its names of stages and axes.
PROGRAMS = {
    "matmul_gpu": biased_matmul,
    "conv_gpu": lambda: convolution(8, False),
    "split_gpu": lambda: matmul(16, 32, 1024),
    "relu_gpu": rectified,
    "softmax_gpu": softmax,
    "conv_cpu": lambda: convolution(16, True),
    "packed_cpu": lambda: matmul(48, 2048, 512),
    "constant_cpu": lambda: matmul(48, 128, 512),
    "pool_cpu": pool,
    "lanes_cpu": rows,
    "primes_cpu": lambda: matmul(13, 67, 11),
    "edge_cpu": lambda: matmul(17, 32, 11),
}
TARGET = tvm.target.Target({"kind": "llvm", "num-cores": 2})


def module(name):
    func = te.create_prim_func(PROGRAMS[name](), index_dtype_override="int64")
    return tvm.IRModule({"main": func.with_attr("global_symbol", "main")})


def scheduled(name, mod):
    return apply_steps_tir(mod, read_prim_func(mod["main"]), steps(name))


def steps(name):
    return lower(EXAMPLES[name]())


def text(mod):
    return mod["main"].script(show_meta=False) + "\n"


@pytest.mark.parametrize("name", PROGRAMS)
def test_before_steps_and_after(golden, name):
    mod = module(name)
    after = scheduled(name, mod)
    golden(name, f"# before\n{text(mod)}\n# steps\n{render(steps(name))}\n\n# after\n{text(after.mod)}")
    check_replay(mod, after, TARGET, name)


@pytest.mark.parametrize("name", [n for n in PROGRAMS if n.endswith("_cpu")])
def test_after_computes_what_before_does(name):
    mod = module(name)
    given = PROGRAMS[name]()
    inputs = make_inputs(given[:-1])
    results = []
    for made in (mod, scheduled(name, mod).mod):
        out = tvm.runtime.tensor(np.full([int(e) for e in given[-1].shape], np.nan, "float32"))
        tvm.compile(made, TARGET)["main"](*map(tvm.runtime.tensor, inputs), out)
        results.append(out.numpy())
    assert not difference(results[1], results[0], 512)
