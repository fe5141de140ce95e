"""Predictions hold to what is certain: no faster than the device, and more work never takes less time."""

from dataclasses import replace
from math import ceil, prod

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from roller_tvm.device.spec import FrozenMap
from roller_tvm.ir.operators import operator, parse_operator
from roller_tvm.micro_perf import cpu, cpu_caches, cpu_constants, gpu_nest
from roller_tvm.micro_perf.cpu_rates import CpuRates
from roller_tvm.micro_perf.estimate import LevelTime, ProgramEstimate
from roller_tvm.micro_perf.geometry import Geometry
from roller_tvm.micro_perf.gpu_tiles import quick_estimates
from roller_tvm.micro_perf.kernel import DirectKernel, ReduceKernel
from roller_tvm.micro_perf.neighbours import vector_slots
from roller_tvm.planner import construct
from roller_tvm.planner.predict import predict
from roller_tvm.recipes.cpu_direct import Cycles, stage_cycles
from roller_tvm.recipes.gpu_tile_candidates import looked_through
from roller_tvm.recipes.recipe import Context
from roller_tvm.roller.features import NO_FEATURES, Features
from roller_tvm.roller.partition import partition

from ..plan.devices import CPUS, GPUS, device
from ..sampling import examples

gpus, cpus = st.sampled_from(GPUS), st.sampled_from(CPUS)
counts = st.integers(1, 12)


def geometry_of(name, **params):
    expression = operator(name, **params)
    nest = partition(expression)[-1]
    return Geometry.of(expression, nest.anchor, nest.inlined, nest.output), nest


# -- one tile, more of them -------------------------------------------------------------------------


def tiled_seconds(name, m, n, k):
    """A matrix product in blocks of 64 x 64 x 16 and threads of 8 x 4."""
    found = quick_estimate(device(name), 64 * m, 64 * n, 16 * k, (8, 4, 1))
    assume(found is not None)
    return found.seconds


def quick_estimate(spec, m, n, k, thread):
    """The quick estimate of a product in blocks of 64 x 64 x 16; None if they are not legal."""
    geometry, nest = geometry_of("matmul", m=m, n=n, k=k)
    tiles = (64, 64, 16), thread
    found = looked_through(Context(geometry, spec, nest), *(gpu_nest.columns([t], 3) for t in tiles))
    return quick_estimates(found.table, spec).estimate(0) if len(found.rows) else None


@settings(max_examples=examples(100), deadline=None)
@given(gpus, counts, counts, counts)
def test_more_steps_take_no_less_time(name, m, n, k):
    assert tiled_seconds(name, m, n, k + 1) >= tiled_seconds(name, m, n, k) * 0.9999


@settings(max_examples=examples(100), deadline=None)
@given(gpus, st.integers(5, 40), st.integers(1, 40), st.sampled_from("mn"))
def test_more_blocks_on_a_full_device_take_no_less_time(name, waves, n, axis):
    m = ceil(device(name).units * waves / n)
    more = {"m": m, "n": n}
    more[axis] += 1
    assert tiled_seconds(name, **more, k=16) >= tiled_seconds(name, m, n, 16) * 0.9999


def rows_seconds(name, recipe, rows, length):
    geometry, _ = geometry_of("reduce_sum", shape=(rows, length)) if recipe == "reduce" else geometry_of(
        "relu", shape=(rows, length))  # fmt: skip
    if recipe == "reduce":
        return predict(ReduceKernel(geometry, 64, 4), device(name)).seconds
    return predict(DirectKernel(geometry, 256), device(name)).seconds


@settings(max_examples=examples(150), deadline=None)
@given(gpus, st.sampled_from(["reduce", "direct"]), counts, counts, st.booleans())
def test_more_rows_or_longer_rows_take_no_less_time(name, recipe, rows, length, longer):
    before = rows_seconds(name, recipe, 64 * rows, 256 * length)
    after = rows_seconds(name, recipe, 64 * (rows + (not longer)), 256 * (length + longer))
    assert after >= before * 0.9999


