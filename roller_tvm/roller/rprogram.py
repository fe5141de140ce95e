"""rProgram and Plan: the output of construction and the input of lowering, as plain values.

An rProgram (Roller, section 3.2) is one loop nest, which is one kernel on a GPU: an rTile per memory
level, with Load, Compute and Store between the levels. A Plan is the rPrograms of one operator, in
the order in which they run: most operators need one, a split reduction or a softmax more.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil, prod
from typing import Any

from ..ir import Stage, TensorExpression
from ..ir.split import split_reduction
from .rtile import RTile, pairs

PLAN_VERSION = 1

#: Names of the recipes, which map a nest onto a device (``roller_tvm.recipes``).
RECIPE_NAMES = (
    "gpu.tiled", "gpu.tensor", "gpu.direct", "gpu.unrolled", "gpu.rows", "gpu.transpose", "gpu.reduce",
    "cpu.tiled", "cpu.direct", "cpu.axpy", "cpu.window", "cpu.dilated", "cpu.unrolled", "cpu.rows", "cpu.lanes",
    "cpu.stages",
)  # fmt: skip


@dataclass(frozen=True)
class RProgram:
    """One loop nest: a stage, its rTile at each level, and how the nest is mapped onto the device.

    Parameters
    ----------
    recipe : str
        One of ``RECIPE_NAMES``.
    anchor : str
        Stage that the nest computes.
    output : str
        Stage with the outer loops: the last epilogue fused into the nest, or the anchor.
    tiles : tuple of RTile
        From the farthest level (largest tile) to the nearest.
    inlined : tuple of str
        Prologue and epilogue stages computed in place.
    staged : tuple of str
        Tensors kept in shared memory while a block's tile is computed.
    choices : tuple of (key, int)
        Parameters of the recipe beyond tiles: 'vthread:AXIS', 'vector:TENSOR', 'threads', 'unroll', ...; and
        'slice:AXIS', the trips of axes that number the slices (`ir.slices`), where a core takes a slice through all
        nests of the plan.
    """

    recipe: str
    anchor: str
    output: str
    tiles: tuple[RTile, ...]
    inlined: tuple[str, ...] = ()
    staged: tuple[str, ...] = ()
    choices: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "choices", pairs(self.choices))
        if self.recipe not in RECIPE_NAMES:
            raise ValueError(f"recipe must be one of {', '.join(RECIPE_NAMES)} (got '{self.recipe}')")
        for outer, inner in zip(self.tiles, self.tiles[1:], strict=False):
            most = outer.shape
            for axis, extent in inner.extents:
                if extent > most[axis]:
                    raise ValueError(f"{self.anchor}: the {inner.level} tile is larger than the {outer.level} tile "
                                     f"along '{axis}' ({extent} > {most[axis]})")

    def tile(self, level: str) -> RTile:
        for t in self.tiles:
            if t.level == level:
                return t
        raise KeyError(f"{self.anchor}: no rTile at level '{level}' (has {[t.level for t in self.tiles]})")

    @property
    def copies_tiles(self) -> bool:
        """True if operands are copied to shared memory tile by tile; gpu.rows keeps whole rows there instead."""
        return bool(self.staged) and any(t.level == "shared" for t in self.tiles)

    @property
    def slices(self) -> dict[str, int]:
        """Axes that number the slices -> their trips; empty if the nest runs on its own."""
        return self.choices_of("slice")

    def choice(self, key: str, default: int = 0) -> int:
        return dict(self.choices).get(key, default)

    def choices_of(self, prefix: str) -> dict[str, int]:
        """Return the choices of one kind: ``choices_of('vthread')`` maps axis -> virtual threads."""
        start = prefix + ":"
        return {k[len(start):]: v for k, v in self.choices if k.startswith(start)}

    def words(self, whole: bool = False) -> str:
        """Return recipe and tiles in one line; see `Plan.words`."""
        extents = [" ".join(f"{a}={e}" for a, e in t.extents if e > 1) or "1" for t in self.tiles]
        parts = [self.recipe, *(f"{t.level}({own})" for t, own in zip(self.tiles, extents, strict=True))]
        if whole and self.staged:
            parts.append(f"staged({' '.join(self.staged)})")
        return " ".join([*parts, *(f"{k}={v}" for k, v in self.choices if whole)])

    def blocks(self, stage: Stage) -> int:
        """Return the number of outermost tiles that cover the stage's spatial axes."""
        return prod(ceil(a.extent / self.tiles[0][a.name]) for a in stage.spatial)

    def load_compute_store(self, expression: TensorExpression) -> tuple[str, ...]:
        """Return the rProgram in the paper's words: Load, Compute, Store, one line each (section 3.2)."""
        stage = expression.stage(self.anchor)
        lines = []
        for outer, tile in zip(("memory", *(t.level for t in self.tiles)), self.tiles, strict=False):
            what = ", ".join(f"{t}[{n}]" for t, n in tile.input_elements(stage, expression).items())
            lines.append(f"Load {what} {outer} -> {tile.level}")
        lines.append(f"Compute {self.tiles[-1]}")
        lines.append(f"Store {self.output}[{prod(self.tiles[-1][a.name] for a in stage.spatial)}] "
                     f"{self.tiles[-1].level} -> memory")
        return tuple(lines)

    def __str__(self) -> str:
        parts = [f"{self.recipe} {self.anchor}" + (f" -> {self.output}" if self.output != self.anchor else "")]
        parts += [f"  {t}" for t in self.tiles]
        if self.staged:
            parts.append(f"  staged {' '.join(self.staged)}")
        if self.inlined:
            parts.append(f"  inlined {' '.join(self.inlined)}")
        if self.choices:
            parts.append(f"  {' '.join(f'{k}={v}' for k, v in self.choices)}")
        return "\n".join(parts)

    def to_json(self) -> dict[str, Any]:
        return {"recipe": self.recipe, "anchor": self.anchor, "output": self.output,
                "tiles": [t.to_json() for t in self.tiles], "inlined": list(self.inlined),
                "staged": list(self.staged), "choices": [list(c) for c in self.choices]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RProgram:
        return cls(data["recipe"], data["anchor"], data["output"], tuple(map(RTile.from_json, data["tiles"])),
                   tuple(data["inlined"]), tuple(data["staged"]), pairs(data["choices"]))


@dataclass(frozen=True)
class SplitReduction:
    """A reduction axis computed in parts: `parts` blocks of it, or the `lanes` of a vector.

    ``loops`` are the source's loops if several of them were fused into the axis.
    """

    stage: str
    axis: str
    parts: int
    lanes: bool = False
    loops: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "loops", tuple(self.loops))

    def __str__(self) -> str:
        return f"split {self.stage}.{self.axis} in {self.parts} {'lanes' if self.lanes else 'parts'}"

    def apply(self, expression: TensorExpression) -> TensorExpression:
        return split_reduction(expression, self.stage, self.axis, self.parts, self.lanes)

    def to_json(self) -> list[Any]:
        return [self.stage, self.axis, self.parts, self.lanes, *([list(self.loops)] if self.loops else [])]


