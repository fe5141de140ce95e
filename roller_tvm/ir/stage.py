"""A stage of a tensor expression: its axes, the tensors that it reads by affine maps, its arithmetic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

from .affine import Index

SPATIAL, REDUCE = "spatial", "reduce"
DTYPE_BYTES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int16": 2,
    "int8": 1, "uint64": 8, "uint32": 4, "uint16": 2, "uint8": 1, "bool": 1,
}  # fmt: skip
COMBINERS = ("sum", "max", "min", "prod", "other")
#: Kinds of arithmetic that are special functions. 'exp': exp, erf, tanh and sigmoid if CPU kernels compute them in
#: vectors; 'sqrt': square root and its reciprocal; 'special': all others, which a CPU calls for each element.
FUNCTIONS = ("exp", "sqrt", "special")
#: Arithmetic: (kind, count).
Ops = tuple[tuple[str, int], ...]


def total_of(*several: Ops) -> Ops:
    """Return the counts added up by kind.

    Examples
    --------
    >>> total_of((("add", 1), ("exp", 1)), (("exp", 2),))
    (('add', 1), ('exp', 3))
    """
    counts: Counter[str] = Counter()
    for ops in several:
        counts.update(dict(ops))
    return tuple(counts.items())


def dtype_bytes(dtype: str) -> int:
    """Return the bytes of one element; raises ``ValueError`` for a dtype that cannot be planned."""
    try:
        return DTYPE_BYTES[dtype]
    except KeyError:
        raise ValueError(f"dtype '{dtype}' is not one of {', '.join(DTYPE_BYTES)}") from None


@dataclass(frozen=True)
class Axis:
    """One iteration axis.

    Parameters
    ----------
    name : str
    extent : int
        Number of iterations.
    kind : {'spatial', 'reduce'}
    part_of : tuple (source axis, stride) or None
        Set if the axis is a part of an axis of the source program: ``source = sum(part * stride)``.
        An access such as ``data[ic // 16, ic % 16]`` becomes affine over the parts of ``ic``.
    fused_of : tuple of (source axis, extent)
        Set if several neighbouring axes of the source program were fused into this one; outermost first.
    """

    name: str
    extent: int
    kind: str = SPATIAL
    part_of: tuple[str, int] | None = None
    fused_of: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in (SPATIAL, REDUCE):
            raise ValueError(f"axis '{self.name}': kind must be 'spatial' or 'reduce' (got '{self.kind}')")
        if not isinstance(self.extent, int) or self.extent < 1:
            raise ValueError(f"axis '{self.name}': extent must be a positive integer (got {self.extent!r})")

        if self.fused_of and (self.part_of or prod(e for _, e in self.fused_of) != self.extent):
            raise ValueError(f"axis '{self.name}': {self.extent} iterations are not {self.fused_of} fused")

    @property
    def is_reduce(self) -> bool:
        return self.kind == REDUCE

    def is_box(self, extent: int) -> bool:
        """Return whether tiles of `extent` are boxes of the axes that were fused: one point, or whole rows.

        A part of one row is a box too, but TVM cannot derive its region.

        Examples
        --------
        >>> fused = Axis("h*w", 48, fused_of=(("h", 6), ("w", 8)))
        >>> [e for e in (1, 4, 6, 8, 12, 16, 24, 48) if fused.is_box(e)]
        [1, 8, 16, 24, 48]
        """
        lengths = [length for _, length in self.fused_of if length > 1]
        for length in reversed(lengths[1:]):
            if extent == 1 or extent % length:
                return extent == 1
            extent //= length
        return True

    def to_json(self) -> list[Any]:
        data: list[Any] = [self.name, self.extent, self.kind, self.part_of and list(self.part_of)]
        return [*data, [list(loop) for loop in self.fused_of]] if self.fused_of else data

    @classmethod
    def from_json(cls, data: Sequence[Any]) -> Axis:
        name, extent, kind, part, *fused = data
        loops = tuple((n, e) for n, e in fused[0]) if fused else ()
        return cls(name, extent, kind, (part[0], part[1]) if part else None, loops)

    def __str__(self) -> str:
        return f"{self.name}:{self.extent}" + ("r" if self.is_reduce else "")


@dataclass(frozen=True)
class Tensor:
    """A tensor in memory, read or written; ``constant`` marks weights known at build time.

    ``fused_of``: for each dimension, the extents in memory of the dimensions fused into it; empty if none were.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    constant: bool = False
    fused_of: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        dtype_bytes(self.dtype)
        if any(not isinstance(e, int) or e < 1 for e in self.shape):
            raise ValueError(f"tensor '{self.name}': extents must be positive integers (got {self.shape})")
        if self.fused_of and tuple(map(prod, self.fused_of)) != self.shape:
            raise ValueError(f"tensor '{self.name}': {self.shape} is not fused of {self.fused_of}")

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.elements * dtype_bytes(self.dtype)

    def __str__(self) -> str:
        return f"{self.name}{list(self.shape)} {self.dtype}" + (" const" if self.constant else "")


@dataclass(frozen=True)
class Access:
    """A read of a tensor at one index per dimension; ``guarded`` if under a bounds condition."""

    tensor: str
    indices: tuple[Index, ...]
    guarded: bool = False

    def __str__(self) -> str:
        return f"{self.tensor}[{', '.join(map(str, self.indices))}]" + ("?" if self.guarded else "")

    @property
    def axes(self) -> frozenset[str]:
        return frozenset(a for index in self.indices for a in index.axes)

    def substitute(self, inner: Mapping[str, Index]) -> Access:
        return replace(self, indices=tuple(i.substitute(inner) for i in self.indices))

    def to_json(self) -> dict[str, Any]:
        indices = [i.to_json() for i in self.indices]
        return {"tensor": self.tensor, "indices": indices, "guarded": self.guarded}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Access:
        return cls(data["tensor"], tuple(Index.from_json(i) for i in data["indices"]), data["guarded"])


@dataclass(frozen=True)
class Stage:
    """One computation: a tensor defined point by point over its axes.

    Parameters
    ----------
    name : str
        The tensor it produces; unique within the expression.
    axes : tuple of Axis
        Spatial axes (the dimensions of the tensor, in order; parts of one dimension in order), then
        reduction axes.
    reads : tuple of Access
    dtype : str
        Dtype of the tensor produced.
    ops : tuple of (kind, count)
        Arithmetic per iteration point: 'fma', 'mul', 'add', 'div', 'cmp', 'cast', and ``FUNCTIONS``. A multiply that
        feeds the reduction's add is one 'fma'. Values that stay the same along the innermost loops (the reduction,
        or the last axis) are not counted.
    combiner : str
        '' for a stage without reduction, else one of 'sum', 'max', 'min', 'prod', 'other'.
    results : int
        Number of tensors that it produces at once (argmax with its maximum, sum and sum of squares). They share one
        name here, and the dtype of the first.
    initial : bool
        The reduction starts from a value that the operator gives: it must not be computed in parts.
    uneven : tuple of str
        Output axes on which the length of the reduction depends (adaptive pooling). The reduction axes have the
        largest length here, and stay separate loops inside of these axes.
    """

    name: str
    axes: tuple[Axis, ...]
    reads: tuple[Access, ...]
    dtype: str = "float32"
    ops: Ops = ()
    combiner: str = ""
    results: int = 1
    initial: bool = False
    uneven: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names = [a.name for a in self.axes]
        if len(set(names)) != len(names):
            raise ValueError(f"stage '{self.name}': axis names must differ (got {names})")
        kinds = [a.is_reduce for a in self.axes]
        if kinds != sorted(kinds):
            raise ValueError(f"stage '{self.name}': spatial axes come before reduction axes")
        if any(kinds) != bool(self.combiner):
            raise ValueError(f"stage '{self.name}': combiner goes with reduction axes, not '{self.combiner}'")
        if self.combiner and self.combiner not in COMBINERS:
            raise ValueError(f"stage '{self.name}': combiner '{self.combiner}' is not one of {COMBINERS}")
        if self.results < 1:
            raise ValueError(f"stage '{self.name}': it must produce at least one result (got {self.results})")
        for access in self.reads:
            if stray := access.axes - set(names):
                raise ValueError(f"stage '{self.name}': {access} uses axes {sorted(stray)} it does not have")
        dtype_bytes(self.dtype)

    @cached_property
    def spatial(self) -> tuple[Axis, ...]:
        return tuple(a for a in self.axes if not a.is_reduce)

    @cached_property
    def reduce(self) -> tuple[Axis, ...]:
        return tuple(a for a in self.axes if a.is_reduce)

    @property
    def indivisible(self) -> bool:
        """True if TVM's rules forbid to compute the reduction in parts and combine them."""
        return self.initial or bool(self.uneven)

    @cached_property
    def extents(self) -> dict[str, int]:
        return {a.name: a.extent for a in self.axes}

    @cached_property
    def points(self) -> int:
        return prod(a.extent for a in self.axes)

    @cached_property
    def output_elements(self) -> int:
        return prod(a.extent for a in self.spatial)

    def is_box(self, tile: Sequence[int]) -> bool:
        """Return whether TVM finds the region of a tile exactly, in the loops of the source.

        Fused axes need whole rows (``Axis.is_box``). If one part of a split axis is tiled, all its later parts
        must be whole; otherwise the tile has gaps.

        Examples
        --------
        >>> halves = (Axis("c.o", 4, part_of=("c", 8)), Axis("c.i", 8, part_of=("c", 1)))
        >>> stage = Stage("s", halves, ())
        >>> stage.is_box((1, 4)), stage.is_box((2, 8)), stage.is_box((2, 4))
        (True, True, False)
        """
        tiled: str | None = None  # the source of which a part before was tiled
        for axis, extent in zip(self.axes, tile, strict=True):
            source = axis.part_of[0] if axis.part_of else None
            if not axis.is_box(extent) or (source is not None and source == tiled and extent < axis.extent):
                return False
            if source != tiled or source is None:
                tiled = source if extent > 1 else None
        return True

    def ops_of(self, kind: str) -> int:
        return dict(self.ops).get(kind, 0)

    @property
    def functions(self) -> Ops:
        """The entries of `ops` that are special functions (`FUNCTIONS`)."""
        return tuple((kind, n) for kind, n in self.ops if kind in FUNCTIONS)

    @cached_property
    def flops_per_point(self) -> int:
        """Floating-point operations per iteration point; a fused multiply-add counts as two."""
        return sum(n * (2 if kind == "fma" else 1) for kind, n in self.ops if kind != "cast")

    @cached_property
    def flops(self) -> int:
        return self.points * self.flops_per_point

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Extents of the tensor's dimensions; the parts of one source axis count as one dimension."""
        dims: list[tuple[str, int]] = []
        for a in self.spatial:
            source = a.part_of[0] if a.part_of else a.name
            if a.part_of and dims and dims[-1][0] == source:
                dims[-1] = (source, dims[-1][1] * a.extent)
            else:
                dims.append((source, a.extent))
        return tuple(e for _, e in dims)

    def write(self) -> Access:
        """Return the stage's write as an access over its own spatial axes (one index per dimension)."""
        return self._write

    @cached_property
    def _write(self) -> Access:
        dims: list[tuple[str, dict[str, int]]] = []
        for a in self.spatial:
            source, stride = a.part_of or (a.name, 1)
            if a.part_of and dims and dims[-1][0] == source:
                dims[-1][1][a.name] = stride
            else:
                dims.append((source, {a.name: stride}))
        return Access(self.name, tuple(Index.of(terms) for _, terms in dims))

    def varying(self, index: Index) -> Index:
        """Return an index without the axes of extent 1, which are always 0."""
        return index.without(self._alone)

    @cached_property
    def _alone(self) -> frozenset[str]:
        return frozenset(a.name for a in self.axes if a.extent == 1)

    def __str__(self) -> str:
        ops = " ".join(f"{n}*{k}" for k, n in self.ops)
        reads = ", ".join(map(str, self.reads))
        how = f"{self.combiner} " if self.combiner else ""
        several = f" x {self.results}" if self.results > 1 else ""
        return f"{self.name}({', '.join(map(str, self.axes))}) {self.dtype}{several} = {how}{{{ops}}} of {reads}"
