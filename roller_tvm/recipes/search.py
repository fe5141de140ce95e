"""One construction at one eps: its nest, and the candidates rejected on the way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ..device import DeviceSpec
from ..micro_perf.geometry import Geometry, Tile
from ..roller.alignment import Rejection
from ..roller.partition import NestShape
from ..roller.rprogram import RProgram, RTile


@dataclass
class Search:
    """State of one construction: the nest, the device, the padding allowed, and the rejections so far."""

    geometry: Geometry
    device: DeviceSpec
    nest: NestShape
    eps: float
    rejections: list[Rejection] = field(default_factory=list)
    considered: int = 0

    def reject(self, rejection: Rejection | None, candidate: str = "") -> bool:
        """Record a broken rule; return True if there was one."""
        if rejection is None:
            return False
        self.rejections.append(replace(rejection, candidate=candidate))
        return True

    def rtile(self, level: str, tile: Tile, padding: Mapping[str, int] | None = None) -> RTile:
        """Return extents by axis position as an rTile."""
        return RTile(level, tuple(zip(self.geometry.axes, tile, strict=True)), tuple((padding or {}).items()))

    def program(
        self, recipe: str, tiles: tuple[RTile, ...], choices: tuple[tuple[str, int], ...], staged: tuple[str, ...] = ()
    ) -> RProgram:
        """Return an rProgram of this nest."""
        nest = self.nest
        return RProgram(recipe, nest.anchor, nest.output, tiles, nest.inlined, staged, choices)
