"""Golden numbers of the planner and its model: a constant, a comparison or a sign that changes shows as a number.

One line a construction: how many candidates, what each rule rejected, the times of the plans, and what the model says
of each program of the best. A digest stands for all plans, their estimates and their steps (tests/lower shows such).
"""

import csv
import hashlib
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from roller_tvm.ir import TensorExpression
from roller_tvm.ir.operators import operator, parse_operator, parse_params
from roller_tvm.planner import construct
from roller_tvm.planner.lower import lower
from roller_tvm.recipes import RECIPES
from roller_tvm.roller.features import NO_FEATURES, Features

from ..expr.examples import EXAMPLES
from .devices import device

TABLE = Path(__file__).parents[2] / "python" / "roller_osdi22_operators.csv"
# Every kind of nest that a recipe is for, in sizes at which its choices matter.
KINDS = """
matmul m=512 n=512 k=512
matmul m=1024 n=768 k=256 layout=NT bias=1 relu=1
matmul m=1021 n=127 k=509
matmul m=1 n=4096 k=1024
matmul m=197 n=768 k=768
matmul m=16 n=32 k=16384
matmul m=1 n=8192 k=4096
matmul m=256 n=256 k=256 dtype=float16
batch_matmul b=12 m=128 n=128 k=64 layout=NT dtype=float16
dense m=128 n=768 k=3072 bias=1
conv2d_nchw n=1 c=64 h=56 w=56 f=64 k=3 padding=1 bias=1 relu=1
conv2d_nhwc n=8 c=64 h=28 w=28 f=128 k=3 stride=2 padding=1 dtype=float16
conv2d_nchw n=1 c=3 h=224 w=224 f=64 k=7 stride=2 padding=3
depthwise_conv2d_nchw n=1 c=96 h=112 w=112 k=3 stride=2 padding=1
depthwise_conv2d_nhwc n=1 c=240 h=28 w=28 k=5 padding=2
avg_pool2d_nchw n=8 c=168 h=83 w=83 k=3 stride=2 padding=SAME
max_pool2d_nchw n=1 c=64 h=112 w=112 k=3 stride=2 padding=1
global_avg_pool2d_nchw n=1 c=1280 h=7 w=7
reduce_sum shape=128x512x1024
reduce_sum shape=4x1000x4096 axis=0,1
reduce_sum shape=65536x1000 axis=1
softmax shape=64x1000
softmax shape=12x197x197
layer_norm shape=128x768
relu shape=128x256x56x56
add shape=8x512x28x28 other=512x1x1
transpose shape=1024x768
transpose shape=64x31x33 perm=2,0,1 dtype=float16
""".strip().split("\n")
#: Nests that only a network's own operators have, as `read_te` told them: Winograd's transforms, a packed kernel.
READ = {
    "pipeline_harris": ("avx2", "avx512"), "pipeline_pyramid": ("avx512",),
    "transposed_convolution": ("avx2", "avx512"), "transposed_odd": ("avx2", "avx512"),
    "transposed_one_filter": ("avx2", "avx512"), "winograd_cpu": ("avx512",), "winograd_cpu_odd": ("avx512", "avx2"),
    "winograd_gpu": ("v100", "mi50"), "winograd_gpu_odd": ("a100", "k80"),
}  # fmt: skip
#: Devices; with what TensorIR's schedules can say, and as a TVM that knows nothing of our rewrites builds.
ON = ("avx512", "v100", "avx2 tensorir", "a100 tensorir", "mi50", "avx512 tensorir", "h200 tensorir", "rtx4090",
      "avx2 plain", "k80", "h100 tensorir tf32", "avx2", "t4")  # fmt: skip


def digits(value):
    return f"{value:.6g}"


def rounded(value):
    """Return JSON with floats of six digits: the last ones differ between machines."""
    if isinstance(value, float):
        return digits(value)
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    return [rounded(inner) for inner in value] if isinstance(value, list | tuple) else value


def digest(value):
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


