"""Layout of staged tiles, from a plan's rTiles."""

from __future__ import annotations

from ..micro_perf.geometry import Geometry
from ..micro_perf.gpu_nest import GpuNest, columns
from ..micro_perf.storage import alignments, vector_quanta
from ..roller.rprogram import RProgram


def storage_alignment(geometry: Geometry, program: RProgram) -> dict[str, list[tuple[int, int]]]:
    """Return the stride alignments of each staged tensor of a plan (see ``storage.alignments``)."""
    tile = program.tile("shared")
    block = tuple(tile[a] for a in geometry.axes)
    vectors = list(program.choices_of("vector").values()) or [1]
    quanta = vector_quanta(GpuNest.of(geometry), columns([vectors], len(vectors)))
    padding = dict(tile.padding)
    return {
        op.name: alignments(op.box(block), padding.get(op.name, 0), int(quantum[0]))
        for op, quantum in zip(geometry.operands, quanta, strict=True)
    }
