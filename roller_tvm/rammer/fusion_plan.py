"""A graph cut into kernels: the operators that are fused, and the predicted gain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..errors import BadInput
from .roperator import RKernel
from .task_program import TaskProgram

FUSION_VERSION = 4


@dataclass(frozen=True)
class Part:
    """Operators that are one kernel, or kernels one after the other.

    Parameters
    ----------
    seconds : float
        Predicted time, launches included.
    sequential_seconds : float
        Predicted time of the operators' fastest kernels one after the other.
    program : TaskProgram or None
        Program of the one kernel; None if the operators stay separate kernels.
    reasons : tuple of str
        Why these rKernels; for operators that stay separate kernels, why they have to.
    plain : tuple of (operator, RKernel)
        The operators' fastest rKernels one by one; if left empty, `kernels`.
    waves : tuple of int
        Breadth-first wave of each operator in the graph; empty if unknown.
    """

    kernels: tuple[tuple[str, RKernel], ...]
    seconds: float
    sequential_seconds: float
    program: TaskProgram | None = None
    reasons: tuple[str, ...] = ()
    plain: tuple[tuple[str, RKernel], ...] = ()
    waves: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.kernels:
            raise ValueError("a part of a graph needs at least one operator")
        if self.seconds > self.sequential_seconds * (1 + 1e-9):
            names = ", ".join(o for o, _ in self.kernels)
            raise ValueError(f"fusing {names} is predicted to be slower than running them one by one")
        if not self.plain:
            object.__setattr__(self, "plain", self.kernels)
        if [o for o, _ in self.plain] != [o for o, _ in self.kernels]:
            raise ValueError("'plain' must have the operators of 'kernels', in the same order")

    @property
    def launches(self) -> int:
        return self.program.regions if self.program else sum(len(k.phases) for _, k in self.kernels)

    @property
    def sequential_launches(self) -> int:
        """Number of kernels if the operators run one by one."""
        return sum(len(k.phases) for _, k in self.plain)

    @property
    def launched(self) -> list[list[str]]:
        """Operators that run together: all of a fused part, else one after the other."""
        names = [o for o, _ in self.kernels]
        return [names] if self.program else [[name] for name in names]

    @property
    def by_wave(self) -> dict[int, tuple[str, ...]]:
        """Wave of the graph -> the operators of this part in it."""
        found: dict[int, tuple[str, ...]] = {}
        for (operator, _), wave in zip(self.kernels, self.waves, strict=False):
            found[wave] = (*found.get(wave, ()), operator)
        return dict(sorted(found.items()))

    @property
    def horizontal(self) -> bool:
        """True if its rTasks need not wait for one another: blocks of a plain kernel, without barriers."""
        return self.program is not None and not self.program.waits

    def __str__(self) -> str:
        names = ", ".join(o for o, _ in self.kernels)
        if not self.program:
            return f"{names}: {self.launches} kernels, {self.seconds * 1e6:.1f} us"
        how = "side by side" if self.horizontal else f"{self.program.barriers} barriers"
        return (f"{names}: one kernel of {self.program.tasks} rTasks on {self.program.used} vEUs, {how}, "
                f"{self.seconds * 1e6:.1f} us against {self.sequential_seconds * 1e6:.1f} us")

    def to_json(self) -> dict[str, Any]:
        data: dict[str, Any] = {"seconds": self.seconds, "sequential_seconds": self.sequential_seconds,
                                "reasons": list(self.reasons), "waves": list(self.waves)}
        if self.plain != self.kernels:
            data["plain"] = [k.to_json() for _, k in self.plain]
        if self.program:
            return data | {"program": self.program.to_json()}
        return data | {"kernels": [[o, k.to_json()] for o, k in self.kernels]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Part:
        program = TaskProgram.from_json(data["program"]) if "program" in data else None
        kernels = program.kernels if program else tuple((o, RKernel.from_json(k)) for o, k in data["kernels"])
        others = map(RKernel.from_json, data.get("plain", ()))
        plain = tuple((o, k) for (o, _), k in zip(kernels, others, strict=False))
        return cls(kernels, data["seconds"], data["sequential_seconds"], program, tuple(data["reasons"]), plain,
                   tuple(data["waves"]))


@dataclass(frozen=True)
class FusionPlan:
    """The parts of a graph, in an order in which they may run.

    Parameters
    ----------
    peak_bytes, sequential_peak_bytes, limit_bytes : int
        Most bytes of intermediate buffers alive at a time: in this plan, with the operators one by one in the graph's
        order, and the limit of ``memory.MemoryRule``.
    """

    device: str
    policy: str
    launch: str
    parts: tuple[Part, ...]
    peak_bytes: int = 0
    sequential_peak_bytes: int = 0
    limit_bytes: int = 0

    @cached_property
    def seconds(self) -> float:
        return sum(p.seconds for p in self.parts)

    @cached_property
    def sequential_seconds(self) -> float:
        return sum(p.sequential_seconds for p in self.parts)

    @property
    def speedup(self) -> float:
        return self.sequential_seconds / self.seconds if self.seconds else 1.0

    @property
    def launches(self) -> int:
        return sum(p.launches for p in self.parts)

    @cached_property
    def sequential_launches(self) -> int:
        """Number of kernels if all operators run one by one."""
        return sum(p.sequential_launches for p in self.parts)

    def __str__(self) -> str:
        head = (f"{self.launches} kernels instead of {self.sequential_launches} on {self.device} ({self.policy}, "
                f"launched from a {self.launch}): {self.seconds * 1e6:.1f} us against "
                f"{self.sequential_seconds * 1e6:.1f} us predicted, {self.speedup:.2f}x")
        return "\n".join([head, *(f"  {p}" for p in self.parts)])

    def to_json(self) -> dict[str, Any]:
        return {"version": FUSION_VERSION, "device": self.device, "policy": self.policy, "launch": self.launch,
                "bytes": [self.peak_bytes, self.sequential_peak_bytes, self.limit_bytes],
                "parts": [p.to_json() for p in self.parts]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> FusionPlan:
        if data.get("version") != FUSION_VERSION:
            raise BadInput(f"fusion plan of version {data.get('version')!r}, this version reads {FUSION_VERSION}",
                           remedy="plan the graph again")
        parts = tuple(map(Part.from_json, data["parts"]))
        return cls(data["device"], data["policy"], data["launch"], parts, *data["bytes"])
