"""Describe a scheduled function as tiles, whoever scheduled it: from its blocks' loops, not from its trace."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from roller_tvm.codegen.tensorir_packing import constant_parameters
from roller_tvm.compare.theirs import Thought, thought_of, tiles_of
from roller_tvm.compare.tiles import nest_tiles
from roller_tvm.replay.state import Loop, LoopStage, Part
from roller_tvm.roller.features import Features
from roller_tvm.tir.nodes import REDUCTION
from roller_tvm.tir.placed import PlacedBlock, PlacedLoop, placed_blocks

#: Kinds of loops by Ansor's names, which `nest_tiles` knows.
_KINDS = {"serial": "", "vectorized": "vectorize", "unrolled": "unroll"}
#: Suffixes of a decomposed reduction's two blocks: the initial value, and the update.
_INIT, _UPDATE = "_init", "_update"
_UNROLL = "pragma_auto_unroll_max_step"


def record_tiles(mod: Any, line: str, device: Any = None) -> tuple[str, Thought | None]:
    """Return a module's record as tiles, and Roller's model on them; ('', None) if it cannot be followed.

    Parameters
    ----------
    mod : IRModule
    line : str
        Record as in a database's file.
    device : DeviceSpec, optional
    """
    from roller_tvm.relax.database import replay
    from roller_tvm.tir.read import read_prim_func

    told, thought = "", None
    with contextlib.suppress(Exception):  # an explanation is not worth a comparison
        nests = function_nests(replay(mod, line).mod["main"])
        told = "; ".join(text for text in (nest_tiles(stage, names) for stage, names in nests) if text)
        if device is not None:
            # MetaSchedule lays out what it may, as Roller does.
            expression = read_prim_func(mod["main"], constants=constant_parameters(mod["main"])).expression
            # A block's axes have names of their own, in the order of the expression's.
            known = {s.name: [a.name for a in s.axes] for s in expression.stages}
            axes = {s.name: known[s.name] for s, names in nests if len(known.get(s.name, ())) == len(names)}
            if (theirs := tiles_of([stage for stage, _ in nests], axes)) is not None:
                thought = thought_of(expression, device, theirs, Features.of_tensor_ir(device))
    return told, thought


def function_tiles(func: Any) -> str:
    """Return the blocks of a scheduled function as tiles, one nest after the other."""
    return "; ".join(text for text in (nest_tiles(stage, names) for stage, names in function_nests(func)) if text)


def function_nests(func: Any) -> list[tuple[LoopStage, list[str]]]:
    """Return the blocks as stages with the names of their axes: those that reduce, or all if none does."""
    blocks = [b for b in placed_blocks(func.body) if b.loops and not b.name.endswith(_INIT)]
    return [_block(b) for b in [b for b in blocks if b.reduces] or blocks]


def _block(block: PlacedBlock) -> tuple[LoopStage, list[str]]:
    names = [str(v.var.name) for v in block.block.iter_vars]
    outputs = sum(int(v.iter_type) != REDUCTION for v in block.block.iter_vars)
    loops = [_loop(block, loop) for loop in block.loops]
    stage = LoopStage(block.name.removesuffix(_UPDATE), "compute", loops, spatial=outputs)
    limits = [int(loop.annotations[_UNROLL]) for loop in block.loops if _UNROLL in loop.annotations]
    if limits:
        stage.pragma["auto_unroll_max_step"] = max(limits)
    return stage, names


def _loop(block: PlacedBlock, loop: PlacedLoop) -> Loop:
    """Return a loop by the parts of the block's axes that it walks."""
    parts = []
    for axis, places in enumerate(block.moves([loop])):
        seen = np.unique(places)
        if len(seen) > 1:
            parts.append(Part(axis, len(seen), int(np.diff(seen).min())))
    return Loop(loop.extent, tuple(parts), _KINDS.get(loop.kind, loop.kind))
