"""A scheduled function as integer sets: statements with domains, accesses and places in time; buffers with shapes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from .sets import library

#: Kinds of loops whose trips run at the same time, and those of a block's threads.
BLOCK, THREAD, PARALLEL, VECTOR, SERIAL = "block", "thread", "parallel", "vectorize", "serial"


@dataclass(frozen=True)
class Dim:
    """One digit of a loop around a statement, mostly the whole of it.

    Parameters
    ----------
    number : int
        Among all dimensions.
    name, kind : str
        Of the loop.
    extent : int
        0 if it is not a number.
    loop, stride : int
        The loop's number, and how far the loop goes from one value of the digit to the next.
    """

    number: int
    name: str
    kind: str
    extent: int = 0
    loop: int = 0
    stride: int = 1

    @property
    def var(self) -> str:
        """Its name in isl's notation."""
        return f"i{self.number}"


def value_of(dims: Sequence[Dim], letter: str = "i") -> str:
    """Return the value of a loop in isl's notation.

    Examples
    --------
    >>> value_of([Dim(0, "x", SERIAL, 4, 0, 8), Dim(1, "x", SERIAL, 8)])
    '(8*i0 + i1)'
    """
    told = " + ".join(f"{f'{d.stride}*' if d.stride > 1 else ''}{letter}{d.number}" for d in dims)
    return f"({told})" if len(dims) > 1 else told


@dataclass(frozen=True)
class Axis:
    """A loop, or the threads, that go along a tile with others (``Fold``).

    Parameters
    ----------
    var : int
        Hash of its variable.
    name : str
    dims : tuple of Dim
        Its digits elsewhere.
    factor, extent : int
        How far it goes from one trip to the next, and how many there are.
    """

    var: int
    name: str
    dims: tuple[Dim, ...]
    factor: int
    extent: int


@dataclass(frozen=True)
class Fold:
    """Loops and threads of a statement that are one number there: ``trip * threads + thread``.

    Parameters
    ----------
    dims : tuple of Dim
        Digits of the number, the outermost first.
    axes : tuple of Axis
        The loops, that of the smallest factor first.
    """

    dims: tuple[Dim, ...]
    axes: tuple[Axis, ...]

    def value(self, axis: Axis, letter: str) -> str:
        """Return the trip of one of the loops in isl's notation."""
        told = value_of(self.dims, letter)
        return f"(floor(({told})/{axis.factor}) mod {axis.extent})"

    def trip(self, axis: Axis, values: Sequence[int]) -> int:
        """Return the trip of one of the loops from the values of the digits."""
        number = sum(dim.stride * value for dim, value in zip(self.dims, values, strict=True))
        return number // axis.factor % axis.extent


@dataclass(frozen=True)
class Buffer:
    """Memory: `dims` are the loops around its allocation, () for a parameter."""

    number: int
    name: str
    shape: tuple[str, ...]  # in isl's notation
    scope: str
    dims: tuple[Dim, ...] = ()
    parameter: bool = False
    bytes: int = 0  # of all elements, 0 if the shape is open

    @property
    def space(self) -> str:
        return f"B{self.number}"


def dims_of(dims: Iterable[Dim], of_one_block: bool) -> list[Dim]:
    """Return dimensions; of what one block alone does, without those that are blocks."""
    return [dim for dim in dims if not (of_one_block and dim.kind == BLOCK)]


@dataclass(frozen=True)
class Access:
    """A read or a write of a statement.

    Parameters
    ----------
    buffer : Buffer
    elements : isl.Map
        Statement -> elements.
    homes : isl.Map
        Statement -> loops around the allocation, then elements: another allocation is another home.
    write : bool
    exact : bool
        False if `elements` holds more than is accessed: an index or a condition was not affine.
    text : str
        The access as TVM prints it, or the part that is not affine.
    open : bool
        True if only a condition around a read is not affine: `elements` are those that may be read.
    way : tuple of str
        Operations between a read and the value that the statement stores, the outermost first.
    near : isl.Map, optional
        `homes` for numbers between begins of tiles, too (``begins.py``).
    blocks : tuple of int, optional
        Dimensions of the statement that are blocks, if each block accesses the same elements of memory of its own,
        whichever the sizes are.
    inside : bool
        Whether ranges of loops alone tell that it is within the buffer.
    """

    buffer: Buffer
    elements: Any
    homes: Any
    write: bool
    exact: bool
    text: str
    open: bool = False
    way: tuple[str, ...] = ()
    near: Any = None
    blocks: tuple[int, ...] | None = None
    inside: bool = False

    @cached_property
    def of_one_block(self) -> Any:
        """`homes` of one block, without the dimensions that are blocks, and without sizes; None if blocks differ."""
        if self.blocks is None:
            return None
        found, isl = self.homes, library()
        for n in reversed(self.blocks):
            found = found.project_out(isl.dim_type.in_, n, 1)
        for n in reversed([n for n, dim in enumerate(self.buffer.dims) if dim.kind == BLOCK]):
            found = found.project_out(isl.dim_type.out, n, 1)
        found = found.project_out(isl.dim_type.param, 0, found.dim(isl.dim_type.param))
        names = (self.homes.get_tuple_name(kind) for kind in (isl.dim_type.in_, isl.dim_type.out))
        return found.set_tuple_name(isl.dim_type.in_, next(names)).set_tuple_name(isl.dim_type.out, next(names))


