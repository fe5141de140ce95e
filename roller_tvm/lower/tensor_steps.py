"""Steps that TensorIR alone can carry out: matrix products on tensor cores, pipelines of copies.

A stage becomes a product of matrices (an implicit one, if it is a convolution), whose tiles are given to instructions
of a whole warp. What such an instruction holds is spread over the registers of the warp: a *fragment*.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .steps import STEPS, TensorIrStep


@dataclass(frozen=True)
class Matrices(TensorIrStep):
    """``name`` = the product of matrices that ``stage`` is, in fragments; ``stage`` becomes the copy out of them.

    Loops of the product are ``b, m, n, k``: the stage's own loops of each kind, fused. ``left`` and ``right`` are the
    tensors that it reads; as matrices they are the stages ``left.matrix`` and ``right.matrix``, with rows along m and
    n, or along k where ``left_turned``, ``right_turned``. Each loop is padded to a multiple of ``multiples``.
    """

    op: ClassVar[str] = "matrices"
    left: str
    right: str
    batch: tuple[str, ...]
    m: tuple[str, ...]
    n: tuple[str, ...]
    k: tuple[str, ...]
    left_turned: int
    right_turned: int
    multiples: tuple[int, ...]
    name: str

    def __post_init__(self) -> None:
        if not self.k or len(self.multiples) != 3:
            raise ValueError(f"matrices of {self.stage}: needs reduction loops and three multiples (got {self.k}, "
                             f"{self.multiples})")


@dataclass(frozen=True)
class Tile(TensorIrStep):
    """The loops from ``axis`` inwards become one block, ``name``, for an instruction to take over."""

    op: ClassVar[str] = "tile"
    axis: str
    name: str


@dataclass(frozen=True)
class Fragment(TensorIrStep):
    """The stage's buffer is laid out as fragments of ``rows`` x ``columns``; ``intrinsic`` loads one of them."""

    op: ClassVar[str] = "fragment"
    rows: int
    columns: int
    intrinsic: str = ""


@dataclass(frozen=True)
class StoreAt(TensorIrStep):
    """The stage, a copy out of ``target``, moves inside its loop ``axis``; ``output`` is computed as it is stored."""

    op: ClassVar[str] = "store_at"
    target: str
    axis: str
    output: str


@dataclass(frozen=True)
class StoreVector(TensorIrStep):
    """The elements of loop ``axis``, the innermost, are gathered in registers and stored by one instruction."""

    op: ClassVar[str] = "store_vector"
    axis: str


@dataclass(frozen=True)
class Tensorize(TensorIrStep):
    """Tiles ``tile`` of the stage are computed by ``compute``; ``init`` clears them before loop ``axis``."""

    op: ClassVar[str] = "tensorize"
    axis: str
    tile: str
    init: str
    compute: str


@dataclass(frozen=True)
class UnrollCompiled(TensorIrStep):
    """Loop ``axis`` is left to the compiler of the kernel to unroll, which is told so, as the loops within it are.

    Registers have no addresses: what a loop indexes lives in local memory, unless every turn is written out.
    """

    op: ClassVar[str] = "unroll_compiled"
    axis: str


@dataclass(frozen=True)
class Pipeline(TensorIrStep):
    """Copies in loop ``axis`` run ``stages - 1`` iterations ahead of what reads them, in as many buffers.

    ``asynchronous`` copies go past the registers (cp.async); others are what a compiler makes of a load and a store.
    """

    op: ClassVar[str] = "pipeline"
    axis: str
    copies: int
    stages: int
    asynchronous: int


STEPS.update({c.op: c for c in (Matrices, Tile, Fragment, StoreAt, StoreVector, Tensorize, UnrollCompiled, Pipeline)})
