"""Whatever is constructed is legal, ordered, stored and read back; what is not says why."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from math import ceil, prod

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from roller_tvm.device import known_devices, load_device
from roller_tvm.errors import UnsupportedOperator
from roller_tvm.ir import Access, Axis, Index, Stage, Tensor, TensorExpression
from roller_tvm.ir.operators import operator, parse_operator
from roller_tvm.ir.split import partial_name
from roller_tvm.micro_perf.geometry import Geometry
from roller_tvm.micro_perf.storage import storage_elements
from roller_tvm.planner import Plan, RankedPlan, construct
from roller_tvm.recipes.gpu_tile_candidates import IDLE_LANES, awkward
from roller_tvm.recipes.gpu_transpose import STANDS_OVER
from roller_tvm.recipes.lane_nests import LaneNest, lane_nests
from roller_tvm.recipes.row_nests import row_nest
from roller_tvm.roller.partition import partition, store_guarded, store_rearranged

from ..expr.strategies import operators
from ..sampling import examples, sampled
from .devices import CPUS, GPUS, device
from .examples import over_edges

names = st.sampled_from([*GPUS, *CPUS])
planned_for = st.sampled_from([*GPUS, *CPUS, "ipu_mk1"])
extents = st.sampled_from([1, 2, 3, 7, 8, 16, 31, 48, 64])
thorough = settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])


def planned(data, on=planned_for):
    spec, expression = device(data.draw(on)), data.draw(operators(extents))
    return construct(expression, spec, top=6), spec, expression


# -- what every plan has to keep -----------------------------------------------------------------


def check_tiles(program, stage):
    for axis in stage.axes:
        # A tile that is only moved may stand over the edge: its guard costs a comparison.
        over = STANDS_OVER if program.recipe == "gpu.transpose" else 0
        whole = int(axis.extent * (1 + over))
        if program.recipe in ("cpu.tiled", "cpu.window"):  # whole register tiles may, too
            least = program.tile("register")[axis.name]
            whole = ceil(axis.extent / least) * least
        sizes = [whole, *(t[axis.name] for t in program.tiles)]
        assert sizes == sorted(sizes, reverse=True), f"{axis}: {sizes} along {program}"


def check_tiled_gpu(program, estimate, plan, spec, eps):
    stage, geometry = plan.expression.stage(program.anchor), geometry_of(plan, program)
    block, thread = program.tile("shared"), program.tile("register")
    threads = prod(block[a.name] // thread[a.name] for a in stage.spatial)
    assert threads == program.choice("threads") == estimate.threads <= spec.limits.max_threads_per_block
    # Rule 1 as claimed; rule 4 exactly, but for one axis that no tile divides: what TVM would pad, it guards.
    assert ceil(threads / spec.vector_width) * spec.vector_width <= threads * (1 + max(eps, IDLE_LANES))
    for axis in stage.axes:
        assert block[axis.name] % thread[axis.name] == 0
    over = [a for a in stage.spatial if a.extent % block[a.name]]
    assert len(over) < 2 and all(awkward(a.extent) for a in over)
    for axis in over:
        assert ceil(axis.extent / block[axis.name]) * block[axis.name] <= axis.extent * (1 + eps)
        assert axis.extent % thread[axis.name] == 0 or thread[axis.name] == block[axis.name]
    assert set(program.staged) == {a.tensor for a in stage.reads}
    # Shared memory: rows padded as the plan says, to whole vectors.
    tile = tuple(block[a] for a in geometry.axes)
    least = sum(
        storage_elements(op.box(tile), [(len(op.shape) - 2, op.box(tile)[-1] + dict(block.padding).get(op.name, 0))]
                         if len(op.shape) > 1 else []) * op.element_bytes
        for op in geometry.operands
    )  # fmt: skip
    assert least <= estimate.shared_bytes <= (spec.limits.shared_per_block_bytes or least)
    for axis, count in program.choices_of("vthread").items():
        assert thread[axis] % count == 0
    for axis, count in program.choices_of("unroll").items():
        assert block[axis] % count == 0
    for name, width in program.choices_of("vector").items():
        row = program.tile("shared").storage(name, stage, plan.expression)
        assert prod(row) % width == 0 or row[-1] % width == 0
    last = stage.spatial[-1].name
    assert thread[last] // dict(program.choices_of("vthread")).get(last, 1) % program.choice("store", 1) == 0


def check_gpu(program, estimate, plan, spec, eps):
    assert estimate.occupancy >= 1 and estimate.blocks >= 1
    assert estimate.threads == program.choice("threads") <= spec.limits.max_threads_per_block
    assert estimate.registers <= (spec.limits.max_registers_per_thread or 255)
    if spec.limits.registers_per_unit:
        resident = estimate.registers * estimate.threads * estimate.occupancy
        assert resident <= spec.limits.registers_per_unit
    assert estimate.shared_bytes * estimate.occupancy <= spec.level("shared").capacity_bytes
    assert estimate.occupancy * estimate.threads <= spec.limits.max_threads_per_unit
    if program.recipe == "gpu.tiled":
        check_tiled_gpu(program, estimate, plan, spec, eps)
    else:
        assert program.choice("threads") % spec.vector_width == 0
    if program.recipe == "gpu.direct":
        outputs = plan.expression.stage(program.anchor).output_elements
        per_block = program.choice("threads") * program.choice("items", 1) * program.choice("vector", 1)
        assert estimate.blocks == ceil(outputs / per_block)
        # A vector never runs over the end of the output.
        assert outputs % program.choice("vector", 1) == 0


def check_cpu(program, estimate, plan, spec):
    stage = plan.expression.stage(program.anchor)
    chunk, tile = program.tile("l2"), program.tile("register")
    # Rule 4 but for rows and columns in whole tiles over their edge, of no packed constant; columns in whole vectors.
    over = over_edges(plan, program) if program.recipe in ("cpu.tiled", "cpu.window") else []
    vectors = next((a.name for a in reversed(stage.spatial) if a.extent > 1), "")
    assert len({*over} - {vectors}) < 2

    def row_over_edge(axis):
        # A row in vectors of all lanes, the last over its edge: it fills one at least, and nothing else is cut.
        lanes = spec.vector_width if program.recipe == "cpu.rows" else 0
        return axis == vectors and lanes == tile[axis] == program.choice(f"vector:{stage.name}") <= chunk[axis]

    packed = {a for read in stage.reads if plan.expression.tensors[read.tensor].constant for a in read.axes}
    assert not packed & set(over)
    assert vectors not in over or tile[vectors] % program.choice("vector", tile[vectors]) == 0
    for axis in stage.spatial:
        covered = ceil(axis.extent / tile[axis.name]) * tile[axis.name] if axis.name in over else axis.extent
        assert covered % chunk[axis.name] == 0 or program.recipe in ("cpu.direct", "cpu.axpy")
        assert chunk[axis.name] % tile[axis.name] == 0 or program.recipe == "cpu.direct" or row_over_edge(axis.name)
    assert estimate.threads == 1 and estimate.blocks >= 1
    if program.recipe in ("cpu.tiled", "cpu.window"):
        assert estimate.registers <= spec.limits.vector_registers
        # Regions that TVM infers exactly.
        assert all(a.is_box(tile[a.name]) for a in stage.spatial)
        assert all(a.is_box(chunk[a.name]) for a in stage.spatial) or not program.staged
        loops = [a for a in stage.spatial if chunk[a.name] > tile[a.name]]
        assert set(program.choices_of("order")) == {a.name for a in loops}
        assert sorted(program.choices_of("order").values()) == list(range(len(loops)))
        lengths = program.choices_of("unroll")
        assert all(stage.extents[axis] == length for axis, length in lengths.items())
    else:
        vector = program.choice("vector")
        last = next((a for a in reversed(stage.spatial) if a.extent > 1), None)
        assert vector <= 1 or (last is not None and last.extent % vector == 0)
        if vector > 1 and program.output != program.anchor:
            assert last.is_box(vector)
        assert 0 <= program.choice("parallel") <= len(stage.spatial)


def geometry_of(plan, program):
    return Geometry.of(plan.expression, program.anchor, program.inlined, program.output)


@thorough
@given(st.data())
def test_every_plan_is_legal(data):
    construction, spec, _ = planned(data, names)
    check_legal(construction, spec)


def check_legal(construction, spec):
    for ranked in construction.plans:
        plan = ranked.plan
        assert len(plan.programs) == len(ranked.estimate.programs)
        for program, estimate in zip(plan.programs, ranked.estimate.programs, strict=True):
            check_tiles(program, plan.expression.stage(program.anchor))
            if spec.kind == "cpu":
                check_cpu(program, estimate, plan, spec)
            else:
                check_gpu(program, estimate, plan, spec, construction.eps)


def test_a_layout_change_may_stand_over_the_edge():
    construction = construct(operator("transpose", shape=(7, 7), perm=(1, 0)), device("a100"), top=6)
    check_legal(construction, device("a100"))
    assert any(max(p.tiles[0].shape.values()) == 8 for r in construction.plans for p in r.plan.programs)


@thorough
@given(st.data())
def test_the_programs_compute_every_stage_once(data):
    construction, _, expression = planned(data)
    for ranked in construction.plans:
        check_stages(ranked.plan, expression)


@pytest.mark.parametrize("height", [2, 4])  # lanes merged in one step, in two
def test_reductions_merged_where_they_are_made_compute_every_stage_once(height):
    expression = operator("global_avg_pool2d_nchw", n=1, c=1, h=height, w=4)
    plans = [r.plan for r in construct(expression, device("avx2"), top=6).plans]
    assert any(p.programs[0].recipe == "cpu.lanes" for p in plans)
    for plan in plans:
        check_stages(plan, expression)


def check_stages(plan, expression):
    stages = plan.expression.stages
    # The stages that were asked for, and a partial one for each split reduction.
    splits = [s.stage for s in plan.split_reductions]
    partial = {partial_name(stage, splits[:n].count(stage)) for n, stage in enumerate(splits)}
    asked = {s.name for s in expression.stages} | partial
    assert {s.name for s in stages} == asked
    stores = (store_rearranged, store_guarded, None)
    nests = [(p.anchor, p.output, p.inlined) for p in plan.programs]
    shapes = [partition(plan.expression, s) for s in stores]
    if any(p.recipe == "cpu.lanes" for p in plan.programs):  # what merges lanes is in the nest that fills them
        shapes = [lane_nests(plan.expression, s) for s in shapes]
        merged = {n.anchor: n.merges for s in shapes for n in s if isinstance(n, LaneNest)}
        assert all(merged[p.anchor] == p.staged for p in plan.programs if p.recipe == "cpu.lanes")
    known = [[(n.anchor, n.output, n.inlined) for n in s] for s in shapes]
    if plan.programs[0].recipe.endswith(".rows"):  # all of them in one nest
        n, (p,) = row_nest(plan.expression), plan.programs
        known = [[(n.anchor, n.output, p.inlined)]]  # what is kept on a CPU is computed again on a GPU
        assert {*p.staged, p.output, *p.inlined} == asked and set(p.staged) <= set(n.kept)
    assert nests in known
    assert plan.expression.outputs[-1].output_elements == expression.outputs[-1].output_elements
    assert plan.expression.io_bytes == expression.io_bytes


@thorough
@given(st.data())
def test_best_first_and_estimates_make_sense(data):
    construction, spec, expression = planned(data)
    times = [p.seconds for p in construction.plans]
    assert times == sorted(times) and times[0] == construction.best.seconds > 0
    assert len(construction.plans) <= 6 and construction.considered >= len(construction.plans)
    for ranked in construction.plans:
        estimate = ranked.estimate
        # What is computed in place before an anchor is not counted.
        assert estimate.flops >= sum(s.flops for s in expression.reductions)
        assert 0 < estimate.gflops <= spec.peak("float32") * 1.0001 or not expression.flops
        others = {"compute", "blocks", "issue", "latency", "load", "call"}
        assert estimate.bound in {lv.name for lv in spec.levels} | others
        for p in estimate.programs:
            assert 0 < p.utilisation <= 1.0001
            assert p.seconds >= 0.999 * max([p.compute_seconds, *(lv.seconds for lv in p.levels[:1])])
            assert all(lv.bytes >= 0 and lv.seconds >= 0 for lv in p.levels)


@thorough
@given(st.data())
def test_json_keeps_plans_and_estimates(data):
    construction, _, _ = planned(data)
    for ranked in construction.plans:
        again = RankedPlan.from_json(json.loads(json.dumps(ranked.to_json())))
        assert again == ranked and str(again) == str(ranked)
        assert again.plan.digest() == ranked.plan.digest()
    digests = {p.plan.digest() for p in construction.plans}
    assert len(digests) == len({str(p.plan) for p in construction.plans}) == len(construction.plans)


@thorough
@given(st.data())
def test_the_same_question_has_the_same_answer(data):
    construction, spec, expression = planned(data)
    assert construct(expression, spec, top=6) == construction


@thorough
@given(st.data())
def test_rejections_say_rule_required_limit_and_remedy(data):
    construction, _, _ = planned(data)
    for rejection in construction.rejections:
        assert rejection.rule and rejection.required and rejection.limit and rejection.remedy
        assert rejection.rule in str(rejection) and rejection.remedy in str(rejection)
        assert set(rejection.to_json()) == {"rule", "required", "limit", "remedy", "candidate"}


def test_a_digest_is_the_same_in_every_process():
    script = (
        "from roller_tvm.device import load_device\nfrom roller_tvm.planner import construct\n"
        "from roller_tvm.ir.operators import operator\n"
        "e = operator('conv2d_nchw', n=1, c=32, h=14, w=14, f=32, k=3, padding=1)\n"
        "print(construct(e, load_device('v100'), top=1).best.plan.digest())"
    )
    runs = [
        subprocess.run([sys.executable, "-c", script], env={**os.environ, "PYTHONHASHSEED": seed}, check=True,
                       capture_output=True, text=True).stdout
        for seed in ("0", "1234")
    ]  # fmt: skip
    assert runs[0] == runs[1] and len(runs[0].strip()) == 16


def test_the_digest_is_of_the_plan_and_not_of_the_name():
    plan = construct(operator("relu", shape=(64, 64)), device("v100"), top=1).best.plan
    data = plan.to_json()
    data["expression"]["name"] = "other"
    assert Plan.from_json(data).digest() == plan.digest()
    data["programs"][0]["choices"][0][1] += 1
    assert Plan.from_json(data).digest() != plan.digest()


# -- what is expected of known operators -----------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "name", "recipes"),
    [
        ("matmul m=512 n=512 k=512", "v100", ["gpu.tiled"]),
        ("conv2d_nchw n=128 c=64 h=28 w=28 f=64 k=3 padding=1 bias=1 relu=1", "h200", ["gpu.tiled"]),
        ("relu shape=64x256", "a100", ["gpu.direct"]),
        ("max_pool2d n=4 c=64 h=56 w=56 k=3 stride=2 padding=1", "k80", ["gpu.direct"]),
        ("reduce_sum shape=512x4096", "h200", ["gpu.reduce"]),
        ("softmax shape=512x4096", "h200", ["gpu.rows"]),
        ("matmul m=512 n=512 k=512", "avx512", ["cpu.tiled"]),
        ("relu shape=64x256", "avx2", ["cpu.direct"]),
    ],
)
def test_recipes_of_known_operators(words, name, recipes):
    best = construct(parse_operator(words.split()), device(name)).best.plan
    assert [p.recipe for p in best.programs] == recipes


@pytest.mark.parametrize("name", sampled(GPUS, 4))
def test_few_outputs_and_a_long_sum_are_split(name):
    best = construct(operator("matmul", m=16, n=16, k=32768), device(name)).best
    assert best.plan.split_reductions and not best.plan.split_reductions[0].lanes
    whole = [p for p in construct(operator("matmul", m=16, n=16, k=32768), device(name), top=999).plans
             if not p.plan.split_reductions]  # fmt: skip
    assert all(best.seconds < p.seconds for p in whole)


@pytest.mark.parametrize("name", GPUS)
def test_a_full_device_has_nothing_to_split(name):
    construction = construct(operator("matmul", m=4096, n=4096, k=1024), device(name), top=40)
    assert not any(p.plan.split_reductions for p in construction.plans)


def test_padding_is_only_allowed_where_there_are_too_few_plans():
    easy = construct(operator("matmul", m=1024, n=1024, k=1024), device("v100"))
    assert easy.eps == 0 and len(easy.plans) == 10
    # Blocks of 7 x 11 outputs can only leave lanes of a warp idle.
    hard = construct(operator("matmul", m=7, n=11, k=64), device("v100"))
    assert hard.eps > 0 and hard.plans


def test_more_plans_contain_the_better_ones():
    expression = operator("conv2d_nchw", n=1, c=64, h=28, w=28, f=64, k=3, padding=1)
    one, ten = (construct(expression, device("h200"), top=n) for n in (1, 10))
    assert ten.best.seconds <= one.best.seconds * 1.0001


def gather():
    where = Access("table", (Index.whole(), Index.axis("j")))
    stage = Stage("taken", (Axis("i", 64), Axis("j", 128)), (where,))
    return TensorExpression("take", (Tensor("table", (1000, 128)),), (stage,), "taken")


@pytest.mark.parametrize("name", ["h200", "avx2"])
def test_a_gather_is_planned_as_rows(name):
    best = construct(gather(), device(name)).best.plan
    assert [p.recipe for p in best.programs] in (["gpu.direct"], ["cpu.direct"])


def test_without_a_plan_the_rules_are_named():
    tiny = load_device("v100")
    tiny = replace(tiny, limits=replace(tiny.limits, max_registers_per_thread=1, registers_per_unit=32))
    with pytest.raises(UnsupportedOperator) as caught:
        construct(operator("matmul", m=512, n=512, k=512), tiny)
    assert "no legal plan" in str(caught.value) and "registers" in caught.value.remedy


def test_every_shipped_device_is_among_those_above():
    assert {*GPUS, "ipu_mk1", "cpu"} == {*known_devices(), "cpu"}
