"""What launches and barriers cost: measured numbers beside what the memory's latency alone comes to."""

from __future__ import annotations

from dataclasses import replace

import pytest

from roller_tvm.device import load_device
from roller_tvm.device.arch import launch_cost
from roller_tvm.rammer import Costs, Phase, RKernel, VDevice
from tests.plan.devices import GPUS, device


@pytest.mark.parametrize("name", GPUS)
def test_costs_of_a_gpu(name: str) -> None:
    spec = load_device(name)
    stream, graph = Costs.of(spec, "stream"), Costs.of(spec, "graph")
    assert graph.launch_seconds <= stream.launch_seconds == spec.launch_overhead_us * 1e-6
    barrier = stream.signal_seconds + stream.poll_seconds
    assert (graph.signal_seconds, graph.poll_seconds) == (stream.signal_seconds, stream.poll_seconds)
    assert barrier >= 4 * spec.level("l2").latency_ns * 1e-9  # round trips to L2, at the least
    measured = launch_cost("barrier", spec.arch) if spec.arch.startswith("sm_") else None
    if measured:
        assert barrier == pytest.approx(max(measured * 1e-6, 2 * stream.poll_seconds))
        assert barrier < stream.launch_seconds  # else nothing could be gained by fusing a chain


def test_an_architecture_that_was_not_measured_is_as_the_next_older_one() -> None:
    assert launch_cost("graph", "sm_90a") == launch_cost("graph", "sm_100") == launch_cost("graph", "sm_90")
    assert launch_cost("barrier", "sm_75") == launch_cost("barrier", "sm_70")
    assert launch_cost("graph", "sm_61") is None
    old = replace(load_device("v100"), arch="sm_61")
    assert Costs.of(old, "graph") == Costs.of(old, "stream")


def test_a_thread_of_a_cpu_waits_by_the_next_region() -> None:
    cpu = device("avx512")
    costs = Costs.of(cpu)
    assert costs.signal_seconds == costs.launch_seconds == cpu.launch_overhead_us * 1e-6 and costs.poll_seconds == 0


def test_the_virtual_device_of_a_cpu_is_a_vEU_a_core_without_registers_or_shared_memory() -> None:
    cpu = device("avx512")
    one = VDevice.of(cpu, [RKernel("k", (Phase(8, 1e-6, 1e-6),), 2e-6)])
    assert (one.name, one.units, one.per_unit, one.threads, one.registers, one.shared_bytes) == (
        cpu.name, cpu.units, 1, 1, 0, 0)  # fmt: skip
    assert one.veus == cpu.units and one.costs == Costs.of(cpu) and one.unit(3) == 3
