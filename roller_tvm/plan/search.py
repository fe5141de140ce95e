"""One construction at one eps: what is planned, and what was rejected on the way."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ..device import DeviceSpec
from ..model.geometry import Geometry
from .align import Rejection
from .partition import NestShape


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
        """Note a broken rule; True if there was one."""
        if rejection is None:
            return False
        self.rejections.append(replace(rejection, candidate=candidate))
        return True
