"""TaskPrograms that lose, hurry or block an rTask are refused by name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from roller_tvm.device import load_device
from roller_tvm.rammer import (
    BadProgram,
    BarrierTask,
    DataFlowGraph,
    Dependences,
    Phase,
    ProgramBuilder,
    RKernel,
    ROperator,
    RTask,
    TaskProgram,
    VDevice,
    simulate,
)
from tests.rammer.checked import check_program

ONE = RKernel("k", (Phase(2, 1e-6, 1e-6, 256, 32),), 1e-6)
GRAPH = DataFlowGraph((ROperator("a", (ONE,)), ROperator("b", (ONE,), ("a",))))
DEVICE = VDevice.of(load_device("v100"), [ONE])


def program(waits: bool = True) -> TaskProgram:
    builder = ProgramBuilder(DEVICE, (("a", ONE), ("b", ONE)))
    for operator in ("a", "b"):
        for index in (0, 1):
            builder.append(RTask(operator, 0, index), index)
    if waits:
        for index in (0, 1):
            builder.wait(RTask("b", 0, index), [RTask("a", 0, 0), RTask("a", 0, 1)])
    return builder.build()


def test_a_good_program() -> None:
    good = program()
    check_program(good, Dependences(GRAPH))
    assert (good.tasks, good.barriers, good.used, good.launches) == (4, 2, 2, 2)
    assert str(good).splitlines()[-1] == "  vEU 1: a[1] wait(0:0) b[1]"
    timeline = simulate(good)
    costs = DEVICE.costs
    assert timeline.makespan == pytest.approx(2e-6 + costs.launch_seconds + costs.signal_seconds + costs.poll_seconds)
    assert timeline.busy(2) > 5 * timeline.busy(DEVICE.veus) > 0


def test_a_missing_barrier() -> None:
    hurried = program(waits=False)
    check_program(hurried)
    with pytest.raises(BadProgram, match=r"b\[0\]: it runs without waiting for a\[1\]"):
        check_program(hurried, Dependences(GRAPH))


def test_a_lost_task() -> None:
    good = program()
    lost = replace(good, prog=(good.prog[0][:1], *good.prog[1:]))
    with pytest.raises(BadProgram, match="the program has 3 rTasks, 4 have to run"):
        check_program(lost)
    twice = replace(good, prog=(*good.prog[:2], (RTask("a", 0, 0),), *good.prog[3:]))
    with pytest.raises(BadProgram, match="the program has 5 rTasks, 4"):
        check_program(twice)


def test_a_deadlock() -> None:
    good = program()
    circle = (
        (BarrierTask(((1, 1),)), RTask("a", 0, 0), RTask("b", 0, 0)),
        (BarrierTask(((0, 1),)), RTask("a", 0, 1), RTask("b", 0, 1)),
    )
    stuck = replace(good, prog=(*circle, *good.prog[2:]))
    for run in (check_program, simulate):
        with pytest.raises(BadProgram, match=r"vEU 0, order 0: wait\(1:1\) waits forever"):
            run(stuck)


def test_a_task_that_needs_more_than_its_vEU_has() -> None:
    with pytest.raises(BadProgram, match="needs 256 threads, a vEU has 128"):
        check_program(replace(program(), device=replace(DEVICE, threads=128)))


def test_barriers_are_not_repeated() -> None:
    """A vEU that has waited for a task need not wait for it, or one before it, again."""
    builder = ProgramBuilder(DEVICE, (("a", ONE), ("b", ONE)))
    for operator, veus in (("a", (0, 0)), ("b", (1, 1))):
        for index, veu in enumerate(veus):
            builder.append(RTask(operator, 0, index), veu)
    builder.wait(RTask("b", 0, 0), [RTask("a", 0, 1)])
    builder.wait(RTask("b", 0, 1), [RTask("a", 0, 0)])
    built = builder.build()
    check_program(built)
    assert built.prog[1] == (BarrierTask(((0, 1),)), RTask("b", 0, 0), RTask("b", 0, 1))


def test_a_kernel_of_two_phases_waits() -> None:
    """Blocks of a plain kernel run in any order."""
    two = RKernel("k", (Phase(1, 1e-6, 1e-6, 256, 32),) * 2, 2e-6)
    nothing = ((),) * (DEVICE.veus - 2)
    first, second = (RTask("a", 0, 0),), (RTask("a", 1, 0),)
    assert TaskProgram(DEVICE, (("a", two),), (first, second, *nothing)).waits
    assert not TaskProgram(DEVICE, (("a", ONE),), (first, (RTask("a", 0, 1),), *nothing)).waits


@pytest.mark.parametrize(("least", "refused"), [
    ({"tasks": 1}, {"tasks": 0}), ({"threads": 1}, {"threads": 0}), ({"resident": 1}, {"resident": 0}),
    ({"registers": 0}, {"registers": -1}), ({"shared_bytes": 0}, {"shared_bytes": -1}),
    ({"alone_seconds": 0.0}, {"alone_seconds": -1e-9}), ({"unit_seconds": 0.0}, {"unit_seconds": float("nan")}),
])  # fmt: skip
def test_the_least_phase(least: dict[str, float], refused: dict[str, float]) -> None:
    phase = Phase(2, 1e-6, 1e-6, 32, 32, 64)
    replace(phase, **least)
    with pytest.raises(ValueError, match="a phase needs|time of an rTask"):
        replace(phase, **refused)
