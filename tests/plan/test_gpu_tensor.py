"""Matrix products on tensor cores: when they are planned, with which tiles and buffers, and why not."""

import json
import re
from dataclasses import replace

import pytest

from roller_tvm.device import load_device
from roller_tvm.ir import Access, Axis, Index, Stage, Tensor, TensorExpression
from roller_tvm.ir.matrices import matrix_roles
from roller_tvm.ir.operators import parse_operator
from roller_tvm.micro_perf.gpu_fragments import TensorShapes, shared_bytes
from roller_tvm.planner import Plan, construct
from roller_tvm.recipes.gpu_tensor import product_of
from roller_tvm.roller.features import NO_FEATURES, Features


def plans(words, device="a100", features=None, top=10):
    spec = load_device(device)
    made = Features.of_tensor_ir(spec) if features is None else features
    return construct(parse_operator(words.split()), spec, top, made)


def recipes(found):
    return {p.recipe for ranked in found.plans for p in ranked.plan.programs}


LARGE = "matmul m=2048 n=2048 k=2048 dtype=float16"


@pytest.mark.parametrize("words", [
    LARGE, "batch_matmul b=12 m=384 n=384 k=64 dtype=float16", "dense m=512 n=3072 k=768 bias=1 relu=1 dtype=float16",
    "conv2d_nhwc n=32 c=64 h=56 w=56 f=64 k=3 padding=1 dtype=float16",
])  # fmt: skip
def test_half_products_are_planned_on_tensor_cores(words):
    found = plans(words)
    assert found.best.plan.programs[0].recipe == "gpu.tensor"
    assert found.best.seconds < plans(words, features=NO_FEATURES).best.seconds / 1.3


def test_without_features_plans_are_those_of_every_line():
    spec, expression = load_device("a100"), parse_operator(LARGE.split())
    assert [r.plan for r in construct(expression, spec, 5).plans] == [
        r.plan for r in construct(expression, spec, 5, NO_FEATURES).plans
    ]
    assert "gpu.tensor" not in recipes(construct(expression, spec, 10))


@pytest.mark.parametrize("device", ["v100", "t4", "mi50", "k80"])
def test_older_devices_have_none_of_it(device):
    assert Features.of_tensor_ir(load_device(device)) == NO_FEATURES


@pytest.mark.parametrize(("words", "why"), [
    ("matmul m=512 n=512 k=512", "float32 and float32"),
    ("conv2d_nchw n=8 c=32 h=14 w=14 f=32 k=3 padding=1 dtype=int8", "int8"),
    ("depthwise_conv2d_nchw n=8 c=32 h=14 w=14 k=3 padding=1 dtype=float16", "in other ways|no rows"),
])  # fmt: skip
def test_what_is_no_product_for_them_is_told(words, why):
    found = plans(words)
    assert "gpu.tensor" not in recipes(found)
    reasons = {f"{r.required} {r.limit}" for r in found.rejections if r.rule == "tensor cores"}
    assert any(re.search(why, reason) for reason in reasons), reasons


@pytest.mark.parametrize(("sizes", "vectors"), [
    ((256, 256, 256), (16, 16)), ((250, 256, 256), (4, 16)), ((256, 250, 256), (16, 4)), ((250, 250, 256), (4, 4)),
    ((256, 256, 240), (4, 4)), ((256, 256, 252), (4, 4)), ((256, 256, 250), (2, 2)),
])  # fmt: skip
def test_bytes_over_an_edge_are_filled_a_register_at_a_time(sizes, vectors):
    """Rows of A, of B, or terms of the sum of which blocks are no divisor; rows of 250 B begin at even ones."""
    words = "matmul m={} n={} k={} dtype=int32 layout=NT".format(*sizes)
    product = parse_operator(words.split())
    product = replace(product, inputs=tuple(replace(t, dtype="int8") for t in product.inputs))
    a100 = load_device("a100")
    found = construct(product, a100, 200, Features.of_tensor_ir(a100)).plans
    programs = [r.plan.programs[0] for r in found if r.plan.programs[0].recipe == "gpu.tensor"]
    told = {tuple(p.choices_of("vector").values()) for p in programs
            if p.choice("block_k") == 64 and not (64 % p.choice("block_m") or 64 % p.choice("block_n"))}  # fmt: skip
    assert told == {vectors}


def test_fewer_buffers_rather_than_no_tile():
    spec = load_device("a100")
    small = replace(spec, limits=replace(spec.limits, shared_per_block_optin_bytes=40 * 1024,
                                         shared_per_block_bytes=40 * 1024))  # fmt: skip
    made = Features.of_tensor_ir(small)
    found = construct(parse_operator(LARGE.split()), small, 40, made).plans
    assert found and all(r.estimate.programs[0].shared_bytes <= 40 * 1024 for r in found)
    wide = {(r.plan.programs[0].choice("block_m"), r.plan.programs[0].choice("block_n")) for r in found}
    assert any(m * n >= 64 * 128 for m, n in wide)
    roomy = construct(parse_operator(LARGE.split()), spec, 40, made).plans
    stages = {r.plan.programs[0].choice("stages") for r in roomy}
    assert max(stages) >= max(r.plan.programs[0].choice("stages") for r in found)


def test_all_of_the_shared_memory_is_used():
    """A plan that needs what there is to the byte is kept; with one byte less it is not."""
    spec, expression = load_device("a100"), parse_operator(LARGE.split())

    def kept(limit):
        limits = replace(spec.limits, shared_per_block_optin_bytes=limit, shared_per_block_bytes=min(limit, 48 * 1024))
        made = replace(spec, limits=limits)
        found = construct(expression, made, 40, Features.of_tensor_ir(made)).plans
        return {(r.estimate.programs[0].shared_bytes, str(r.plan.programs[0])) for r in found}

    most = max(kept(96 * 1024))
    assert most in kept(most[0]) and most not in kept(most[0] - 1)


