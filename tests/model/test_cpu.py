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


def test_a_vector_loaded_for_one_multiply_add_each_holds_one_register():
    """Loaded once each, they are folded into the multiply-adds: one is loaded while another is used."""
    kept = cpu.RegisterUse(12, 2, 6, 0)
    assert kept.registers == 12 + 2 + 6
    assert replace(kept, vector_loads=14, once=12).registers == 12 + 2 + 1 + 6
    assert replace(kept, accumulators=6).registers == 6 + 2 + 1  # broadcasts of a single multiply-add are folded too