@dataclass(frozen=True)
class Plan:
    """How one operator runs on one device: its rPrograms in order, and nothing about time.

    ``expression`` is the operator as planned: if a reduction was split, the partial stage is part of
    it (see ``expr.split``).
    """

    expression: TensorExpression
    device: str
    programs: tuple[RProgram, ...]
    split_reductions: tuple[SplitReduction, ...] = ()
    version: int = field(default=PLAN_VERSION)

    def __post_init__(self) -> None:
        if not self.programs:
            raise ValueError(f"a plan of '{self.expression.name}' needs at least one rProgram")
        for program in self.programs:
            stage = self.expression.stage(program.anchor)
            for tile in program.tiles:
                if tile.shape.keys() != stage.extents.keys():
                    raise ValueError(f"rTile {tile} does not name the axes of '{stage.name}': {list(stage.extents)}")

    @property
    def on_tensor_cores(self) -> bool:
        """True if one of its nests multiplies whole matrices."""
        return any(p.recipe == "gpu.tensor" for p in self.programs)

    @property
    def slices(self) -> int:
        """Slices that cores take through all nests; 0 if the nests run one after the other."""
        return prod(self.programs[0].slices.values()) if self.programs[0].slices else 0

    def words(self, whole: bool = False) -> str:
        """Return the plan in one line: slices, recipe and tiles of each nest, without axes of one iteration.

        Parameters
        ----------
        whole : bool
            Whether split reductions, staged inputs and choices are told too, which tell an operator's plans apart.

        Examples
        --------
        >>> from roller_tvm.ir.operators import operator
        >>> tile = RTile("register", (("i0", 4), ("i1", 1)))
        >>> program = RProgram("cpu.direct", "relu", "relu", (tile,), choices=(("vector:i0", 4),))
        >>> plan = Plan(operator("relu", shape=(8, 3)), "cpu", (program,))
        >>> plan.words(), plan.words(whole=True)
        ('cpu.direct register(i0=4)', 'cpu.direct register(i0=4) vector:i0=4')
        """
        split = self.split_reductions if whole else ()
        sliced = f"{self.slices} slices of " if self.slices else ""
        return sliced + " + ".join([*map(str, split), *(p.words(whole) for p in self.programs)])

    def __str__(self) -> str:
        head = f"{self.expression.name} on {self.device}"
        if self.split_reductions:
            head += " " + " ".join(map(str, self.split_reductions))
        return "\n".join([head, *(str(p) for p in self.programs)])

    def to_json(self) -> dict[str, Any]:
        return {"version": self.version, "device": self.device, "expression": self.expression.to_json(),
                "split_reductions": [s.to_json() for s in self.split_reductions],
                "programs": [p.to_json() for p in self.programs]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Plan:
        if data.get("version") != PLAN_VERSION:
            raise ValueError(f"plan version {data.get('version')!r} cannot be read (this is version {PLAN_VERSION}); "
                             "plan the operator again")
        return cls(TensorExpression.from_json(data["expression"]), data["device"],
                   tuple(map(RProgram.from_json, data["programs"])),
                   tuple(SplitReduction(*s) for s in data["split_reductions"]))

    def digest(self) -> str:
        """Return a stable hash of the plan (device, expression, programs; not the operator's name)."""
        data = self.to_json() | {"expression": self.expression.identity()}
        return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]
