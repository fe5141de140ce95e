"""Layout of staged tiles and widths of vector stores, as a plan's rTiles imply them."""

from __future__ import annotations

from ..model.geometry import Geometry
from ..model.gpu import VECTOR_ALIGNMENT, vector_quantum
from ..model.storage import alignments
from ..plan.program import RProgram


def storage_alignment(geometry: Geometry, program: RProgram) -> dict[str, list[tuple[int, int]]]:
    """Stride alignments of each staged tensor of a plan (see ``storage.alignments``)."""
    tile = program.tile("shared")
    block = tuple(tile[a] for a in geometry.axes)
    vectors = tuple(program.choices_of("vector").values())
    padding = dict(tile.padding)
    return {
        op.name: alignments(op.box(block), padding.get(op.name, 0), vector_quantum(op, vectors)) for op in geometry.operands
    }


def store_vector(geometry: Geometry, program: RProgram) -> int:
    """Outputs that a thread stores in one instruction."""
    if not geometry.spatial:
        return 1
    last = geometry.stage.axes[geometry.spatial[-1]]
    own = program.tile("register")[last.name] // max(1, program.choice(f"vthread:{last.name}", 1))
    for width in (VECTOR_ALIGNMENT // geometry.output_bytes, VECTOR_ALIGNMENT // 2 // geometry.output_bytes):
        if width > 1 and own % width == 0 and last.extent % width == 0:
            return width
    return 1
