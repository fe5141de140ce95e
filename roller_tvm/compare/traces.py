"""MetaSchedule's records as tiles, read without TVM: the loops that a trace leaves of the block that it tiles."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from roller_tvm.compare.tiles import nest_tiles
from roller_tvm.replay.state import Loop, LoopStage, Part

#: Of a block: names of its axes, and how many of them are its outputs'.
Axes = Mapping[str, tuple[Sequence[str], int]]


def trace_tiles(axes: Axes, line: str) -> str:
    """A record as tiles, a tiled block after the other; '' where its trace cannot be followed.

    Parameters
    ----------
    axes : mapping
        Block -> names of its axes, those that are reduced last, and the number of the others.
    line : str
        The record, as a database's file has it.

    Examples
    --------
    >>> trace = [["GetSBlock", [], ["C", "main"], ["b0"]], ["GetLoops", ["b0"], [], ["l1", "l2"]],
    ...          ["SamplePerfectTile", ["l1"], [2, 64], ["v3", "v4"]],
    ...          ["Split", ["l1", "v3", "v4"], [True, False], ["l5", "l6"]], ["Parallel", ["l5"], [], []]]
    >>> line = json.dumps([[trace, [[2, [4, 16]]]], [1.0], {}, []])
    >>> trace_tiles({"C": (["i", "k"], 1)}, line)
    'C: parallel(i=4) core(i=16) i=4x16'
    """
    try:
        instructions, decisions = json.loads(line)[0]
        followed = _Followed(axes, {int(n): value for n, value in decisions})
        for number, (kind, inputs, attributes, outputs) in enumerate(instructions):
            followed.step(number, kind, inputs, attributes, outputs)
        return "; ".join(text for stage, names in followed.nests() if (text := nest_tiles(stage, names)))
    except (ValueError, KeyError, IndexError, TypeError):
        return ""


class _Followed:
    """What a trace's variables stand for."""

    def __init__(self, axes: Axes, decisions: Mapping[int, Any]) -> None:
        self.axes, self.decisions = axes, decisions
        self.blocks: dict[str, str] = {}  # variable -> block
        self.loops: dict[str, Loop] = {}  # variable -> loop
        self.order: dict[str, list[str]] = {}  # block -> variables of its loops, from outside to inside
        self.numbers: dict[str, Any] = {}  # variable -> what was sampled
        self.unrolled: dict[str, int] = {}  # loop -> limit

    def step(self, number: int, kind: str, inputs: list[Any], attributes: list[Any], outputs: list[str]) -> None:
        """One instruction; those that change no loop of a tiled block are passed over."""
        if kind == "GetSBlock" or kind == "GetBlock":
            self.blocks[outputs[0]] = attributes[0]
        elif kind == "GetLoops":
            self._get_loops(self.blocks.get(inputs[0], ""), outputs)
        elif kind.startswith("Sample"):
            found = self.decisions.get(number)
            if kind == "SampleCategorical":
                self.numbers[outputs[0]] = attributes[0][found]
            elif isinstance(found, list):
                self.numbers.update(zip(outputs, found, strict=True))
        elif kind == "Split" and inputs[0] in self.loops:
            self._split(inputs[0], [self._number(n) for n in inputs[1:]], outputs)
        elif kind == "Reorder":
            self._reorder(inputs)
        elif kind == "Fuse" and all(name in self.loops for name in inputs):
            self._fuse(inputs, outputs[0])
        elif kind in ("Parallel", "Vectorize", "Unroll") and inputs[0] in self.loops:
            self._bind(inputs[0], kind.lower())
        elif kind == "Bind" and inputs[0] in self.loops:
            self._bind(inputs[0], str(attributes[0]))
        elif kind == "Annotate" and attributes[0] == "pragma_auto_unroll_max_step":
            self.unrolled[inputs[0]] = int(self._number(inputs[1]))

    def nests(self) -> list[tuple[LoopStage, list[str]]]:
        """Blocks whose loops were split, as stages."""
        found = []
        for block, names in self.order.items():
            stage = LoopStage(block, "compute", [self.loops[n] for n in names], spatial=self.axes[block][1])
            if any(n in self.unrolled for n in names):
                stage.pragma["auto_unroll_max_step"] = max(self.unrolled.get(n, 0) for n in names)
            if len(names) > len(self.axes[block][0]) or any(lp.binding for lp in stage.loops):
                found.append((stage, list(self.axes[block][0])))
        return found

    def _number(self, value: Any) -> Any:
        return self.numbers.get(value, value) if isinstance(value, str) else value

    def _get_loops(self, block: str, outputs: list[str]) -> None:
        if block in self.axes and block not in self.order:
            self.order[block] = list(outputs)
            self.loops |= {name: Loop(0, (Part(n, 0, 1),)) for n, name in enumerate(outputs)}
            return
        # Blocks that were found by walking have no name: the one that has as many loops is meant.
        same = [b for b, names in self.order.items() if len(names) == len(outputs)]
        if same and (not block or block in same):
            block = block or same[0]
            self.loops |= {new: self.loops[old] for new, old in zip(outputs, self.order[block], strict=True)}
            self.order[block] = list(outputs)

    def _split(self, name: str, factors: list[int], outputs: list[str]) -> None:
        (part,) = self.loops[name].parts  # what is split has not been fused
        for n, (new, factor) in enumerate(zip(outputs, factors, strict=True)):
            stride = part.stride * prod(factors[n + 1 :])
            self.loops[new] = Loop(factor, (Part(part.axis, factor, stride),))
        self._replace([name], outputs)

    def _reorder(self, names: list[str]) -> None:
        for order in self.order.values():
            places = sorted(order.index(n) for n in names if n in order)
            if len(places) == len(names):
                for place, name in zip(places, names, strict=True):
                    order[place] = name

    def _fuse(self, names: list[str], new: str) -> None:
        loops = [self.loops[n] for n in names]
        self.loops[new] = Loop(prod(lp.extent for lp in loops), tuple(p for lp in loops for p in lp.parts))
        self._replace(names, [new])

    def _bind(self, name: str, binding: str) -> None:
        loop = self.loops[name]
        self.loops[name] = Loop(loop.extent, loop.parts, binding)

    def _replace(self, old: list[str], new: list[str]) -> None:
        for block, order in self.order.items():
            if old[0] in order:
                at = order.index(old[0])
                self.order[block] = [*order[:at], *new, *(n for n in order[at:] if n not in old)]
