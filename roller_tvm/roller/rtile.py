"""rTile (Roller, section 3.1): what of a loop nest one instance of a memory level holds at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..ir import Stage, TensorExpression, box, footprint


def pairs(data: Mapping[str, int] | tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
    """Return a mapping, or pairs of JSON, as pairs of a name and an int."""
    return tuple(data.items()) if isinstance(data, Mapping) else tuple([(str(k), int(v)) for k, v in data])


@dataclass(frozen=True)
class RTile:
    """The part of a stage's iterations that one instance of a memory level holds at a time.

    Parameters
    ----------
    level : str
        A memory level of the device ('shared', 'register', 'l1', ...).
    extents : tuple of (axis, extent)
        Every axis of the nest's anchor, in order.
    padding : tuple of (tensor, elements)
        Storage padding of the innermost dimension of a staged tensor, against bank conflicts.
    """

    level: str
    extents: tuple[tuple[str, int], ...]
    padding: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        for key in ("extents", "padding"):
            if not isinstance(data := getattr(self, key), tuple):
                object.__setattr__(self, key, pairs(data))
        for axis, extent in self.extents:
            if extent < 1:
                raise ValueError(f"rTile at '{self.level}': extent of '{axis}' must be positive (got {extent})")

    @cached_property
    def shape(self) -> dict[str, int]:
        return dict(self.extents)

    def __getitem__(self, axis: str) -> int:
        return self.shape[axis]

    def __str__(self) -> str:
        pad = f" pad {{{', '.join(f'{t}+{p}' for t, p in self.padding)}}}" if self.padding else ""
        return f"{self.level}({' '.join(f'{a}={e}' for a, e in self.extents)}){pad}"

    def input_elements(self, stage: Stage, expression: TensorExpression) -> dict[str, int]:
        """Return the number of distinct elements of each tensor that the anchor reads in this tile."""
        result: dict[str, int] = {}
        for access in stage.reads:
            shape = expression.tensors[access.tensor].shape
            result[access.tensor] = max(result.get(access.tensor, 0), footprint(access.indices, self.shape, shape))
        return result

    def storage(self, access_tensor: str, stage: Stage, expression: TensorExpression) -> tuple[int, ...]:
        """Return the extents of the buffer that holds this tile of one input (bounding box, padding included)."""
        shape = expression.tensors[access_tensor].shape
        extents = [1] * len(shape)
        for access in stage.reads:
            if access.tensor == access_tensor:
                extents = [max(a, b) for a, b in zip(extents, box(access.indices, self.shape, shape), strict=True)]
        if extents:
            extents[-1] += dict(self.padding).get(access_tensor, 0)
        return tuple(extents)

    def to_json(self) -> dict[str, Any]:
        return {"level": self.level, "extents": [list(p) for p in self.extents],
                "padding": [list(p) for p in self.padding]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RTile:
        return cls(data["level"], pairs(data["extents"]), pairs(data["padding"]))
