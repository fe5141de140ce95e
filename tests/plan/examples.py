"""Plans written by hand, so that a change of the model does not change the texts that are compared."""

from dataclasses import replace

from roller_tvm.ir.fuse import fuse_axes
from roller_tvm.ir.operators import parse_operator
from roller_tvm.planner import Plan, RProgram, RTile
from roller_tvm.roller.rprogram import SplitReduction


def of(words):
    return parse_operator(words.split())


def tile(level, text, **padding):
    """``tile("l2", "m=4 n=8")``."""
    extents = tuple((a, int(e)) for a, e in (word.split("=") for word in text.split()))
    return RTile(level, extents, tuple(padding.items()))


def matmul_gpu():
    choices = {"threads": 64, "unroll:k": 4, "vthread:n": 2, "vector:A": 4, "vector:B": 1, "store": 4}
    program = RProgram(
        "gpu.tiled", "matmul", "relu",
        (tile("shared", "m=64 n=64 k=16", B=1), tile("register", "m=8 n=8 k=1")),
        ("bias_add",), ("A", "B"), tuple(choices.items()),
    )  # fmt: skip
    expression = of("matmul m=256 n=256 k=64 layout=NT bias=1 relu=1")
    return Plan(expression, "v100", (program,))


def conv_gpu():
    choices = {"threads": 64, "unroll:kw": 3, "vector:pad": 1, "vector:weight": 1, "store": 1}
    program = RProgram(
        "gpu.tiled", "conv2d", "relu",
        (tile("shared", "n=1 f=16 oh=4 ow=8 c=4 kh=3 kw=3"), tile("register", "n=1 f=4 oh=1 ow=2 c=1 kh=1 kw=1")),
        ("pad",), ("pad", "weight"), tuple(choices.items()),
    )  # fmt: skip
    return Plan(of("conv2d_nchw n=1 c=8 h=8 w=8 f=32 k=3 padding=1 relu=1"), "h200", (program,))


def split_gpu():
    split = SplitReduction("matmul", "k", 8)
    expression = split.apply(of("matmul m=16 n=32 k=1024"))
    parts = RProgram(
        "gpu.tiled", "matmul.rf", "matmul.rf",
        (tile("shared", "k.p=1 m=16 n=32 k.i=16"), tile("register", "k.p=1 m=4 n=4 k.i=1")),
        (), ("A", "B"), (("threads", 32), ("vector:A", 1), ("vector:B", 4), ("store", 4)),
    )  # fmt: skip
    merge = RProgram(
        "gpu.direct", "matmul", "matmul",
        (tile("shared", "m=2 n=32 k.p=8"), tile("register", "m=1 n=1 k.p=8")),
        (), (), (("threads", 64), ("items", 1), ("vector", 1), ("blocks", 8)),
    )  # fmt: skip
    return Plan(expression, "a100", (parts, merge), (split,))


def relu_gpu():
    expression = fuse_axes(of("relu shape=8x16x14x14"))
    program = RProgram(
        "gpu.direct", "relu", "relu",
        (tile("shared", "i0*i1*i2*i3=256"), tile("register", "i0*i1*i2*i3=4")),
        (), (), (("threads", 64), ("items", 1), ("vector", 4), ("blocks", 98)),
    )  # fmt: skip
    return Plan(expression, "rtx4090", (program,))


def softmax_gpu():
    expression = fuse_axes(of("softmax shape=4x8x512"))
    rows = (tile("shared", "i0*i1=2 k=512"), tile("register", "i0*i1=1 k=1"))
    reduction = (("threads", 128), ("lanes", 64), ("rows", 2))
    programs = (
        RProgram("gpu.reduce", "max", "max", rows, (), (), reduction),
        RProgram("gpu.reduce", "sum", "sum", rows, ("exp",), (), reduction),
        RProgram(
            "gpu.direct", "norm", "norm",
            (tile("shared", "i0*i1=1 i2=256"), tile("register", "i0*i1=1 i2=1")),
            ("exp",), (), (("threads", 256), ("items", 1), ("vector", 1), ("blocks", 64)),
        ),
    )  # fmt: skip
    return Plan(expression, "h100", programs)


def conv_cpu():
    program = RProgram(
        "cpu.tiled", "conv2d", "relu",
        (tile("l2", "n=1 f=16 oh=8 ow=16 c=8 kh=3 kw=3"), tile("register", "n=1 f=4 oh=1 ow=16 c=1 kh=1 kw=1")),
        ("pad", "bias_add"), (), (("order:f", 0), ("order:oh", 1), ("unroll:kh", 3), ("unroll:kw", 3)),
    )  # fmt: skip
    words = "conv2d_nchw n=1 c=8 h=16 w=16 f=32 k=3 padding=1 bias=1 relu=1"
    return Plan(of(words), "cpu", (program,))


