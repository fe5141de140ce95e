"""The open axis that each dimension and each block axis of a schedule moves along, and its pace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ..errors import MeasureError
from .nodes import REDUCTION, accesses, buffer_of, key, tensors_of, variables
from .open_axes import OpenAxes, number


class Places:
    """The open axes in a schedule.

    Parameters
    ----------
    axes : OpenAxes
    extents : sequence of int
        As of `open_tiles.tiled_kernel`.
    scheduled : PrimFunc
    body : Stmt
        Its blocks are read.
    made : set of int
        Keys of the buffers that it allocates.
    alone : bool
        Whether no other kernel shares its elements, so that none is computed twice.

    Raises
    ------
    MeasureError
        An axis is used in a way that is not known.
    """

    def __init__(
        self, axes: OpenAxes, extents: Sequence[int], scheduled: Any, body: Any, made: set[int], alone: bool
    ) -> None:
        self.axes, self.extents, self.blocks = axes, list(extents), list(realized(body))
        self.params = {key(buffer) for buffer in tensors_of(scheduled)}
        self._known: dict[Any, int] = {}
        #: Place -> by how much it moves where its axis moves by one.
        self._paces: dict[Any, int] = {}
        for param, old in zip(tensors_of(scheduled), tensors_of(axes.func), strict=True):
            self._known |= {("dim", key(param), d): at for d, at in enumerate(axes.dims(old)) if at is not None}
        self._infer()
        self._check(made, alone)

    def _infer(self) -> None:
        """Find the open axes of blocks and of buffers in between, from those of the parameters."""
        more = True
        while more:
            before = len(self._known)
            for block, _ in self.blocks:
                own = {key(iv.var) for iv in block.iter_vars}
                for buffer, indices in accesses(block):
                    for d, index in enumerate(indices):
                        dim, axis = ("dim", key(buffer), d), ("axis", key(index))
                        if key(index) not in own:
                            if key(buffer) not in self.params and dim not in self._known:
                                self._follow(dim, index, own)
                            continue
                        known, other = self._known.get(dim), self._known.get(axis)
                        if known is not None and other is not None and (
                            known != other or self._pace(dim) != self._pace(axis)
                        ):  # fmt: skip
                            raise refused(f"block '{block.name_hint}' has one loop for two open axes")
                        if known is not None:
                            self._known[axis], self._paces[axis] = known, self._pace(dim)
                        elif other is not None and key(buffer) not in self.params:
                            self._known[dim], self._paces[dim] = other, self._pace(axis)
            more = len(self._known) > before

    def _pace(self, place: Any) -> int:
        return self._paces.get(place, 1)

    def _follow(self, dim: Any, index: Any, own: set[int]) -> None:
        """Note a dimension in between that is read at a multiple of a moving axis and a bit."""
        moving = {v for v in variables(index) & own if self.moves(self._known.get(("axis", v)))}
        if len(moving) != 1:
            return
        (var,) = moving
        pace = _multiple(index, var)
        if pace:
            axis = ("axis", var)
            self._known[dim], self._paces[dim] = self._known[axis], pace * self._pace(axis)

    def axis(self, var: Any) -> int | None:
        """Return the open axis of a block's axis."""
        return self._known.get(("axis", key(var)))

    def pace(self, var: int) -> int:
        """Return by how much a block's axis moves where its open axis moves by one."""
        return self._pace(("axis", var))

    def dim(self, buffer: Any, d: int) -> int | None:
        """Return the open axis of a dimension."""
        return self._known.get(("dim", key(buffer), d))

    def dims(self, buffer: Any) -> list[int | None]:
        """Return the open axis of each dimension."""
        return [self.dim(buffer, d) for d in range(len(buffer.shape))]

    def moves(self, at: int | None) -> bool:
        """Return whether tiles move along an axis."""
        return at is not None and self.axes.axes[at].sliced

    def _check(self, made: set[int], alone: bool) -> None:
        for block, _ in self.blocks:
            own = {key(iv.var) for iv in block.iter_vars}
            reduces = any(int(iv.iter_type) == REDUCTION for iv in block.iter_vars)
            for region in block.writes:
                buffer = buffer_of(region)
                dims = self.dims(buffer)
                again = any(at is not None and self.moves(at) and self.extents[at] > 1 for at in dims)
                if reduces and again and key(buffer) not in made and not alone:
                    raise refused(f"'{block.name_hint}' adds up in its result, which tiles share")
            for buffer, indices in accesses(block):
                for d, index in enumerate(indices):
                    at = self.dim(buffer, d)
                    used = variables(index) & own
                    if at is None or not used or self.axis(index) == at or self.digits(block, index, at):
                        continue
                    if not self.moves(at) or not any(self._known.get(("axis", v)) == at for v in used):
                        raise refused(f"'{block.name_hint}' reads '{buffer.name}' in parts of an open axis")

    def digits(self, block: Any, index: Any, at: int) -> tuple[Any, Any, int] | None:
        """Return vector, lane and lanes of ``vector * lanes + lane`` along an axis that is not cut; else None."""
        if self.moves(at):
            return None
        found = vector_and_lane(index)
        if found is None:
            return None
        extents = {key(iv.var): number(iv.dom.extent) for iv in block.iter_vars}
        vector, lane, lanes = found
        whole = extents.get(key(lane)) == lanes and extents.get(key(vector)) == self.extents[at] // lanes
        return found if whole and self.extents[at] % lanes == 0 else None


def refused(what: str) -> MeasureError:
    """Return the error of a schedule that cannot be opened."""
    return MeasureError(what, where="open extents", kind="schedule error", remedy="another plan is tried")


def _multiple(index: Any, var: int) -> int:
    """Return by how much an index moves where a variable moves by one, if that is known and from 1; else 0."""
    import tvm
    import tvm_ffi

    held: list[Any] = []
    tvm_ffi.structural_walk(index, (tvm.tirx.Var, lambda v: held.append(v) if key(v) == var else None))
    detect = (tvm.sym if hasattr(tvm, "sym") else tvm.arith).detect_linear_equation
    form = detect(index, [held[0]])
    return max(number(form[0]) or 0, 0) if len(form) == 2 else 0


def vector_and_lane(index: Any) -> tuple[Any, Any, int] | None:
    """Return vector, lane and lanes of ``vector * lanes + lane``, both of them variables; else None."""
    if type(index).__name__ != "Add" or type(index.a).__name__ != "Mul" or type(index.b).__name__ != "Var":
        return None
    lanes = number(index.a.b)
    return (index.a.a, index.b, lanes) if lanes and type(index.a.a).__name__ == "Var" else None


def realized(statement: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each block with its realization."""
    import tvm_ffi
    from tvm import s_tir

    found: list[Any] = []
    tvm_ffi.structural_walk(statement, (s_tir.SBlockRealize, found.append))
    for realize in found:
        yield realize.block, realize


def loops(statement: Any) -> list[Any]:
    """Return the loops of a statement."""
    import tvm_ffi
    from tvm import tirx

    found: list[Any] = []
    tvm_ffi.structural_walk(statement, (tirx.For, found.append))
    return found
