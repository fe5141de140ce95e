"""What limits a program, said so that one knows what would help."""

from __future__ import annotations

from math import ceil

from ..device import DeviceSpec
from ..model.estimate import ProgramEstimate
from ..model.occupancy import occupancy
from ..plan.program import RProgram
from .words import count, share

_GPU = {
    "compute": "the arithmetic units are the slowest part; only less idling of units would help",
    "issue": "fetches and addresses cost instruction slots; wider vectors or larger register tiles help",
    "shared": "operands are read faster than shared memory delivers; larger register tiles would help",
    "l2": "blocks load the same data again and again; a larger block tile would help",
    "dram": "every byte is moved about as seldom as it can be; fusing with neighbours would help",
    "latency": "a block waits for its own load - synchronise - compute; more warps or fewer steps help",
}
_CPU = {
    "compute": "the multiply-add units are the slowest part",
    "load": "loads and broadcasts take longer than the multiply-adds; a squarer register tile would help",
    "dram": _GPU["dram"],
}


def bound_line(estimate: ProgramEstimate, device: DeviceSpec) -> str:
    """The bound and its meaning."""
    if device.launch_overhead_us * 1e-6 > estimate.seconds / 2:
        return "launch bound: starting it takes longer than running it; fusing with neighbours would help"
    if estimate.bound == "compute" and not estimate.flops:
        return "compute bound: copying and its conditions take longer than the memory traffic"
    told = (_CPU if device.kind == "cpu" else _GPU).get(
        estimate.bound,
        f"traffic from {estimate.bound} takes longer than the arithmetic; a larger tile would help",
    )
    return f"{estimate.bound} bound: {told}"


def parallel_lines(program: RProgram, estimate: ProgramEstimate, device: DeviceSpec) -> list[str]:
    """How the device is filled: occupancy and its limiter, waves and idle units."""
    idle = max(0.0, 1 - estimate.utilisation)
    if device.kind == "cpu":
        chunks, cores = count(estimate.blocks, "chunk"), count(device.units, "core")
        rounds = count(estimate.waves, "round")
        return [f"{chunks} on {cores}: {rounds}, cores idle {share(idle)} of the time"]
    fits, limiter = occupancy(device, estimate.threads, estimate.registers, estimate.shared_bytes)
    warps = ceil(estimate.threads / device.vector_width) * estimate.occupancy
    text = f"{estimate.occupancy} of {fits} possible blocks of {estimate.threads} threads on a unit"
    if estimate.occupancy < fits:
        text += f", as there are only {count(estimate.blocks, 'block')} for {device.units} units"
    elif limiter:
        text += f", limited by {limiter}"
    most = device.limits.max_threads_per_unit
    filled = f" = {share(warps * device.vector_width / most)} of {most} threads" if most else ""
    return [
        f"{text}; {count(warps, 'warp')}{filled}",
        f"{count(estimate.blocks, 'block')} in {count(estimate.waves, 'wave')} over {device.units} units: "
        f"{share(idle)} of the units' time idle",
    ]