def cpu_seconds(name, m, n, k, order):
    geometry, _ = geometry_of("matmul", m=24 * m, n=64 * n, k=16 * k)
    chunk, tile = (24, geometry.extents[1], geometry.extents[2]), (6, 16, 1)
    return float(cpu.tiled_times(geometry, replace(device(name), units=1), chunk, tile, order).seconds[0])


@settings(max_examples=examples(150), deadline=None)
@given(cpus, counts, counts, counts, st.sampled_from("mnk"), st.permutations([0, 1]))
def test_more_of_a_product_takes_a_core_no_less_time(name, m, n, k, axis, order):
    """Fewer chunks than cores may take several longer: they wait for what the others have written."""
    more = {"m": m, "n": n, "k": k}
    more[axis] += 1
    assert cpu_seconds(name, **more, order=tuple(order)) >= cpu_seconds(name, m, n, k, tuple(order)) * 0.9999


@pytest.mark.parametrize("name", GPUS)
def test_one_block_more_than_a_full_wave_costs_another(name):
    spec = device(name)
    full = spec.units * quick_estimate(spec, 64 * 16 * spec.units, 64, 4096, (4, 4, 1)).occupancy

    def seconds(blocks):
        return quick_estimate(spec, 64 * blocks, 64, 4096, (4, 4, 1))

    wave, more, two = seconds(full), seconds(full + 1), seconds(2 * full)
    assert wave.waves == 1 and more.waves == two.waves == 2
    assert wave.utilisation == pytest.approx(1.0) and more.utilisation < 0.99
    assert wave.seconds < more.seconds <= two.seconds * 1.0001


# -- bounds of the device ---------------------------------------------------------------------------

CASES = [
    "matmul m=1024 n=1024 k=1024",
    "matmul m=1024 n=1000 k=512 layout=NT bias=1",
    "batch_matmul b=16 m=256 n=256 k=64",
    "conv2d_nchw n=16 c=64 h=56 w=56 f=64 k=3 padding=1 relu=1",
    "conv2d_nhwc n=16 c=64 h=28 w=28 f=128 k=1",
    "depthwise_conv2d_nchw n=16 c=128 h=28 w=28 k=3 padding=1",
    "max_pool2d n=16 c=64 h=56 w=56 k=2 stride=2",
    "reduce_sum shape=4096x4096",
    "softmax shape=4096x1024",
    "relu shape=4096x4096",
    "transpose shape=2048x4096",
]


@pytest.mark.parametrize("name", ["h200", "k80", "mi50", "avx512"])
@pytest.mark.parametrize("words", CASES)
def test_nothing_is_faster_than_the_device(words, name):
    spec, expression = device(name), parse_operator(words.split())
    caches = sum(level.capacity_bytes for level in spec.levels[1:] if level.scope == "device")
    for ranked in construct(expression, spec, top=5).plans:
        fma = ranked.plan.expression.anchor.ops_of("fma")
        if fma:
            assert ranked.seconds >= ranked.plan.expression.anchor.flops / (spec.peak() * 1e9)
        # What does not stay in a cache between two runs has to be moved.
        moved = max(0, expression.io_bytes - caches)
        assert ranked.seconds >= 0.999 * moved / (spec.far.bandwidth_gbps * 1e9)
        if spec.kind == "gpu":
            assert ranked.seconds >= spec.launch_overhead_us * 1e-6 * len(ranked.plan.programs)
        for estimate in ranked.estimate.programs:
            assert estimate.seconds >= 0.999 * estimate.compute_seconds


@pytest.mark.parametrize("words", CASES)
def test_traffic_is_at_least_what_is_read_and_written(words):
    expression = parse_operator(words.split())
    for ranked in construct(expression, device("v100"), top=3).plans:
        moved = sum(p.level("dram").bytes for p in ranked.estimate.programs)
        assert moved >= 0.999 * expression.io_bytes


