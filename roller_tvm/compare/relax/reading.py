"""A scheduled function as tiles, whoever scheduled it: its blocks' loops are looked at, not how they came about."""

from __future__ import annotations

from typing import Any

import numpy as np

from roller_tvm.compare.tiles import nest_tiles
from roller_tvm.replay.state import Loop, LoopStage, Part
from roller_tvm.tir.nodes import REDUCTION
from roller_tvm.tir.placed import PlacedBlock, PlacedLoop, placed_blocks

#: Kinds of loops by Ansor's names, which `nest_tiles` knows.
_KINDS = {"serial": "", "vectorized": "vectorize", "unrolled": "unroll"}
#: Of a reduction that was taken apart: the block that writes the first value, and the one that adds to it.
_INIT, _UPDATE = "_init", "_update"
_UNROLL = "pragma_auto_unroll_max_step"


def record_tiles(mod: Any, line: str) -> str:
    """A record of a module as tiles; '' where it cannot be followed.

    Parameters
    ----------
    mod : IRModule
    line : str
        As a database's file has it.
    """
    from roller_tvm.relax.database import replay

    try:
        return function_tiles(replay(mod, line).mod["main"])
    except Exception:  # an explanation is not worth a comparison
        return ""


def function_tiles(func: Any) -> str:
    """Blocks as tiles, a nest after the other: those that reduce, or all where none does."""
    blocks = [b for b in placed_blocks(func.body) if b.loops and not b.name.endswith(_INIT)]
    chosen = [b for b in blocks if b.reduces] or blocks
    return "; ".join(text for text in map(_block, chosen) if text)


def _block(block: PlacedBlock) -> str:
    names = [str(v.var.name) for v in block.block.iter_vars]
    outputs = sum(int(v.iter_type) != REDUCTION for v in block.block.iter_vars)
    loops = [_loop(block, loop) for loop in block.loops]
    stage = LoopStage(block.name.removesuffix(_UPDATE), "compute", loops, spatial=outputs)
    limits = [int(loop.annotations[_UNROLL]) for loop in block.loops if _UNROLL in loop.annotations]
    if limits:
        stage.pragma["auto_unroll_max_step"] = max(limits)
    return nest_tiles(stage, names)


def _loop(block: PlacedBlock, loop: PlacedLoop) -> Loop:
    """A loop by the parts of the block's axes that it walks."""
    parts = []
    for axis, places in enumerate(block.moves([loop])):
        seen = np.unique(places)
        if len(seen) > 1:
            parts.append(Part(axis, len(seen), int(np.diff(seen).min())))
    return Loop(loop.extent, tuple(parts), _KINDS.get(loop.kind, loop.kind))
