"""Parts of the CPU's model, by hand: what is computed inside register tiles and behind them."""

from dataclasses import replace

import numpy as np
import pytest

from roller_tvm.ir.operators import operator
from roller_tvm.micro_perf import cpu
from roller_tvm.micro_perf.cpu_constants import CALL, INSTRUCTIONS, OVERLAP
from roller_tvm.micro_perf.cpu_rates import CpuRates
from roller_tvm.micro_perf.geometry import Geometry
from roller_tvm.roller.partition import partition

from ..plan.devices import device

CPU = device("avx2")


def product_of(functions):
    """A product of 64 x 96 by 96 x 48 whose left operand is computed where it is read, by some functions."""
    expression = operator("matmul", m=64, n=48, k=96)
    geometry = Geometry.of(expression, "matmul")
    left, right = geometry.operands
    return replace(geometry, operands=(replace(left, functions=functions), right))


def test_calls_of_an_operand_are_counted_for_each_element_of_the_tile():
    """A call an element, whatever the vectors: 6 rows of the left operand, which has no columns."""
    geometry = product_of((("special", 2),))
    rates = CpuRates.of(CPU, geometry)
    cycles, calls = cpu.prologues(geometry, [np.array([6, 1]), np.array([16, 8]), np.array([1, 1])], rates)
    assert list(np.broadcast_to(calls, 2)) == [12, 2] and list(np.broadcast_to(cycles, 2)) == [0, 0]


def test_instructions_of_an_operand_that_has_no_vectors_are_paid_an_element():
    geometry = product_of((("exp", 1),))
    rates = CpuRates.of(CPU, geometry)
    cycles, calls = cpu.prologues(geometry, [np.array([6]), np.array([16]), np.array([1])], rates)
    assert cycles == pytest.approx(6 * INSTRUCTIONS["exp"] / rates.fma) and calls == 0


def test_an_epilogue_pays_its_arithmetic_a_vector_and_its_calls_an_element():
    expression = operator("matmul", m=64, n=48, k=96, bias=1, relu=1)
    nest = partition(expression)[-1]
    geometry = Geometry.of(expression, nest.anchor, nest.inlined, nest.output)
    rates = CpuRates.of(CPU, geometry)
    assert geometry.epilogue_flops == 2 and not geometry.epilogue_functions
    assert cpu.epilogue_cycles(geometry, np.array(10), np.array(80), rates) == pytest.approx(10 * 2 / rates.fma)
    called = replace(geometry, epilogue_functions=(("special", 1), ("exp", 1)))
    slots = 2 + INSTRUCTIONS["exp"]
    assert cpu.epilogue_slots(called) == slots
    expected = 10 * slots / rates.fma + 80 * CALL
    assert cpu.epilogue_cycles(called, np.array(10), np.array(80), rates) == pytest.approx(expected)


def test_throughput_and_latency_change_over_as_a_norm():
    """Far apart the longer counts; alike, 2 ** (1 / OVERLAP) of either."""
    rates = CpuRates.of(CPU, Geometry.of(operator("matmul", m=64, n=48, k=96), "matmul"))
    alike = round(rates.latency * rates.fma)
    use = cpu.RegisterUse(np.array([1000, 1, alike]), np.array([2, 2, 2]), np.array([3, 3, 3]), np.array([1, 1, 1]))
    arithmetic, loads = cpu.inner_cycles(use, rates, 7, True)
    expected = [1000 / rates.fma, rates.latency, rates.latency * 2 ** (1 / OVERLAP)]
    assert arithmetic == pytest.approx([7 * cycles for cycles in expected], rel=1e-2)
    assert loads == pytest.approx([7 * 6 / rates.loads] * 3)
    independent, _ = cpu.inner_cycles(use, rates, 7, False)
    assert independent == pytest.approx([7 * n / rates.fma for n in (1000, 1, alike)])


def steps(rates):
    """Cycles of a step of tiles of 6 rows of two vectors and of 14 rows of one, 12 and 14 multiply-adds."""
    use = cpu.RegisterUse(np.array([12, 14]), np.array([2, 1]), np.array([6, 14]), np.array([0, 0]))
    return cpu.step_cycles(use, rates, *cpu.inner_cycles(use, rates, 1, True))


