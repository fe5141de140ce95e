"""Why a plan loses: the largest difference between two estimates is the one that is named."""

from dataclasses import replace

import pytest

from roller_tvm.device import load_device
from roller_tvm.ir.operators import operator, parse_operator
from roller_tvm.micro_perf.estimate import Estimate, LevelTime
from roller_tvm.planner import construct
from roller_tvm.planner.explain import explain, why_slower
from roller_tvm.planner.explain.bound import bound_of
from roller_tvm.planner.explain.operator import Roofline
from roller_tvm.planner.explain.runners import runner_lines

from ..plan.devices import device

V100 = load_device("v100")


@pytest.fixture(scope="module")
def best():
    return construct(operator("matmul", m=512, n=512, k=512), V100, top=1).best


def changed(ranked, **fields):
    program = ranked.estimate.programs[0]
    return replace(ranked, estimate=Estimate((replace(program, seconds=1.2 * program.seconds, **fields),)))


def with_traffic(ranked, name, factor):
    levels = ranked.estimate.programs[0].levels
    return tuple(
        LevelTime(e.level, e.bytes * factor, e.seconds * factor) if e.level == name else e for e in levels
    )


@pytest.mark.parametrize("level", ["dram", "l2", "shared"])
def test_traffic(best, level):
    slower = changed(best, levels=with_traffic(best, level, 1.5), bound=level)
    assert why_slower(best, slower, V100) == f"1.50x the {level} traffic"


def test_the_bound_outweighs_what_hides_behind_it(best):
    factors = {"dram": 3.0, "l2": 1.1, "shared": 1.1}
    levels = tuple(LevelTime(e.level, factors[e.level] * e.bytes, factors[e.level] * e.seconds)
                   for e in best.estimate.programs[0].levels)  # fmt: skip
    assert "shared traffic" in why_slower(best, changed(best, levels=levels, bound="shared"), V100)


def test_idle_units(best):
    used = best.estimate.programs[0].utilisation
    text = why_slower(best, changed(best, utilisation=used * 0.6, blocks=81), V100)
    assert text.startswith("units idle") and "81 blocks on 80 units" in text


def test_fewer_warps_when_latency_bound(best):
    slower = changed(best, bound="latency", occupancy=1, threads=32)
    assert "1 warps on a unit instead of" in why_slower(best, slower, V100)


def test_split_is_named():
    device = load_device("h200")
    plans = construct(operator("matmul", m=4, n=1000, k=2048), device).plans
    split = next(p for p in plans if p.plan.split_reductions)
    whole = replace(split, plan=replace(split.plan, split_reductions=()))
    parts = split.plan.split_reductions[0].parts
    assert f"no reduction split instead of k split in {parts}" in why_slower(split, whole, device)


@pytest.mark.parametrize("name", ["v100", "k80", "mi50", "a100", "rtx4090", "h100"])
def test_every_device_has_words_for_its_plans(name):
    device = load_device(name)
    for words in ("conv2d_nchw n=8 c=32 h=17 w=17 f=40 k=3 stride=2 relu=1", "reduce_sum shape=64x100 axis=1",
                  "relu shape=1000", "softmax shape=12x128x128"):  # fmt: skip
        construction = construct(parse_operator(words.split()), device, top=3)
        text = explain(construction, device, steps=True)
        title = next(line for line in text.splitlines() if line.startswith("plan "))
        assert title.endswith(f"{bound_of(construction.best.estimate, device)} bound") and "schedule steps" in text
        for program in construction.best.plan.programs:
            assert all(line in text for line in str(program.tiles[-1]).splitlines())


def test_a_stage_stored_or_in_place_is_named():
    from roller_tvm.ir.operators import conv2d_nchw

    device = load_device("v100")
    ranked = construct(conv2d_nchw(n=1, c=16, h=16, w=16, f=16, k=3, padding=1), device, top=1).best
    program, estimate = ranked.plan.programs[0], ranked.estimate.programs[0]
    stored = replace(program, anchor="pad", output="pad", tiles=(), inlined=())
    plan = replace(ranked.plan, programs=(stored, program))
    two = replace(ranked, plan=plan, estimate=Estimate((estimate, replace(estimate, seconds=2 * estimate.seconds))))
    text = why_slower(ranked, two, device)
    assert text.startswith("pad stored instead of in place: conv2d takes ")