def packed_cpu():
    program = RProgram(
        "cpu.tiled", "matmul", "matmul",
        (tile("l2", "m=24 n=64 k=512"), tile("register", "m=6 n=32 k=1")),
        (), ("B",), (("order:n", 0), ("order:m", 1)),
    )  # fmt: skip
    return Plan(of("matmul m=48 n=2048 k=512"), "cpu", (program,))


def constant_cpu():
    product = of("matmul m=48 n=128 k=512")
    product = replace(product, inputs=tuple(replace(t, constant=t.name == "B") for t in product.inputs))
    program = RProgram(
        "cpu.tiled", "matmul", "matmul",
        (tile("l2", "m=24 n=64 k=512"), tile("register", "m=6 n=32 k=1")),
        (), (), (("order:n", 0), ("order:m", 1), ("vector", 16)),
    )  # fmt: skip
    return Plan(product, "cpu", (program,))


def primes_cpu():
    program = RProgram(
        "cpu.axpy", "matmul", "matmul",
        (tile("l2", "m=7 n=67 k=11"), tile("register", "m=1 n=67 k=11")),
        (), (), (("parallel", 1),),
    )  # fmt: skip
    return Plan(of("matmul m=13 n=67 k=11"), "cpu", (program,))


def edge_cpu():
    program = RProgram(
        "cpu.tiled", "matmul", "matmul",
        (tile("l2", "m=18 n=16 k=11"), tile("register", "m=3 n=16 k=1")),
        (), (), (("order:n", 0), ("order:m", 1), ("vector", 8)),
    )  # fmt: skip
    return Plan(of("matmul m=17 n=32 k=11"), "cpu", (program,))


def over_edges(plan, program=None):
    """The axes of a nest, a plan's last, over whose edge its register tile stands."""
    program = program or plan.programs[-1]
    tile = program.tile("register")
    return [a.name for a in plan.expression.stage(program.anchor).spatial if a.extent % tile[a.name]]


def pool_cpu():
    expression = fuse_axes(of("avg_pool2d n=4 c=16 h=16 w=16 k=2 stride=2"))
    program = RProgram(
        "cpu.direct", "pool_sum", "pool_avg",
        (tile("l2", "n*c=1 oh=1 ow=8 kh=2 kw=2"), tile("register", "n*c=1 oh=1 ow=8 kh=2 kw=2")),
        (), (), (("parallel", 2), ("vector", 8)),
    )  # fmt: skip
    return Plan(expression, "cpu", (program,))


def lanes_cpu():
    whole = fuse_axes(of("reduce_sum shape=6x8x4x32 axis=2,3"))
    split = SplitReduction("reduce_sum", "r2*r3", 16, True, ("r2", "r3"))
    rows = RProgram(
        "cpu.direct", "reduce_sum.rf", "reduce_sum.rf",
        (tile("l2", "i0*i1=1 r2*r3.p=16 r2*r3.i=8"), tile("register", "i0*i1=1 r2*r3.p=16 r2*r3.i=8")),
        (), (), (("parallel", 1), ("vector", 16)),
    )  # fmt: skip
    merge = RProgram(
        "cpu.direct", "reduce_sum", "reduce_sum",
        (tile("l2", "i0*i1=48 r2*r3.p=16"), tile("register", "i0*i1=1 r2*r3.p=16")),
        (), (), (("parallel", 0), ("vector", 0)),
    )  # fmt: skip
    return Plan(split.apply(whole), "cpu", (rows, merge), (split,))


def merged_cpu():
    splits = SplitReduction("matmul", "k", 16, True), SplitReduction("matmul", "k.p", 4, True)
    program = RProgram(
        "cpu.lanes", "matmul.rf", "relu",
        (tile("l2", "m=8 n=96 k.p=16 k.i=32"), tile("register", "m=2 n=8 k.p=16 k.i=1")),
        ("bias_add",), ("matmul.rf2", "matmul"), (("order:n", 0), ("order:m", 1)),
    )  # fmt: skip
    expression = of("matmul m=8 n=192 k=512 layout=NT bias=1 relu=1")
    return Plan(splits[1].apply(splits[0].apply(expression)), "cpu", (program,), splits)


EXAMPLES = {
    f.__name__: f
    for f in (
        matmul_gpu, conv_gpu, split_gpu, relu_gpu, softmax_gpu, conv_cpu, packed_cpu, constant_cpu, pool_cpu, lanes_cpu,
        merged_cpu, primes_cpu, edge_cpu,
    )  # fmt: skip
}