@pytest.mark.parametrize("name", ["h200", "v100", "avx2"])
@pytest.mark.parametrize("words", [
    "matmul m={} n=256 k=256", "matmul m=256 n=256 k={}", "conv2d_nchw n={} c=64 h=14 w=14 f=64 k=3 padding=1",
    "relu shape={}x1024", "reduce_sum shape={}x1024", "softmax shape={}x256",
    "max_pool2d n={} c=64 h=28 w=28 k=2 stride=2",
])  # fmt: skip
def test_eight_times_the_work_is_never_planned_to_be_faster(words, name):
    times = [construct(parse_operator(words.format(x).split()), device(name)).best.seconds for x in (64, 512, 4096)]
    # Kernels that only launch and wait for memory differ by what their tiles happen to be.
    assert times[0] <= 1.02 * times[1] and times[1] <= times[2]
    assert times[2] > 1.01 * times[0]


# -- units --------------------------------------------------------------------------------------------

UNITS = [
    *CASES, "matmul m=1 n=4096 k=1024", "matmul m=197 n=768 k=768 bias=1", "matmul m=1021 n=127 k=509",
    "conv2d_nchw n=1 c=3 h=224 w=224 f=64 k=7 stride=2 padding=3", "depthwise_conv2d_nhwc n=1 c=240 h=28 w=28 k=5",
    "matmul m=256 n=256 k=256 dtype=float16", "layer_norm shape=128x768", "reduce_sum shape=4x1000x4096 axis=0,1",
    "add shape=8x512x28x28 other=512x1x1", "transpose shape=64x31x33 perm=2,0,1 dtype=float16",
]  # fmt: skip


def four_times_as_fast(spec):
    """The device of four times the rates and a quarter of all latencies: every number with a time in its unit."""
    levels = tuple(replace(lv, bandwidth_gbps=4 * lv.bandwidth_gbps, latency_ns=lv.latency_ns / 4)
                   for lv in spec.levels)  # fmt: skip
    between = spec.limits.block_interval_ns
    limits = replace(spec.limits, block_interval_ns=between and between / 4)
    peaks = {name: FrozenMap({dtype: 4 * rate for dtype, rate in getattr(spec, name).items()})
             for name in ("peak_gflops", "tensor_gflops")}  # fmt: skip
    return replace(spec, clock_ghz=4 * spec.clock_ghz, launch_overhead_us=spec.launch_overhead_us / 4, levels=levels,
                   limits=limits, **peaks)  # fmt: skip


@pytest.mark.parametrize("part", range(4))
def test_a_device_four_times_as_fast_takes_a_quarter_of_every_time(part, monkeypatch):
    """Times are sums of (work / rate) and of latencies: one that is not in seconds, or divides wrongly, shows here."""
    devices = ("avx512", "a100 tensorir", "mi50", "avx2", "v100", "h100 tensorir", "k80", "t4")
    serial, cases = cpu.SERIAL_LAUNCH, []
    for number, words in list(enumerate(UNITS))[part::4]:
        for on in (devices[number % 8], devices[(number + 3) % 8]):
            spec = device(on.split()[0])
            features = Features.of_tensor_ir(spec) if "tensorir" in on else NO_FEATURES
            cases.append((parse_operator(words.split()), spec, features))

    def times(seconds, spec_of):
        monkeypatch.setattr(cpu, "SERIAL_LAUNCH", seconds)
        found = [construct(expression, spec_of(spec), 3, features).plans for expression, spec, features in cases]
        return [[(plan.plan.programs, plan.seconds) for plan in plans] for plans in found]

    slow, fast = times(serial, lambda spec: spec), times(serial / 4, four_times_as_fast)
    assert [[(programs, pytest.approx(s / 4, rel=1e-9)) for programs, s in plans] for plans in slow] == fast


