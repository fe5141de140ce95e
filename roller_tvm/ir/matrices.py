"""Contractions as matrix products: which axes are rows, columns and the sum, and the memory order of each operand.

A convolution is an implicit matrix product: its pixels are rows or columns, its windows part of the sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from .stage import Access, Axis, Stage


@dataclass(frozen=True)
class MatrixRoles:
    """A stage as ``out[b, m, n] += left[b, m, k] * right[b, n, k]``.

    Parameters
    ----------
    batch, m, n, k : tuple of int
        Positions of the stage's axes.
    left, right : Access
    left_turned, right_turned : bool
        True if neighbours in memory of an operand lie along its rows (m, n) and not along the sum.
    swapped : bool
        True if the stage multiplies the right operand by the left one.
    """

    batch: tuple[int, ...]
    m: tuple[int, ...]
    n: tuple[int, ...]
    k: tuple[int, ...]
    left: Access
    right: Access
    left_turned: bool
    right_turned: bool
    swapped: bool = False

    def swap(self) -> MatrixRoles:
        """Return the product of the transposed matrices: rows are columns, and the operands change places."""
        return MatrixRoles(self.batch, self.n, self.m, self.k, self.right, self.left, self.right_turned,
                           self.left_turned, not self.swapped)  # fmt: skip

    def sizes(self, stage: Stage) -> tuple[int, int, int, int]:
        """Return the extents of b, m, n and k."""
        found = []
        for group in (self.batch, self.m, self.n, self.k):
            size = 1
            for i in group:
                size *= stage.axes[i].extent
            found.append(size)
        return found[0], found[1], found[2], found[3]


def matrix_roles(stage: Stage) -> MatrixRoles | str:
    """Return the roles of a stage's axes; if it is no matrix product, the reason as text.

    Examples
    --------
    >>> from roller_tvm.ir.operators import matmul
    >>> e = matmul(m=64, n=32, k=16)
    >>> roles = matrix_roles(e.anchor)
    >>> roles.m, roles.n, roles.k, roles.left_turned, roles.right_turned
    ((0,), (1,), (2,), False, True)
    """
    if stage.combiner != "sum" or stage.results != 1 or stage.indivisible:
        return "it is no plain sum"
    if stage.ops_of("fma") != 1 or any(kind not in ("fma", "cast") for kind, _ in stage.ops):
        return "a term is more than one product"
    if len(stage.reads) != 2 or stage.reads[0].tensor == stage.reads[1].tensor:
        return "it does not multiply two tensors"
    if any(axis.part_of or axis.fused_of for axis in stage.axes):
        return "its axes are parts of the source's"
    if any(index.opaque or index.clamped or index.divisor > 1 for access in stage.reads for index in access.indices):
        return "an index is not affine"
    position = {axis.name: i for i, axis in enumerate(stage.axes)}
    used = [{position[a] for a in access.axes} for access in stage.reads]
    groups: dict[str, list[int]] = {"batch": [], "0": [], "1": [], "k": []}
    for i, axis in enumerate(stage.axes):
        where = (i in used[0], i in used[1])
        if axis.is_reduce:
            if where != (True, True):
                return f"'{axis.name}' is not summed over both operands"
            groups["k"].append(i)
        elif where == (True, True):
            if not all(_alone(axis, access) for access in stage.reads):
                return f"'{axis.name}' moves through both operands in other ways"
            groups["batch"].append(i)
        elif axis.extent == 1 or any(where):
            groups["1" if where[1] else "0"].append(i)
        else:
            return f"'{axis.name}' is read by neither operand"
    if not groups["0"] or not groups["1"]:
        return "an operand has no rows of its own"
    # In the order in which the stage multiplies them: instructions are matched so.
    rows, operands = (tuple(groups["0"]), tuple(groups["1"])), (stage.reads[0], stage.reads[1])
    turned = [_turned(access, stage, own) for access, own in zip(operands, rows, strict=True)]
    return MatrixRoles(tuple(groups["batch"]), *rows, tuple(groups["k"]), *operands, *turned)


def _alone(axis: Axis, access: Access) -> bool:
    found = [index for index in access.indices if axis.name in index.axes]
    return len(found) == 1 and len(found[0].axes) == 1


def _turned(access: Access, stage: Stage, rows: tuple[int, ...]) -> bool:
    """Return whether the operand's last dimension of more than one element moves with one of its rows' axes."""
    names = {stage.axes[i].name for i in rows}
    extents = stage.extents
    for index in reversed(access.indices):
        moving = [a for a in index.axes if extents[a] > 1]
        if moving:
            return any(a in names for a in moving)
    return False


def run_along(stage: Stage, access: Access, shape: tuple[int, ...], group: tuple[int, ...]) -> int:
    """Return how many elements are neighbours in memory along the axes of `group`, in aligned runs of that length.

    Examples
    --------
    >>> from roller_tvm.ir.operators import matmul
    >>> e = matmul(m=64, n=32, k=16)
    >>> run_along(e.anchor, e.anchor.reads[0], (64, 16), (2,))
    16
    """
    run, left = 1, list(group)
    for index, full in zip(reversed(access.indices), reversed(shape), strict=True):
        while left and stage.axes[left[-1]].extent == 1:
            left.pop()
        if full == 1:
            continue
        if not left or index.const % run or len([a for a in index.axes if stage.extents[a] > 1]) != 1:
            return run
        axis = stage.axes[left.pop()]
        if dict(index.terms).get(axis.name) != 1 or index.const:
            return run
        if axis.extent != full:  # of a longer row, which has to be a multiple of what is neighbours here
            return run * gcd(axis.extent, full)
        run *= axis.extent
    return run
