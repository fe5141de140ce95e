"""Layout of staged tiles, from a plan's rTiles."""

from __future__ import annotations

from ..micro_perf.geometry import Geometry
from ..micro_perf.storage import alignments
from ..roller.rprogram import RProgram
from .gpu_tiled import vector_quantum


def storage_alignment(geometry: Geometry, program: RProgram) -> dict[str, list[tuple[int, int]]]:
    """Return the stride alignments of each staged tensor of a plan (see ``storage.alignments``)."""
    tile = program.tile("shared")
    block = tuple(tile[a] for a in geometry.axes)
    vectors = tuple(program.choices_of("vector").values())
    padding = dict(tile.padding)
    return {
        op.name: alignments(op.box(block), padding.get(op.name, 0), vector_quantum(op, vectors))
        for op in geometry.operands
    }