@pytest.mark.parametrize("cores", [1, 3, 4, 8])
def test_what_memory_serves_takes_its_bytes_over_the_bandwidth(cores):
    """A sum of one term: 4 B read of A and B, 4 B written; a core has a fourth of the bandwidth of four."""
    spec = device("avx512")
    rows, columns = 2048 * cores, 8192
    geometry, _ = geometry_of("matmul", m=rows, n=columns, k=1)
    told = cpu.tiled_times(geometry, spec, (2048, columns, 1), (6, 64, 1), (0, 1))
    moved = 4 * (rows + columns + rows * columns)
    launch = cpu.launch_seconds(spec, cores)
    seconds = moved / (spec.far.bandwidth_gbps * 1e9) * 4 / min(cores, 4)
    assert float(told.seconds[0]) == pytest.approx(seconds + launch)
    estimate = told.row(0)
    assert estimate.bound == "dram" and estimate.level("dram").bytes == moved
    assert estimate.level("dram").seconds == pytest.approx(seconds)


@pytest.mark.parametrize(("spare", "levels"), [(0, 3), (1, 3), (-1, 4)])
def test_what_the_last_cache_holds_does_not_come_from_memory(spare, levels):
    geometry, _ = geometry_of("matmul", m=511, n=1024, k=1)
    moved = 4 * (511 + 1024 + 511 * 1024)
    spec = device("avx512")
    large = [replace(lv, capacity_bytes=int(moved / cpu_constants.CACHE_SHARE) + spare) if lv.name == "l3" else lv
             for lv in spec.levels]  # fmt: skip
    assert int(moved / cpu_constants.CACHE_SHARE) * cpu_constants.CACHE_SHARE == moved
    told = cpu.tiled_times(geometry, replace(spec, levels=tuple(large)), (73, 1024, 1), (1, 64, 1), (0, 1))
    assert len(told.row(0).levels) == levels


def with_level(spec, name, **fields):
    return replace(spec, levels=tuple(replace(lv, **fields) if lv.name == name else lv for lv in spec.levels))


def waited(spec, geometry, chunk, rows):
    """The seconds that 100 ns more of the last cache's latency cost."""
    times = [cpu.tiled_times(geometry, with_level(spec, "l3", latency_ns=ns), chunk, (rows, 64, 1), (0, 1)).seconds[0]
             for ns in (100.0, 200.0)]  # fmt: skip
    return float(times[1] - times[0])


def test_tiles_of_few_rows_wait_for_lines_of_other_cores():
    spec, chunk, product = device("avx512"), (192, 64, 672), operator("matmul", m=192, n=512, k=672)
    weights = tuple(replace(t, constant=t.name == "B") for t in product.inputs)
    geometry = Geometry.of(replace(product, inputs=weights), "matmul")
    few, some, many = (waited(spec, geometry, chunk, rows) for rows in (2, 4, 8))
    assert few > 1.7 * some > 1.7 * 1.7 * many > 0
    small, _ = geometry_of("matmul", m=192, n=64, k=672)
    assert waited(replace(spec, units=1), small, (24, 64, 672), 2) == 0.0


def test_of_heads_each_core_has_computed_its_own():
    geometry, _ = geometry_of("batch_matmul", b=8, m=24, n=64, k=672)
    specs = [with_level(device("avx512"), "l3", latency_ns=ns) for ns in (100.0, 200.0)]
    times = [cpu.tiled_times(geometry, one, (2, 24, 64, 672), (1, 2, 64, 1), (0, 1, 2)).seconds[0] for one in specs]
    assert times[0] == times[1]


def test_rows_that_a_core_reads_in_several_chunks_come_from_another_core_once():
    """Chunks of columns have all rows: the second finds them near."""
    spec, (geometry, _) = replace(device("avx512"), units=2), geometry_of("matmul", m=24, n=256, k=672)
    assert waited(spec, geometry, (24, 64, 672), 2) == pytest.approx(waited(spec, geometry, (24, 128, 672), 2))


