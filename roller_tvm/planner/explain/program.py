"""One rProgram in full: Load / Compute / Store, tiles, footprint, traffic and time of each level, bound."""

from __future__ import annotations

from math import ceil, prod

from ...device import DeviceSpec
from ...ir import TensorExpression
from ...micro_perf.estimate import ProgramEstimate
from ...micro_perf.geometry import Geometry
from ...recipes import RECIPES
from ...roller.rprogram import RProgram
from .bound import bound_line, parallel_lines
from .footprint import edge_lines, held_lines, padding_lines
from .words import amount, count, seconds, share, table

_IPU = "each tile takes its inputs from the exchange into its memory, its workers keep a register tile"


def program_lines(
    expression: TensorExpression, program: RProgram, estimate: ProgramEstimate, device: DeviceSpec
) -> list[str]:
    """Return all that is known of one rProgram, as lines."""
    g = Geometry.of(expression, program.anchor, program.inlined, program.output)
    recipe = RECIPES[program.recipe]
    lines = [
        f"  rProgram {program.anchor}"
        + (f" -> {program.output}" if program.output != program.anchor else "")
        + f", {program.recipe}: {_IPU if device.kind == 'ipu' and program.staged else recipe.says}"
    ]
    lines += [f"    {line}" for line in _load_compute_store(program, expression, device)]
    if program.inlined:
        lines.append(f"    in place: {', '.join(program.inlined)}")
    if recipe.staged and program.staged:
        lines.append(f"    {recipe.staged}: {', '.join(program.staged)}")
    if program.choices:
        lines.append(f"    choices: {' '.join(f'{k}={v}' for k, v in program.choices)}")
    lines += ["   tiles", *table(_tile_rows(program, g, device), left=1)]
    lines += ["   holds", *(f"    {line}" for line in held_lines(program, estimate, g, device))]
    padding = padding_lines(program, g, device)
    if padding:
        lines += ["   padding (rule 3)", *(f"    {line}" for line in padding)]
    lines += ["   time", *table(_time_rows(program, estimate, g, device), left=1)]
    lines += ["   runs", *(f"    {line}" for line in parallel_lines(program, estimate, device))]
    lines += [f"    {line}" for line in edge_lines(program, g)]
    lines.append(f"    {bound_line(program, estimate, g, device)}")
    return lines


def _load_compute_store(program: RProgram, expression: TensorExpression, device: DeviceSpec) -> list[str]:
    lines = list(program.load_compute_store(expression))
    if device.kind == "gpu" and not program.copies_tiles:  # a block's tile is there, but nobody copies it
        lines = [line.replace("-> shared", "-> caches").replace(" shared ->", " caches ->") for line in lines]
    return lines


def _tile_rows(program: RProgram, g: Geometry, device: DeviceSpec) -> list[list[str]]:
    """Return table rows: extents along every axis at each level, and how many tiles of a level one tile above has."""
    rows = [["level", *g.axes, "tiles"], ["whole", *map(str, g.extents), ""]]
    outer = dict(zip(g.axes, g.extents, strict=True))
    spatial = {g.axes[i] for i in g.spatial}
    for number, tile in enumerate(program.tiles):
        parallel = prod(ceil(outer[a] / tile[a]) for a in g.axes if a in spatial)
        serial = prod(ceil(outer[a] / tile[a]) for a in g.axes if a not in spatial)
        if device.kind == "cpu":
            what = count(parallel, "chunk") if number == 0 else f"{parallel} a chunk"
        elif number == 0:
            what = count(parallel, "block") + (f" x {count(serial, 'step')}" if serial > 1 else "")
        else:
            what = f"{program.choice('threads')} threads"
        level = "block" if device.kind == "gpu" and number == 0 and not program.copies_tiles else tile.level
        rows.append([level, *(str(tile[a]) for a in g.axes), what])
        outer = tile.shape
    return rows


def _time_rows(
    program: RProgram, estimate: ProgramEstimate, g: Geometry, device: DeviceSpec
) -> list[list[str]]:
    """Return table rows: arithmetic and traffic of each level at the device's rates, and the predicted time."""
    rows = [["", "amount", "rate", "intensity", "time", "of predicted"]]

    def row(name: str, what: str, rate: str, intensity: str, value: float) -> None:
        rows.append([name, what, rate, intensity, seconds(value), share(value / estimate.seconds)])

    peak = (RECIPES[program.recipe].peak(g.expression, program, device) or device.peak(g.stage.dtype)) * 1e9
    arithmetic = amount(peak, "FLOP/s") if estimate.flops else ""  # what only moves data still takes instructions
    row("compute", amount(estimate.flops, "FLOP"), arithmetic, "", estimate.compute_seconds)
    for level in estimate.levels:
        rate = amount(device.bandwidth(level.level) * 1e9, "B/s") if device.has(level.level) else ""
        row(
            level.level,
            amount(level.bytes, "B"),
            rate,
            f"{estimate.flops / max(1.0, level.bytes):.1f} FLOP/B",
            level.seconds,
        )
    launch = device.launch_overhead_us * 1e-6
    if launch:
        row("launch", "", "", "", min(launch, estimate.seconds))
    rate = amount(estimate.flops / estimate.seconds, "FLOP/s") if estimate.flops else ""
    rows.append(["predicted", "", rate, "", seconds(estimate.seconds), share(1.0)])
    return rows
