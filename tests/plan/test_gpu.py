"""Choices of staged GPU plans: vectors only where both memories are aligned, rows in different banks, whole steps."""

from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roller_tvm.ir import Access, Axis, Index, Stage, Tensor, TensorExpression
from roller_tvm.ir.operators import operator
from roller_tvm.micro_perf.geometry import Geometry
from roller_tvm.micro_perf.gpu_nest import GpuNest, columns
from roller_tvm.micro_perf.gpu_tiles import Tiled
from roller_tvm.micro_perf.storage import alignments, storage_elements
from roller_tvm.planner import construct
from roller_tvm.planner.construct import BLOCKS_PER_UNIT, _part_splits
from roller_tvm.recipes.fetching import fetch_vectors
from roller_tvm.recipes.gpu_reduce import spans
from roller_tvm.recipes.gpu_tile_candidates import near_divisor
from roller_tvm.recipes.gpu_transpose import turn_cycles, turned
from roller_tvm.roller.features import Features
from roller_tvm.roller.partition import partition

from ..sampling import examples
from .devices import device


def geometry_of(name, **params):
    expression = operator(name, **params)
    nest = partition(expression)[-1]
    return Geometry.of(expression, nest.anchor, nest.inlined, nest.output)


def addresses(operand, extents, block, width):
    """First elements, in row-major memory, of every vector of every block's box along one operand."""
    strides = [1] * len(operand.shape)
    for d in range(len(strides) - 2, -1, -1):
        strides[d] = strides[d + 1] * operand.shape[d + 1]
    box = operand.box(block)
    starts = [0]
    for axis in sorted(operand.axes):
        step = operand.stride_of(axis) * block[axis]
        starts = [s + n * step for s in starts for n in range(min(3, -(-extents[axis] // block[axis])))]
    inside = [0]
    for extent, stride in zip(box, strides, strict=True):
        inside = [i + n * stride for i in inside for n in range(extent)]
    for start in starts:
        for at in range(0, len(inside) - width + 1, width):
            yield start, inside[at : at + width]


@settings(max_examples=examples(200), deadline=None)
@given(
    st.sampled_from(["NN", "NT", "TN"]), st.integers(1, 40), st.integers(1, 40), st.integers(1, 40),
    st.tuples(*(st.integers(1, 12) for _ in range(3))),
)
def test_vectors_of_products_are_contiguous_and_aligned(layout, m, n, k, block):
    geometry = geometry_of("matmul", m=m, n=n, k=k, layout=layout)
    block = tuple(min(b, e) for b, e in zip(block, geometry.extents, strict=True))
    check_vectors(geometry, block)


@settings(max_examples=examples(200), deadline=None)
@given(
    st.integers(1, 6), st.sampled_from([5, 6, 7, 8, 12, 14]), st.integers(1, 6), st.sampled_from([1, 3]),
    st.integers(1, 2),
    st.tuples(*(st.integers(1, 8) for _ in range(5))),
)  # fmt: skip
def test_vectors_of_convolutions_are_contiguous_and_aligned(c, h, f, k, stride, tile):
    geometry = geometry_of("conv2d_nchw", n=1, c=c, h=h, w=h, f=f, kh=k, kw=k, stride=stride, padding=0)
    block = tuple(min(b, e) for b, e in zip((1, *tile, k), geometry.extents, strict=True))
    check_vectors(geometry, block)


def check_vectors(geometry, block):
    nest, table = GpuNest.of(geometry), columns([block], len(block))
    padding = columns([(0,) * len(geometry.operands)], len(geometry.operands))
    widths = fetch_vectors(nest, nest.boxes(table), table, device("a100"), padding)[:, 0].tolist()
    for operand, width in zip(geometry.operands, widths, strict=True):
        if width == 1:
            continue
        assert prod(operand.box(block)) % width == 0
        for start, vector in addresses(operand, geometry.extents, block, width):
            assert (start + vector[0]) % width == 0, "a vector that is not aligned"
            assert vector == list(range(vector[0], vector[0] + width)), "a vector over a gap"


@settings(max_examples=examples(100), deadline=None)
@given(st.integers(1, 64), st.integers(1, 64), st.integers(1, 32), st.sampled_from([(4, 4), (4, 1), (1, 1)]),
       st.tuples(st.integers(0, 33), st.integers(0, 33)))
def test_buffers_before_vectors_are_whole_vectors(m, n, k, vectors, padding):
    geometry = geometry_of("matmul", m=64, n=64, k=32)
    made = Tiled.of(geometry, (m, n, k), (1, 1, 1), (1, 1, 1), (1, 1, 1), vectors, padding)
    least = 4 * (m * (k + padding[0]) + k * (n + padding[1]) - padding[0] - padding[1])
    total = made.kernels.shared_bytes[0]
    assert total >= least
    quantum = 4 if max(vectors) > 1 else 1
    boxes = [op.box((m, n, k)) for op in geometry.operands]
    aligned = [alignments(box, p, quantum) for box, p in zip(boxes, padding, strict=True)]
    assert total == sum(4 * storage_elements(b, a) for b, a in zip(boxes, aligned, strict=True)), "as TVM allocates"
    assert max(vectors) == 1 or total % 16 == 0


def test_rows_walked_by_neighbours_start_in_different_banks():
    best = construct(operator("matmul", m=1024, n=1024, k=1024, layout="NT"), device("h200"), top=1).best
    tile = best.plan.programs[0].tile("shared")
    row = tile["k"] + dict(tile.padding)["B"]
    fetched = best.plan.programs[0].choices_of("vector")["B"]
    banks = {(lane * row + word) % 32 // fetched for lane in range(32 // fetched) for word in range(fetched)}
    assert len(banks) == 32 // fetched


@given(st.integers(1, 100_000), st.integers(1, 64))
def test_steps_divide_where_a_divisor_is_near(extent, length):
    step = near_divisor(extent, length)
    assert 1 <= step <= extent
    near = [d for d in range(-(-length // 2), 3 * length // 2 + 1) if extent % d == 0]
    assert step in (near or [length]) if length < extent else step == extent


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("matmul", dict(m=1024, n=1024, k=1024)),
        ("conv2d_nchw", dict(n=1, c=64, h=56, w=56, f=64, kh=3, kw=3, stride=1, padding=1)),
        ("relu", dict(shape=(1, 64, 56, 56))),
    ],
)
def test_a_device_without_warps_or_dram_is_planned(name, params):
    spec = device("ipu_mk1")
    found = construct(operator(name, **params), spec, top=5)
    assert len(found.plans) == 5
    for ranked in found.plans:
        for estimate in ranked.estimate.programs:
            assert 1 <= estimate.threads <= spec.limits.max_threads_per_block
            assert estimate.shared_bytes <= spec.level("shared").capacity_bytes
            assert estimate.registers <= spec.limits.max_registers_per_thread
            assert estimate.levels[0].level == "exchange"


@pytest.mark.parametrize(
    ("shape", "axis"), [((1 << 24,), (0,)), ((4, 1_000_000), (1,)), ((1_000_000, 64), (0,))], ids=str
)
def test_a_long_reduction_of_few_outputs_keeps_every_unit_busy(shape, axis):
    """Two stages: parts for every unit, then their sum; one stage would leave all but a few units idle."""
    spec = device("h200")
    best = construct(operator("reduce_sum", shape=shape, axis=axis), spec, top=1).best
    (split,) = best.plan.split_reductions
    assert best.estimate.programs[0].blocks >= 0.9 * spec.units and split.parts > 1
    assert best.seconds < 3 * best.plan.expression.io_bytes / (spec.far.bandwidth_gbps * 1e9)


def test_a_reduction_of_terms_that_lie_apart_has_parts_for_threads_not_for_units():
    """Terms two elements apart: a thread computes an output, so parts fill threads; side by side a block does."""
    spec = device("v100")

    def parts(outputs, first):
        shape = (1 << 20, outputs) if first else (outputs, 1 << 20)
        found = _part_splits(operator("reduce_sum", shape=shape, axis=(1 - first,)), spec)
        return max(split.parts for split in found) * outputs

    assert spec.units <= parts(2, False) <= 2 * BLOCKS_PER_UNIT * spec.units
    lanes = spec.units * spec.vector_width
    assert parts(2, True) >= lanes and parts(64, True) >= lanes


def test_a_step_along_a_window_divides_it():
    """Of the last rows of a 7x7 window, staged 4 at a time, TVM would keep what no thread reads."""
    expression = operator("conv2d_nchw", n=1, c=3, h=224, w=224, f=64, kh=7, kw=7, stride=2, padding=3)
    for name in ("h100", "v100"):
        programs = [p.plan.programs[0] for p in construct(expression, device(name), 10).plans]
        steps = [p.tiles[0] for p in programs if p.recipe == "gpu.tiled"]
        assert steps and all(7 % step[axis] == 0 for step in steps for axis in ("kh", "kw"))


def elementwise(name, read, given, made, shape=(1024, 4096), source=(1024, 4096)):
    stage = Stage("y", tuple(Axis(a, e) for a, e in zip("ij", shape, strict=True)), (read,), made, ops=((name, 1),))
    return TensorExpression(name, (Tensor("x", source, given),), (stage,), "y")


@pytest.mark.parametrize(("given", "made", "most"), [
    ("int64", "int8", 2), ("float64", "float16", 2), ("float32", "int8", 4), ("float16", "bool", 4),
    ("float16", "float16", 8),
])  # fmt: skip
def test_vectors_are_those_that_cuda_has(given, made, most):
    expression = elementwise("cast", Access("x", (Index.axis("i"), Index.axis("j"))), given, made)
    widths = {r.plan.programs[0].choice("vector", 1) for r in construct(expression, device("h200")).plans}
    assert max(widths) == most


@pytest.mark.parametrize(("row", "offset", "most"), [(4096, 0, 4), (4100, 4, 4), (4098, 2, 2), (4097, 1, 1)])
def test_vectors_start_at_multiples_of_themselves(row, offset, most):
    read = Access("x", (Index.axis("i"), Index.of({"j": 1}, offset)))
    expression = elementwise("add", read, "float32", "float32", source=(1024, row))
    widths = {r.plan.programs[0].choice("vector", 1) for r in construct(expression, device("h200")).plans}
    assert max(widths) == most


@pytest.mark.parametrize(("shape", "tile", "padding", "cycles"), [
    ("4096,16,8", (8, 16, 16), 1, 8),  # 16 rows of 8 + 1 lie between neighbours: 144 words, 16 banks on
    ("4096,16,8", (8, 2, 128), 1, 2), ("64,1,64", (32, 1, 32), 1, 1), ("64,1,64", (32, 1, 32), 0, 32),
    ("64,1,64", (24, 1, 32), 8, 32), ("64,1,64", (24, 1, 32), 9, 1),
])  # fmt: skip
def test_lanes_that_meet_in_a_bank_wait(shape, tile, padding, cycles):
    """Where whole rows lie between those that neighbouring lanes read, padding the last one parts only some."""
    g = geometry_of("transpose", shape=shape, perm="2,1,0")
    (operand,) = g.operands
    assert turn_cycles(g, device("h200"), operand, tile, padding, 256) == cycles


@pytest.mark.parametrize(("shape", "perm", "along"), [
    ("5,7", "1,0", 1), ("2,2", "1,0", 1), ("5,1", "1,0", None), ("3,5,7", "1,0,2", None), ("3,5,2", "2,0,1", 2),
    ("3,1,2,5", "0,3,2,1", 3),
])  # fmt: skip
def test_an_input_is_turned_if_it_runs_along_another_axis_than_the_output(shape, perm, along):
    """Rows of two elements are rows; the last dimension of the input is the axis meant, one element is none."""
    g = geometry_of("transpose", shape=shape, perm=perm)
    found = turned(g, g.operands[0])
    assert (None if found is None else int(perm.split(",")[found])) == along


@pytest.mark.parametrize(("terms", "const", "divisor", "reach"), [
    ({"i": 1}, 0, 1, 8), ({"i": -1}, 7, 1, 8), ({"i": 2}, 0, 1, 15), ({"i": 1, "k": 3}, 0, 1, 14),
    ({"i": 1, "k": -1}, 2, 1, 10), ({"i": 1}, 0, 2, 4), ({"i": 1}, -1, 1, 7), ({"i": 3, "k": -2}, 4, 3, 9),
])  # fmt: skip
def test_an_index_spans_a_dimension_from_its_first_element_to_its_last(terms, const, divisor, reach):
    """i from 0 to 7, k from 0 to 2: `reach` is the largest value and one; of one more element the last is not read."""
    index, extents = Index.of(terms, const, divisor=divisor), {"i": 8, "k": 3}
    assert spans(index, extents, reach) and not spans(index, extents, reach + 1)
    low = -((const + sum(min(0, c * (extents[a] - 1)) for a, c in terms.items())) // divisor)
    assert not spans(Index.of(terms, const + divisor * (low + 1), divisor=divisor), extents, 1)  # from the second on
    assert spans(Index.whole(), extents, 100)


@pytest.mark.parametrize("dynamic", [False, True])
def test_copies_that_run_ahead_take_no_more_than_the_kernels_limit_of_shared_memory(dynamic):
    """An H100 has 48 KiB for a block by default, and 227 KiB for one that asks for them."""
    features = Features(async_copy=True, dynamic_shared=dynamic)
    found = construct(operator("matmul", m=4096, n=4096, k=4096), device("h100"), 40, features).plans
    ahead = [(program.choice("stages", 1), estimate.shared_bytes) for ranked in found
             for program, estimate in zip(ranked.plan.programs, ranked.estimate.programs, strict=True)]  # fmt: skip
    assert any(stages > 1 for stages, _ in ahead)
    assert all(shared <= (227 if dynamic else 48) * 1024 for _, shared in ahead)
    assert any(shared > 48 * 1024 for _, shared in ahead) == dynamic
