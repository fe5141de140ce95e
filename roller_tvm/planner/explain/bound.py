"""The bound of a program or plan, worded so that the reader knows which change would help."""

from __future__ import annotations

from math import ceil, prod

from ...device import DeviceSpec
from ...micro_perf.estimate import Estimate, ProgramEstimate
from ...micro_perf.geometry import Geometry
from ...micro_perf.occupancy import occupancy
from ...roller.rprogram import RProgram
from .words import count, share

_GPU = {
    "compute": "the arithmetic units are the slowest part; only less idling of units would help",
    "issue": "fetches and addresses cost instruction slots; wider vectors or larger register tiles help",
    "shared": "operands are read faster than shared memory delivers; larger register tiles would help",
    "l2": "blocks load the same data again and again; a larger block tile would help",
    "dram": "every byte is moved about as seldom as it can be; fusing with neighbours would help",
    "latency": "a block waits for its own load - synchronise - compute; more warps or fewer steps help",
    "blocks": "the device starts one block after the other; larger blocks, or more outputs a thread, would help",
}
#: Words for the recipes that stage nothing in shared memory.
_UNSTAGED = {
    "latency": "threads wait for their loads; more of them, or more loads in flight, would help",
    "l2": "threads load the same data again and again; more outputs a thread would help",
}
_IPU = {
    "compute": "the arithmetic units are the slowest part; only less idling of tiles would help",
    "shared": "operands are read faster than a tile's memory delivers; larger register tiles would help",
    "latency": "a tile waits for its own exchange - synchronise - compute; fewer steps help",
    "exchange": "tiles exchange the same data again and again; a larger tile of the operator would help",
}
_CPU = {
    "compute": "the multiply-add units are the slowest part",
    "load": "loads and broadcasts take longer than the multiply-adds; a squarer register tile would help",
    "call": "exp, log and the like, one element a call, are the slowest part",
    "dram": _GPU["dram"],
}


def bound_of(estimate: Estimate, device: DeviceSpec) -> str:
    """Return the bound of a whole plan: its slowest program's, or "launch" if starting the programs takes longer."""
    launches = device.launch_overhead_us * 1e-6 * len(estimate.programs)
    return "launch" if launches > estimate.seconds / 2 else estimate.bound


def bound_line(program: RProgram, estimate: ProgramEstimate, g: Geometry, device: DeviceSpec) -> str:
    """Return the bound of one program and its meaning, as a line."""
    if device.launch_overhead_us * 1e-6 > estimate.seconds / 2:
        return "launch bound: starting it takes longer than running it; fusing with neighbours would help"
    if estimate.bound == "compute" and not estimate.flops:
        return "compute bound: copying and its conditions take longer than the memory traffic"
    if estimate.bound == device.far.name and device.kind != "ipu":
        outputs = prod(g.extents[i] for i in g.spatial) * g.output_bytes
        once = sum(op.source_bytes for op in g.operands) + outputs + g.epilogue_bytes
        moved = next(level.bytes for level in estimate.levels if level.level == estimate.bound)
        if moved > 1.5 * once:
            return (
                f"{estimate.bound} bound: every byte is moved {moved / once:.1f} times on average; "
                "a larger tile would help"
            )
    words = {"cpu": _CPU, "ipu": _IPU}.get(device.kind, _GPU if program.copies_tiles else _GPU | _UNSTAGED)
    told = words.get(
        estimate.bound,
        f"traffic from {estimate.bound} takes longer than the arithmetic; a larger tile would help",
    )
    return f"{estimate.bound} bound: {told}"


def parallel_lines(program: RProgram, estimate: ProgramEstimate, device: DeviceSpec) -> list[str]:
    """Return lines that say how the device is filled: occupancy and its limiter, waves and idle units."""
    idle = max(0.0, 1 - estimate.utilisation)
    if device.kind == "cpu":
        chunks, cores = count(estimate.blocks, "chunk"), count(device.units, "core")
        rounds = count(estimate.waves, "round")
        return [f"{chunks} on {cores}: {rounds}, cores idle {share(idle)} of the time"]
    if device.kind == "ipu":
        blocks, rounds = count(estimate.blocks, "block"), count(estimate.waves, "round")
        return [f"{blocks} on {device.units} tiles: {rounds}, tiles idle {share(idle)} of the time"]
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