def of_plan(ranked):
    programs = [program.to_json() for program in ranked.plan.programs]
    return [programs, rounded(ranked.estimate.to_json()), [step.to_json() for step in lower(ranked.plan)]]


def numbers(name, expression, on, top=10):
    spec, features = device(on.split()[0]), NO_FEATURES
    if "plain" in on:
        spec = spec.built_by_tvm()
    if "tensorir" in on:
        features = Features.of_tensor_ir(spec, tf32="tf32" in on)
    found = construct(expression, spec, top, features)
    rules = Counter(rejection.rule for rejection in found.rejections)
    told = [f"{name} on {on}: {found.considered} candidates, eps {found.eps:g}",
            " ".join(f"{rule}:{count}" for rule, count in sorted(rules.items())),
            " ".join(digits(plan.seconds * 1e6) for plan in found.plans[:10])]  # fmt: skip
    for program, e in zip(found.best.plan.programs, found.best.estimate.programs, strict=True):
        levels = " ".join(f"{level.level} {digits(level.bytes)} B {digits(level.seconds * 1e6)}" for level in e.levels)
        told.append(f"{program.recipe} {e.bound} {digits(e.compute_seconds * 1e6)} {levels} blocks {e.blocks} waves "
                    f"{e.waves} resident {e.occupancy} {e.occupancy_limit} threads {e.threads} registers {e.registers} "
                    f"shared {e.shared_bytes} used {digits(e.utilisation)}")  # fmt: skip
    told.append(f"all plans {digest([of_plan(ranked) for ranked in found.plans])}")
    return "\n    ".join(told)


KINDS_PART = 7