def test_sets_of_a_cache_overflow_before_it_is_full():
    """Two panels that are read again for every few rows, at 0.6 of the second cache: some of their lines are lost."""
    spec = device("avx512")
    held = next(lv.capacity_bytes for lv in spec.levels if lv.name == "l2")
    terms = int(0.6 * held) // (4 * 96)
    geometry, _ = geometry_of("matmul", m=192, n=96, k=terms)

    def seconds(capacity, order):
        known = with_level(spec, "l2", capacity_bytes=capacity)
        return float(cpu.tiled_times(geometry, known, (48, 96, terms), (8, 48, 1), order).seconds[0])

    assert seconds(held, (0, 1)) > 1.01 * seconds(4 * held, (0, 1))  # rows outside
    assert seconds(held, (1, 0)) < seconds(held, (0, 1))  # a panel at a time


# -- registers of a CPU's tile --------------------------------------------------------------------


def test_register_use_of_known_tiles():
    geometry, _ = geometry_of("matmul", m=64, n=64, k=64)
    # 6 x 2 vectors of 8: 12 sums, 2 loads of B, 6 broadcasts of A.
    use = cpu.register_use(geometry, (6, 16, 1), 8)
    assert (use.accumulators, use.vector_loads, use.broadcasts, use.gathers) == (12, 2, 6, 0)
    # Without a vector of B to share, each broadcast folds into its multiply-add.
    assert cpu.register_use(geometry, (4, 8, 1), 8).registers <= 4 + 1 + 4
    transposed, _ = geometry_of("matmul", m=64, n=64, k=64, layout="NT")
    assert cpu.register_use(transposed, (6, 16, 1), 8).gathers == 16 * cpu_constants.GATHERED_SLOTS


def test_vectors_that_fill_no_register_are_loaded_in_pieces():
    # Vectors of 7 lanes: 4 + 2 + 1, put together. Of 4 vectors over 28 elements the last has 4 lanes, over 31 it has 7.
    def loads(columns, row):
        return cpu.register_use(geometry_of("matmul", m=64, n=columns, k=64)[0], (2, row, 1), 8).gathers

    assert loads(28, 7) == vector_slots(1, 7) - 1 and loads(28, 14) == 2 * loads(28, 7)
    assert loads(32, 8) == loads(28, 8) == 0 and loads(31, 8) == loads(28, 7) / 4


def test_vectors_that_feed_one_instruction_fold_into_it():
    row, _ = geometry_of("matmul", m=1, n=256, k=64)  # of B each feeds one sum; of A one value feeds all
    assert cpu.register_use(row, (1, 96, 1), 8).registers == 12 + 1 + 1
    rows, _ = geometry_of("matmul", m=2, n=256, k=64)
    assert cpu.register_use(rows, (2, 48, 1), 8).registers == 12 + 6 + 2


def test_sums_that_wait_leave_time_to_those_that_a_core_begins_meanwhile():
    stage = Cycles(10.0, chain=100.0, chains=4, issued=40)  # 10 instructions a sum
    assert stage.total(0) == 100 and stage.total(10) == 50 and stage.total(1000) == 25
    assert replace(stage, chains=1).total(1000) == 100  # there is no later one
    both = Cycles.of([stage, Cycles(30.0, issued=120)])  # and 30 more until the next sum
    assert both.total(40) == 50 and both.total(1000) == 40 and both.total(0) == 100


def test_rows_of_no_vectors_are_the_compilers():
    """Long rows of an odd length come near those that vectors divide (31: 1.9 times measured); sums stay one by one."""
    spec = device("avx2")

    def cycles(width, **words):
        geometry, _ = geometry_of("relu", shape=(64, width), **words)
        return stage_cycles(geometry, CpuRates.of(spec, geometry), 0).instructions / width

    assert cycles(997) < 1.2 * cycles(992) and 1.5 * cycles(32) < cycles(31) < 3 * cycles(32)
    geometry, _ = geometry_of("reduce_sum", shape=(997, 60), axis=(1,))
    rates = CpuRates.of(spec, geometry)
    assert stage_cycles(geometry, rates, 0).chain == geometry.stage.points * rates.latency
    merged, _ = geometry_of("reduce_sum", shape=(997, 64), axis=(1,))  # in halves: a shuffle and an addition each
    assert stage_cycles(merged, rates, 0).chain == 997 * 6 * 2 * rates.latency


