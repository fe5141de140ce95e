"""Schedule steps: the printable list that a plan is lowered to.

A step names a stage and its loops by *our* names, so the same list drives a ``te.Schedule``, an Ansor
``State`` and, on the Relax line, a TensorIR schedule. Loops of a stage start out under the names of its
source axes (``Axis.part_of`` names the source if an axis is a part). A cache-read stage's loops are
``d0, d1, ...``; a cache-write stage takes over the loops of its source stage.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar


@dataclass(frozen=True)
class Step:
    """Base of all steps: prints as a call, round-trips through JSON."""

    op: ClassVar[str] = ""
    stage: str

    def __str__(self) -> str:
        args = ", ".join(_show(getattr(self, f.name)) for f in fields(self))
        return f"{self.op}({args})"

    def to_json(self) -> list[Any]:
        return [self.op, *(list(v) if isinstance(v := getattr(self, f.name), tuple) else v for f in fields(self))]


class TensorIrStep(Step):
    """Base of steps that TE schedule primitives and States cannot express (see ``tensor_steps``)."""


@dataclass(frozen=True)
class Split(Step):
    """``axis`` -> ``names`` (outermost first); ``lengths`` are the extents of all but the outermost.

    ``for i in N``  ->  ``for names[0] in ceil(N / prod(lengths)): for names[1] in lengths[0]: ...``
    """

    op: ClassVar[str] = "split"
    axis: str
    lengths: tuple[int, ...]
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.names) != len(self.lengths) + 1 or not self.lengths:
            raise ValueError(f"split of {self.stage}.{self.axis}: {len(self.lengths)} lengths need "
                             f"{len(self.lengths) + 1} names (got {self.names})")


@dataclass(frozen=True)
class Fuse(Step):
    """Adjacent loops ``axes`` (outermost first) -> one loop ``name``."""

    op: ClassVar[str] = "fuse"
    axes: tuple[str, ...]
    name: str


@dataclass(frozen=True)
class Reorder(Step):
    """All loops of the stage in a new order, outermost first."""

    op: ClassVar[str] = "reorder"
    axes: tuple[str, ...]


@dataclass(frozen=True)
class Bind(Step):
    """``axis`` runs on 'blockIdx.x', 'threadIdx.x' or as 'vthread'."""

    op: ClassVar[str] = "bind"
    axis: str
    thread: str


@dataclass(frozen=True)
class Vectorize(Step):
    op: ClassVar[str] = "vectorize"
    axis: str


@dataclass(frozen=True)
class Unroll(Step):
    op: ClassVar[str] = "unroll"
    axis: str


@dataclass(frozen=True)
class Parallel(Step):
    op: ClassVar[str] = "parallel"
    axis: str


@dataclass(frozen=True)
class UnrollLimit(Step):
    """TVM's ``auto_unroll_max_step`` on ``axis``: loops of up to ``steps`` bodies are unrolled."""

    op: ClassVar[str] = "unroll_limit"
    axis: str
    steps: int


@dataclass(frozen=True)
class ComputeAt(Step):
    """Compute the stage inside loop ``axis`` of ``target``."""

    op: ClassVar[str] = "compute_at"
    target: str
    axis: str


@dataclass(frozen=True)
class Inline(Step):
    op: ClassVar[str] = "inline"


@dataclass(frozen=True)
class CacheRead(Step):
    """``name`` = a copy of tensor ``stage`` in ``scope``, read by ``readers``."""

    op: ClassVar[str] = "cache_read"
    scope: str
    readers: tuple[str, ...]
    name: str


@dataclass(frozen=True)
class Pack(Step):
    """Lay tensor ``stage``, a constant or a copy, out in the order in which ``reader`` goes through it.

    A constant is laid out when the module is built.

    Dimension k of the new layout is a digit of length ``lengths[k]`` of the index along dimension ``dims[k]``;
    digits of one dimension stand in order, the most significant first. Where they make up more than the dimension
    has, the rest is zeros (constants alone).

    ``w[o, i]``  ->  ``w.packed[o // 16, i, o % 16]`` for dims (0, 1, 0), lengths (O / 16, I, 16)
    """

    op: ClassVar[str] = "pack"
    reader: str
    dims: tuple[int, ...]
    lengths: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.dims) != len(self.lengths):
            raise ValueError(f"pack of {self.stage}: {len(self.dims)} dimensions need as many lengths "
                             f"(got {self.lengths})")

    def digits(self) -> tuple[tuple[int, int, int], ...]:
        """Return (old dimension, divisor of its index, length of the digit) for each new dimension.

        Examples
        --------
        >>> Pack("w", "C", (0, 1, 0), (4, 8, 16)).digits()
        ((0, 16, 4), (1, 1, 8), (0, 1, 16))
        """
        below: dict[int, int] = {}
        found = []
        for dim, length in zip(reversed(self.dims), reversed(self.lengths), strict=True):
            found.append((dim, below.get(dim, 1), length))
            below[dim] = below.get(dim, 1) * length
        return tuple(reversed(found))


@dataclass(frozen=True)
class CacheWrite(Step):
    """``name`` takes over the computation of ``stage`` in ``scope``; ``stage`` becomes the copy out."""

    op: ClassVar[str] = "cache_write"
    scope: str
    name: str


@dataclass(frozen=True)
class StorageAlign(Step):
    """Rows of the stage's buffer along ``axis`` start at multiples of ``factor`` plus ``offset`` elements."""

    op: ClassVar[str] = "storage_align"
    axis: str
    factor: int
    offset: int


@dataclass(frozen=True)
class RFactor(Step):
    """Reduction loop ``axis`` becomes dimension ``position`` of the new stage ``name``."""

    op: ClassVar[str] = "rfactor"
    axis: str
    position: int
    name: str


STEPS: dict[str, type[Step]] = {
    c.op: c for c in (Split, Fuse, Reorder, Bind, Vectorize, Unroll, Parallel, UnrollLimit, ComputeAt, Inline,
                      CacheRead, CacheWrite, Pack, StorageAlign, RFactor)
}  # fmt: skip


def _show(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(map(str, value)) + "]"
    return str(value)


def step_from_json(data: Sequence[Any]) -> Step:
    """Return the step that ``Step.to_json`` wrote; raises ``ValueError`` for an unknown step."""
    op, *args = data
    if op not in STEPS:
        raise ValueError(f"unknown schedule step '{op}' (known: {', '.join(STEPS)})")
    make: Callable[..., Step] = STEPS[op]
    return make(*(tuple(a) if isinstance(a, list) else a for a in args))


def render(steps: Sequence[Step]) -> str:
    """Return the steps as text, one per line.

    Examples
    --------
    >>> print(render([Split("C", "i", (8,), ("i.0", "i.1")), Parallel("C", "i.0")]))
    split(C, i, [8], [i.0, i.1])
    parallel(C, i.0)
    """
    return "\n".join(map(str, steps))