@pytest.mark.parametrize("part", range(len(KINDS) // KINDS_PART + 1))
def test_numbers_of_each_kind_of_nest(golden, part):
    lines = []
    for number in range(part * KINDS_PART, min(len(KINDS), (part + 1) * KINDS_PART)):
        expression = parse_operator(KINDS[number].split())
        # Each kind on a CPU and on GPUs, other ones for the next kind.
        lines += [numbers(KINDS[number], expression, ON[(7 * number + 7 + step) % len(ON)]) for step in (0, 4, 9)]
    golden(f"kinds{part}", "\n".join(lines) + "\n")


def test_numbers_of_nests_of_networks(golden):
    lines = []
    for name, devices in READ.items():
        text = Path(__file__).with_name("read").joinpath(f"{name}.json").read_text()
        lines += [numbers(name, TensorExpression.from_json(json.loads(text)), on, top=40) for on in devices]
    golden("networks", "\n".join(lines) + "\n")


def test_every_recipe_has_its_numbers():
    texts = [path.read_text() for path in Path(__file__).with_name("golden").glob("*.txt")]
    told = {line.split()[0] for text in texts for line in text.split("\n    ") if line.strip()}
    assert told >= set(RECIPES)


def test_numbers_of_small_operators(golden):
    lines = [numbers(f"{name} {params}", operator(name, **params), ON[number % len(ON)])
             for number, (name, params) in enumerate(EXAMPLES)]  # fmt: skip
    golden("small", "\n".join(lines) + "\n")


def drawn(random):
    """Return a random operator of a kind, its sizes odd or even, small or large."""
    sizes = [1, 2, 3, 5, 7, 8, 12, 13, 16, 24, 31, 32, 48, 64, 65, 96, 127, 128, 197, 256]

    def of(*names, most=256):
        return " ".join(f"{name}={random.choice([size for size in sizes if size <= most])}" for name in names)

    shape = "x".join(str(random.choice(sizes)) for _ in range(random.choice([1, 2, 3, 3])))
    axes = shape.count("x") + 1
    dtype = random.choice(["", "", " dtype=float16"])
    window = f" k={random.choice([1, 2, 3, 5])} stride={random.choice([1, 1, 2])} padding=SAME"
    ends = random.choice(["", " bias=1", " bias=1 relu=1"])
    return random.choice([
        f"matmul {of('m', 'n', 'k')} layout={random.choice(['NN', 'NT', 'TN'])}{ends}{dtype}",
        f"batch_matmul {of('b', most=16)} {of('m', 'n', 'k', most=128)}{dtype}",
        f"dense {of('m', 'n', 'k')}{ends}",
        f"conv2d_nchw {of('n', most=8)} {of('c', 'f', most=64)} {of('h', 'w', most=32)}{window}{ends}{dtype}",
        f"conv2d_nhwc {of('n', most=8)} {of('c', 'f', most=64)} {of('h', 'w', most=32)}{window}{dtype}",
        f"depthwise_conv2d_nchw {of('n', most=8)} {of('c', 'h', 'w', most=64)}{window}",
        f"depthwise_conv2d_nhwc {of('n', most=8)} {of('c', 'h', 'w', most=64)}{window}",
        f"avg_pool2d_nchw {of('n', most=8)} {of('c', 'h', 'w', most=64)}{window}",
        f"softmax shape={shape} axis={random.randrange(axes)}",
        f"reduce_sum shape={shape} axis={random.randrange(axes)}", f"layer_norm shape={shape}",
        f"transpose shape={shape} perm={','.join(map(str, random.sample(range(axes), axes)))}{dtype}",
        f"add shape={shape}",
    ])  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
def test_numbers_of_random_operators(golden, seed):
    random, lines = Random(seed), []
    for number in range(24):
        words = drawn(random)
        lines.append(numbers(words, parse_operator(words.split()), ON[(number + 3 * seed) % len(ON)], top=40))
    golden(f"random{seed}", "\n".join(lines) + "\n")


def test_numbers_of_constant_weights(golden):
    """Weights that a build may pack."""
    lines = []
    for words in (KINDS[1], KINDS[4], KINDS[9]):
        expression = parse_operator(words.split())
        inputs = tuple(replace(t, constant=number == 1) for number, t in enumerate(expression.inputs))
        lines += [numbers(f"{words} (packed)", replace(expression, inputs=inputs), on) for on in ("avx2", "avx512")]
    golden("constant", "\n".join(lines) + "\n")


def test_numbers_of_other_types(golden):
    """Elements of other sizes than float32's, sums of bytes in 32 bits, tiles that stand over edges."""
    words = ["matmul m=96 n=130 k=72 layout=NT", "conv2d_nhwc n=1 c=24 h=20 w=20 f=40 k=3 padding=1 bias=1",
             "depthwise_conv2d_nchw n=1 c=12 h=30 w=30 k=3 stride=2 padding=1", "reduce_sum shape=64x300 axis=1",
             "max_pool2d_nchw n=2 c=12 h=30 w=30 k=3 stride=2", "transpose shape=70x66", "add shape=8x7x66 other=7x1"]
    lines = []
    for number, (dtype, op) in enumerate((d, w) for d in ("float64", "float16", "int8", "bfloat16") for w in words):
        text = f"{op} dtype={dtype}"
        lines.append(numbers(text, parse_operator(text.split()), ON[(5 * number) % len(ON)], top=20))
    for number, sizes in enumerate(((256, 128, 192), (250, 130, 256), (64, 512, 250))):
        product = operator("matmul", **dict(zip("mnk", sizes, strict=True)), dtype="int32", layout="NT")
        product = replace(product, inputs=tuple(replace(t, dtype="int8") for t in product.inputs))
        lines += [numbers(f"bytes {sizes}", product, on, 20) for on in ("a100 tensorir", ("avx2", "t4")[number % 2])]
    golden("types", "\n".join(lines) + "\n")


@pytest.mark.parametrize("part", range(4))
def test_numbers_of_the_papers_operators(golden, part):
    with TABLE.open() as rows:
        paper = [(row["id"], operator(row["operator"], **parse_params(row["params"]))) for row in csv.DictReader(rows)]
    lines = [numbers(name, expression, ON[number % len(ON)]) for number, (name, expression) in enumerate(paper)
             if number % 16 == 4 * part]  # fmt: skip
    golden(f"paper{part}", "\n".join(lines) + "\n")