@dataclass(frozen=True)
class Statement:
    """A store, a barrier or a reduction over threads.

    Parameters
    ----------
    place : tuple of int or Dim
        From the outside: the loops around it, and its number in each sequence.
    domain : isl.Set
    update : str
        What combines the value with the element that it replaces: 'Add', 'Max', 'other', ...; '' if nothing does.
    numbers : frozenset of (str, tuple of str)
        The constants in its value, each with its way.
    chosen : tuple of (str, tuple of str, isl.Set, bool)
        Constants of a choice by conditions: each one's way, its iterations, and whether these are exact.
    folds : tuple of Fold
        Loops and threads of its place that are digits of other numbers.
    tree : Tree
        Its value as operations on its reads (``meetings.py``).
    instance : Instance or None
        The instances of a block that it computes (``matching.py``).
    adds : (str, int), optional
        Of a statement that combines a value that it reads, as it is, with its element or with those of other threads:
        the operation, and the number of the read.
    meets : bool
        Whether it is a reduction over threads.
    alike : bool
        Whether all blocks have the same iterations of it, whichever the sizes are.
    issued : bool
        Whether it issues a copy that runs ahead: nobody may read the element until the copy has arrived.
    """

    number: int
    place: tuple[int | Dim, ...]
    domain: Any
    accesses: tuple[Access, ...]
    text: str
    update: str = ""
    barrier: bool = False
    exact: bool = True
    issued: bool = False
    numbers: frozenset[tuple[str, tuple[str, ...]]] = frozenset()
    chosen: tuple[tuple[str, tuple[str, ...], Any, bool], ...] = ()
    folds: tuple[Fold, ...] = ()
    tree: Any = None
    instance: Any = None
    adds: tuple[str, int] | None = None
    meets: bool = False
    alike: bool = False

    @cached_property
    def dims(self) -> tuple[Dim, ...]:
        """The dimensions of its space: those of its place, or of folds instead."""
        kept = tuple(p for p in self.place if isinstance(p, Dim) and p not in self.folded)
        return (*kept, *(dim for fold in self.folds for dim in fold.dims))

    def value(self, dim: Dim, letter: str) -> str:
        """Return the trip of a loop, whose one digit is a dimension of the place, in isl's notation."""
        fold, axis = self.folded.get(dim, (None, None))
        return f"{letter}{dim.number}" if fold is None or axis is None else fold.value(axis, letter)

    def thread(self, name: str, kind: str, letter: str) -> str:
        """Return the value of a thread, or a block, in isl's notation; '' if there is none."""
        dims = [p for p in self.place if isinstance(p, Dim) and p.kind == kind and p.name == name]
        return self.value(dims[0], letter) if dims and dims[0] in self.folded else value_of(dims, letter)

    @cached_property
    def folded(self) -> dict[Dim, tuple[Fold, Axis]]:
        """Dimensions of its place that are in a fold."""
        return {dim: (fold, axis) for fold in self.folds for axis in fold.axes for dim in axis.dims}

    @property
    def space(self) -> str:
        return f"S{self.number}"

    @property
    def write(self) -> Access | None:
        return next((a for a in self.accesses if a.write), None)

    @property
    def reads(self) -> tuple[Access, ...]:
        return tuple(a for a in self.accesses if not a.write)


@dataclass
class Kernel:
    """A function: its statements in order and its buffers; `context` bounds its parameters, `told` are its sizes."""

    statements: list[Statement] = field(default_factory=list)
    buffers: list[Buffer] = field(default_factory=list)
    parameters: dict[str, str] = field(default_factory=dict)  # isl's name -> TVM's
    context: str = ""
    told: str = ""
    case: list[str] = field(default_factory=list)  # conditions on sizes by which it is chosen
    never: bool = False  # whether no sizes are so
    unread: list[str] = field(default_factory=list)  # what the reader does not know
    #: Values that are the same whichever the elements in them are.
    vanishing: list[str] = field(default_factory=list)
    vectors: list[str] = field(default_factory=list)  # indices of vectors that are written out
    #: Memory of which trips of parallel loops write elements again: number -> where. Those that are read, too.
    again: dict[int, str] = field(default_factory=dict)
    reread: set[int] = field(default_factory=set)
    #: A store, a statement and the number of its access, which do not race.
    apart: set[tuple[int, int, int]] = field(default_factory=set)
    #: Those that do -> the pairs of iterations, and the kind of loop at whose trips they run.
    meeting: dict[tuple[int, int, int], tuple[Any, str]] = field(default_factory=dict)
    #: Threads of a block where these and blocks are one number.
    threads: int = 1
    #: Ranges of loops in isl's notation.
    ranges: dict[Dim, str] = field(default_factory=dict)
    #: Statements that copy an element as it is.
    copies: set[int] = field(default_factory=set)
    #: Those of the function before its schedule (``Blocks``).
    blocks: Any = None
    #: What barriers separate, once asked for (``Walls``).
    walls: Any = None