def test_opt_in_shared_memory_is_used_and_only_with_the_feature():
    with_it = plans(LARGE, top=40).plans
    static = load_device("a100").limits.shared_per_block_bytes
    assert max(r.estimate.programs[0].shared_bytes for r in with_it) > static
    without = plans(LARGE, features=Features(tensor_cores=True, async_copy=True), top=40).plans
    assert all(r.estimate.programs[0].shared_bytes <= static for r in without)


def test_buffers_hide_latency():
    """Without copies that run ahead one buffer is what there is, and the estimate is worse."""
    ahead = plans("matmul m=512 n=512 k=4096 dtype=float16").best
    alone = plans("matmul m=512 n=512 k=4096 dtype=float16", features=Features(tensor_cores=True)).best
    assert ahead.plan.programs[0].choice("stages") > 1 == max(1, alone.plan.programs[0].choice("stages", 1))
    assert ahead.seconds < alone.seconds


def test_blocks_walk_in_bands_where_a_wave_reads_too_much():
    banded = {r.plan.programs[0].choice("raster") for r in plans("matmul m=8192 n=8192 k=8192 dtype=float16").plans}
    assert max(banded) > 1
    small = {r.plan.programs[0].choice("raster") for r in plans("matmul m=512 n=512 k=512 dtype=float16").plans}
    assert small == {1}


def test_a_plan_goes_through_json():
    plan = plans(LARGE, top=1).best.plan
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


def test_roles_of_convolutions():
    nhwc = parse_operator(["conv2d_nhwc", "n=2", "c=8", "h=14", "w=14", "f=16", "k=3", "dtype=float16"]).anchor
    roles = matrix_roles(nhwc)
    assert [nhwc.axes[i].name for i in roles.m] == ["n", "oh", "ow"]
    assert [nhwc.axes[i].name for i in roles.n] == ["f"]
    assert (roles.left_turned, roles.right_turned) == (False, True)
    nchw = parse_operator(["conv2d_nchw", "n=2", "c=8", "h=14", "w=14", "f=16", "k=3", "dtype=float16"]).anchor
    roles = matrix_roles(nchw)
    assert (roles.left_turned, roles.right_turned) == (True, False)


def test_rows_are_padded_to_start_in_other_banks():
    from roller_tvm.micro_perf.geometry import Geometry

    expression = parse_operator(LARGE.split())
    made = product_of(Geometry.of(expression, expression.anchor_name))
    shape = TensorShapes.of((128, 128, 32), (64, 64), 3, (8, 8))
    for matrix in made.matrices:
        _, row = matrix.padded_row(shape.block)
        starts = {int(row[0]) * matrix.element_bytes * n % 128 for n in range(8)}
        assert len(starts) == 8, "two rows that ldmatrix reads together start in one bank"
    assert shared_bytes(made.matrices, shape) == 3 * sum(m.tile_bytes(shape.block) for m in made.matrices)


@pytest.mark.parametrize(("row", "vector", "copies"), [(1024, 8, True), (1026, 2, True), (1025, 1, False)])
def test_copies_start_at_multiples_of_themselves_in_rows_longer_than_the_matrix(row, vector, copies):
    """Part of a wider matrix: its rows start where those of the whole do."""
    m, n, k = (Axis(name, 1024) for name in "mnk")
    left, right = (Access(t, (Index.axis(a), Index.axis(b))) for t, a, b in (("x", "m", "k"), ("w", "k", "n")))
    stage = Stage("y", (m, n, replace(k, kind="reduce")), (left, right), "float16", (("fma", 1),), "sum")
    tensors = Tensor("x", (1024, row), "float16"), Tensor("w", (1024, 1024), "float16")
    spec = load_device("h200")
    found = construct(TensorExpression("part", tensors, (stage,), "y"), spec, 10, Features.of_tensor_ir(spec))
    for ranked in found.plans:
        for program in ranked.plan.programs:
            if program.recipe == "gpu.tensor":
                assert program.choice("vector:x", 1) <= vector and program.choice("vector:w", 1) <= 8
    best = found.best.plan.programs[0]
    assert best.recipe == "gpu.tensor" and bool(best.choice("async")) == copies


@pytest.mark.parametrize("rows", [5120, 9728, 24576])
def test_bands_of_the_raster_divide_the_rows_of_blocks(rows):
    found = plans(f"matmul m={rows} n=16384 k=8192 dtype=float16", top=40).plans
    programs = [p for ranked in found for p in ranked.plan.programs if p.recipe == "gpu.tensor"]
    assert max(program.choice("raster") for program in programs) > 1
    for program in programs:
        assert -(-rows // program.tiles[0]["m"]) % program.choice("raster") == 0


@pytest.mark.parametrize("words, recipe", [("matmul m={} n=256 k=1024 dtype=float16", "gpu.tensor"),
                                           ("matmul m={} n=256 k=1024", "gpu.tiled")])  # fmt: skip
def test_tensors_of_two_gib_are_not_copied_asynchronously(words, recipe):
    """TVM's copies count bytes in an int32: an H200 read elsewhere."""
    rows = 2**31 // (1024 * (2 if recipe == "gpu.tensor" else 4))
    for m, ahead in ((rows - 128, True), (rows, False)):
        programs = [p for r in plans(words.format(m), "h200").plans for p in r.plan.programs]
        assert {p.recipe for p in programs} == {recipe}
        assert any(p.choice("stages", 1) > 1 for p in programs) == ahead