def test_instructions_bound_tiles_whose_core_another_thread_shares():
    """20.75 instructions in trips of four steps, and 32."""
    rates = CpuRates.of(CPU, Geometry.of(operator("matmul", m=64, n=48, k=96), "matmul"))
    together = steps(replace(rates, dispatch=None))
    assert (steps(replace(rates, dispatch=6.0)) == together).all()
    assert steps(replace(rates, dispatch=2.0)) == pytest.approx([20.75 / 2, 32 / 2])
    shared = steps(replace(rates, dispatch=6.0, shared=0.25))
    busy = np.maximum(together, np.array([20.75, 32]) / 3)
    assert shared == pytest.approx(0.75 * together + 0.25 * busy)
    # Multiply-adds of CPUs with more registers read a value for all lanes themselves: 18 instructions.
    wide = replace(rates, dispatch=2.0, registers=32)
    assert steps(wide) == pytest.approx([20.75 / 2, 18 / 2])


def test_a_vector_loaded_for_one_multiply_add_each_holds_one_register():
    """Loaded once each, they are folded into the multiply-adds: one is loaded while another is used."""
    kept = cpu.RegisterUse(12, 2, 6, 0)
    assert kept.registers == 12 + 2 + 6
    assert replace(kept, vector_loads=14, once=12).registers == 12 + 2 + 1 + 6
    assert replace(kept, accumulators=6).registers == 6 + 2 + 1  # broadcasts of a single multiply-add are folded too


@pytest.mark.parametrize("name", ["avx2", "avx512"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_rates_of_all_cores_are_those_of_the_device(name, dtype):
    spec = replace(device(name), name=f"{name} of its own")  # the rates of a device are kept
    rates = CpuRates.of(spec, Geometry.of(operator("matmul", m=64, n=48, k=96, dtype=dtype), "matmul"))

    def in_all(rate):  # bytes a second of all cores
        return pytest.approx(rate / rates.cycle * spec.units / 1e9)

    assert 1 / rates.cycle == pytest.approx(spec.clock_ghz * 1e9)
    assert rates.lanes * {"float32": 4, "float64": 8}[dtype] == spec.vector_bytes
    assert spec.far.bandwidth_gbps == in_all(rates.far)
    levels = {level.name: level.bandwidth_gbps for level in spec.levels}
    assert len(rates.caches) > 1 and all(levels[cache] == in_all(rate) for cache, _, rate in rates.caches)
    assert levels[rates.caches[0][0]] == in_all(rates.loads * spec.vector_bytes)
    assert rates.ways * rates.way_bytes == spec.level(rates.caches[0][0]).capacity_bytes


def test_a_point_that_only_moves_data_takes_one_slot_like_an_addition():
    def slots(name, **shape):
        expression = operator(name, **shape)
        return cpu.point_slots(Geometry.of(expression, expression.anchor.name))

    assert slots("transpose", shape="64x48") == slots("add", shape="64x48") == 1
    assert slots("matmul", m=8, n=8, k=8) == 1


def test_lines_that_evict_each_other_come_from_the_second_cache_at_its_rate():
    """16 rows, a page apart, in a cache of 8 ways: each step of the reduction fetches 16 lines anew."""
    geometry = Geometry.of(operator("matmul", m=64, n=48, k=1024), "matmul")
    rates = CpuRates.of(CPU, geometry)
    assert rates.ways == 8 and 1024 * 4 % rates.way_bytes == 0

    def other(rate, rows):
        first, (name, size, _), *beyond = rates.caches
        seen = replace(rates, caches=(first, (name, size, rate), *beyond))
        return cpu.TileCost.of(geometry, [np.array([rows]), np.array([8]), np.array([1])], seen).other[0]

    lines = other(16.0, 16) - other(32.0, 16)
    assert lines == pytest.approx(1024 * 16 * 64 / 32)
    assert other(16.0, 8) == other(32.0, 8)


def test_a_device_that_tells_little_is_taken_for_a_common_one():
    """By the sources of ``device/data/_cpu.toml``: of Haswell to Zen 3."""
    untold = ("fma_per_cycle", "fma_latency_cycles", "vector_registers", "stores_per_cycle", "page_bytes",
              "page_walk_cycles", "l1_ways", "reorder_window", "broadcast_registers")  # fmt: skip
    spec = replace(CPU, limits=replace(CPU.limits, **dict.fromkeys(untold)))
    rates = CpuRates.of(spec, Geometry.of(operator("matmul", m=64, n=48, k=96), "matmul"))
    assert (rates.fma, rates.latency, rates.registers, rates.stores) == (2, 4, 16, 1)
    assert (rates.page_bytes, rates.page_walk, rates.window, rates.broadcasts) == (4096, 4, 0, None)
    assert rates.ways * rates.page_bytes == spec.level(rates.caches[0][0]).capacity_bytes  # ways of a page