def test_far_traffic_that_comes_again_is_said():
    device = load_device("v100")
    best = construct(operator("matmul", m=512, n=512, k=512), device, top=1).best
    for times, said in ((1, "about as seldom as it can be"), (4, "is moved 4.0 times on average")):
        moved = times * 3 * 512 * 512 * 4
        estimate = replace(best.estimate.programs[0], bound="dram", levels=(LevelTime("dram", moved, 1e-5),))
        assert said in explain(replace(best, estimate=Estimate((estimate,))), device)


def test_an_ipu_is_told_in_its_own_words():
    device = load_device("ipu_mk1")
    text = explain(construct(operator("matmul", m=512, n=512, k=512), device, top=2), device)
    assert "exchange" in text and " tiles: " in text
    assert "warp" not in text and "shared memory" not in text


@pytest.mark.parametrize(("stages", "told"), [(1, ""), (2, ", 2 buffers of each"), (4, ", 4 buffers of each")])
def test_copies_that_run_ahead_have_buffers(best, stages, told):
    program = best.plan.programs[0]
    ahead = replace(program, choices=(*program.choices, ("stages", stages)))
    ranked = replace(best, plan=replace(best.plan, programs=(ahead,)))
    line = next(line for line in explain(ranked, V100).splitlines() if " a block: " in line)
    assert line.partition("block: ")[2].count("KiB") == 2 and line.endswith("KiB" + told)  # of A and of B
    limit = V100.limits.max_registers_per_thread
    assert f"of {limit} (" in explain(ranked, V100)
    unlimited = replace(V100, limits=replace(V100.limits, max_registers_per_thread=None))
    assert " a thread, predicted: " in explain(ranked, unlimited) and f"of {limit} (" not in explain(ranked, unlimited)


@pytest.mark.parametrize("compute, memory, bound", [(2.0, 1.0, "compute"), (1.0, 1.0, "compute"), (1.0, 2.0, "dram")])
def test_a_roof_is_the_longer_of_two_times(compute, memory, bound):
    roof = Roofline(100, 50, compute, memory, "dram")
    assert roof.bound == bound and roof.seconds == max(compute, memory) and roof.intensity == 2.0
    assert replace(roof, bytes=0).intensity == 100.0


def test_what_is_copied_together_is_named():
    spec = device("avx2")
    told = explain(construct(parse_operator(["matmul", "m=128", "n=768", "k=3072"]), spec, 3), spec)
    assert "copied together, what a register tile reads at a time: B" in told


def test_four_others_are_compared_unless_told():
    v100 = load_device("v100")
    found = construct(parse_operator(["matmul", "m=512", "n=512", "k=512"]), v100, 10)
    assert explain(found, v100) == explain(found, v100, 4) != explain(found, v100, 5)


def test_what_runs_as_long_as_it_takes_to_start_is_not_launch_bound(best):
    """Launch included: twice the launch is as long to start as to run."""
    launch = V100.launch_overhead_us * 1e-6
    program = replace(best.estimate.programs[0], seconds=2 * launch)
    for seconds, bound in ((2 * launch, program.bound), (1.999 * launch, "launch")):
        ranked = replace(best, estimate=Estimate((replace(program, seconds=seconds),)))
        assert bound_of(ranked.estimate, V100) == bound
        assert ("launch bound: starting it takes longer" in explain(ranked, V100)) == (bound == "launch")


def test_runners_up_that_are_not_shown_are_counted(best):
    plans = [best, *(changed(best, bound="issue") for _ in range(3))]
    every, two = runner_lines(plans, V100, 3), runner_lines(plans, V100, 2)
    assert len(every) == 3 and runner_lines(plans, V100, 5) == every
    assert two[:2] == every[:2] and len(two) == 3 and two[2].startswith("    and 1 more, up to ")
    assert [line.split()[0] for line in every] == ["#2", "#3", "#4"] and "+20.0%" in every[0]
    assert "none was kept" in runner_lines([best], V100, 3)[0]


def test_arithmetic_that_is_the_bound_weighs_as_much_as_the_plan(best):
    """A tenth more arithmetic is named before twice the traffic that hides behind it."""
    program = best.estimate.programs[0]
    slower = changed(
        best, compute_seconds=1.1 * program.compute_seconds, levels=with_traffic(best, "l2", 2.0), bound="compute"
    )  # fmt: skip
    assert "the arithmetic" in why_slower(best, slower, V100)
    assert "the l2 traffic" in why_slower(best, replace(
        slower, estimate=Estimate((replace(slower.estimate.programs[0], bound="l2"),))), V100)  # fmt: skip