def test_rows_a_page_apart_push_each_other_out_of_the_nearest_cache():
    geometry, _ = geometry_of("matmul", m=64, n=64, k=1024)
    rates = CpuRates.of(device("cpu"), geometry)
    many = rates.ways + 4
    assert cpu_caches.conflicts(geometry, (many, 16, 1), rates) == many
    assert cpu_caches.conflicts(geometry, (rates.ways, 16, 1), rates) == 0
    geometry, _ = geometry_of("matmul", m=64, n=64, k=1000)  # a row is not a multiple of a way: other lines
    assert cpu_caches.conflicts(geometry, (many, 16, 1), rates) == 0


def test_columns_have_a_part_of_a_cache_only():
    geometry, _ = geometry_of("matmul", m=64, n=1024, k=512)
    rates = CpuRates.of(device("avx2"), geometry)
    shares = ((16, 128, 1 / 8), (32, 128, 1 / 4), (16, 1024, 1 / 64), (16, 1040, 1), (16, 768, 1 / 16))
    for columns, rows, share in shares:
        g, _ = geometry_of("matmul", m=64, n=rows, k=512)
        b = next(op for op in g.operands if op.name == "B")
        assert cpu_caches.sets_reached(b, b.boxes((4, columns, 512)), rates) == share, (columns, rows)
    # One row, whole rows and copied panels lie together.
    b = next(op for op in geometry.operands if op.name == "B")
    assert cpu_caches.sets_reached(b, b.boxes((4, 1024, 512)), rates) == 1
    tile = (4, 16, 512)
    boxes = [op.boxes(tile) for op in geometry.operands]
    apart, together = cpu_caches.held(geometry, boxes, rates, {}), cpu_caches.held(geometry, boxes, rates, {"B": True})
    assert together == geometry.input_bytes(tile) and apart > 1.9 * rates.caches[1][1]


def test_columns_that_many_rows_share_are_copied_a_panel_at_a_time():
    """Rows less than a page apart too: their lines meet in few sets; not where each is used once, or rows are short."""
    spec = device("avx2")
    for params, packed in (("m=128 n=768 k=3072", True), ("m=4 n=1024 k=1024", False), ("m=64 n=16 k=1024", False)):
        best = construct(parse_operator(["matmul", *params.split()]), spec, top=1).plans[0]
        (program,) = best.plan.programs
        assert (program.staged == ("B",)) is packed, f"{params}: {program}"
        if packed:
            order = program.choices_of("order")
            assert order["n"] < order.get("m", 9)


def test_a_ragged_vector_takes_a_whole_register():
    geometry, _ = geometry_of("matmul", m=64, n=60, k=64)
    # In equal vectors of at most 8: 12 = 2 x 6, 20 = 4 x 5.
    for columns, vectors in ((4, 1), (6, 1), (12, 2), (20, 4)):
        use = cpu.register_use(geometry, (2, columns, 1), 8)
        assert use.accumulators == 2 * vectors == prod((2, use.vector_loads))


def test_intensity_is_work_per_byte_from_the_farthest_level() -> None:
    levels = (LevelTime("dram", 200.0, 1e-6), LevelTime("l2", 800.0, 1e-6))
    estimate = ProgramEstimate(1e-6, 1e-6, levels, "dram", 1000, 1, 1)
    assert estimate.intensity == 5.0 and estimate.level("l2").bytes == 800.0
    assert replace(estimate, levels=()).intensity == float("inf")
    assert replace(estimate, levels=(LevelTime("dram", 0.0, 0.0),)).intensity == 1000.0
