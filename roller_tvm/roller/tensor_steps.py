"""Steps that only TensorIR can carry out: matrix products on tensor cores, pipelines of copies.

A stage becomes a product of matrices (an implicit one, if it is a convolution); instructions of a whole warp compute
its tiles. The operands of such an instruction are spread over the registers of the warp: *fragments*.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .steps import STEPS, TensorIrStep


@dataclass(frozen=True)
class Matrices(TensorIrStep):
    """``name`` = the matrix product of ``stage``, in fragments; ``stage`` becomes the copy out of them.

    Loops of the product are ``b, m, n, k``: the stage's own loops of each kind, fused. ``left`` and ``right`` are the
    tensors that it reads; as matrices they are the stages ``left.matrix`` and ``right.matrix``. Their rows run along m
    and n, or along k if ``left_turned`` or ``right_turned``. Each loop is padded to a multiple of ``multiples``.
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
    """Make the loops from ``axis`` inwards one block, ``name``, for an instruction to take over."""

    op: ClassVar[str] = "tile"
    axis: str
    name: str


@dataclass(frozen=True)
class Fragment(TensorIrStep):
    """Lay the stage's buffer out as fragments of ``rows`` x ``columns``; ``intrinsic`` loads one of them."""

    op: ClassVar[str] = "fragment"
    rows: int
    columns: int
    intrinsic: str = ""


@dataclass(frozen=True)
class StoreAt(TensorIrStep):
    """Move the stage, a copy out of ``target``, inside its loop ``axis``; ``output`` is computed as it is stored.

    A thread gathers ``lane`` elements in registers, and stores them at a time (see ``StoreVector``).
    """

    op: ClassVar[str] = "store_at"
    target: str
    axis: str
    output: str
    lane: int = 1


@dataclass(frozen=True)
class StoreVector(TensorIrStep):
    """Gather the elements of loop ``axis``, the innermost, in registers and store them by one instruction."""

    op: ClassVar[str] = "store_vector"
    axis: str


@dataclass(frozen=True)
class Tensorize(TensorIrStep):
    """Compute tiles ``tile`` of the stage by ``compute``; ``init`` clears them before loop ``axis``."""

    op: ClassVar[str] = "tensorize"
    axis: str
    tile: str
    init: str
    compute: str


@dataclass(frozen=True)
class UnrollCompiled(TensorIrStep):
    """Leave loop ``axis``, and the loops within it, to the kernel's compiler to unroll.

    Registers have no addresses: an array indexed by a loop lives in local memory unless every trip is unrolled.
    """

    op: ClassVar[str] = "unroll_compiled"
    axis: str


@dataclass(frozen=True)
class Pipeline(TensorIrStep):
    """Run copies in loop ``axis`` ``stages - 1`` iterations ahead of their readers, in as many buffers.

    ``asynchronous`` copies bypass the registers (cp.async); for others the compiler makes a load and a store.
    """

    op: ClassVar[str] = "pipeline"
    axis: str
    copies: int
    stages: int
    asynchronous: int


@dataclass(frozen=True)
class ReverseComputeAt(TensorIrStep):
    """Compute the stage, which reads ``target``, inside loop ``axis`` of ``target``."""

    op: ClassVar[str] = "reverse_compute_at"
    target: str
    axis: str


@dataclass(frozen=True)
class ReverseInline(TensorIrStep):
    """Compute the stage where the stage that it reads is computed, in place of it."""

    op: ClassVar[str] = "reverse_inline"


@dataclass(frozen=True)
class SetScope(TensorIrStep):
    """Keep what the stage computes in memory ``scope``."""

    op: ClassVar[str] = "set_scope"
    scope: str


@dataclass(frozen=True)
class Merge(TensorIrStep):
    """Make the stage's loop ``axis``, its outermost, one with the loops of that name of the stages ``others``."""

    op: ClassVar[str] = "merge"
    axis: str
    others: tuple[str, ...]


STEPS.update({c.op: c for c in (Matrices, Tile, Fragment, StoreAt, StoreVector, Tensorize, UnrollCompiled, Pipeline,
                              ReverseComputeAt, ReverseInline, SetScope, Merge)})  # fmt: skip
