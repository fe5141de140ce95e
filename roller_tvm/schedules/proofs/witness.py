"""Points of sets and maps in words: iterations by the names of their loops, elements of buffers."""

from __future__ import annotations

from typing import Any

from .kernel import Access, Buffer, Dim, Kernel, Statement
from .sets import library, whole


def point_of(relation: Any, inner: bool = False) -> list[int]:
    """Return one point of a map: the coordinates of its input, then those of its output."""
    isl = library()
    every = relation.wrap() if hasattr(relation, "wrap") else relation
    point = every.sample_point()
    count = point.get_space().dim(isl.dim_type.set)
    return [whole(point.get_coordinate_val(isl.dim_type.set, n)) for n in range(count)]


def parameters_of(relation: Any, kernel: Kernel) -> str:
    """Return the values of sizes at a map's sample point, as words; '' without sizes."""
    isl = library()
    if not kernel.parameters:
        return ""
    every = relation.wrap() if hasattr(relation, "wrap") else relation
    point = every.sample_point()
    space, found = point.get_space(), []
    for n in range(space.dim(isl.dim_type.param)):
        name = space.get_dim_name(isl.dim_type.param, n)
        value = whole(point.get_coordinate_val(isl.dim_type.param, n))
        found.append(f"{kernel.parameters.get(name, name)}={value}")
    return f" for {', '.join(found)}" if found else ""


def iteration(statement: Statement, values: list[int]) -> str:
    """Return an iteration, as ``i=3, j=0``."""
    loops: dict[int, tuple[str, int]] = {}
    known = dict(zip(statement.dims, values, strict=False))
    for part in statement.place:
        if isinstance(part, Dim):
            fold, axis = statement.folded.get(part, (None, None))
            if fold is not None and axis is not None:
                loops[part.loop] = axis.name, fold.trip(axis, [known[dim] for dim in fold.dims])
            else:
                loops[part.loop] = part.name, loops.get(part.loop, ("", 0))[1] + part.stride * known[part]
    return ", ".join(f"{name}={value}" for name, value in loops.values()) or "its only iteration"


def element(buffer: Buffer, values: list[int]) -> str:
    """Return an element, as ``A[3, 0]``."""
    return f"{buffer.name}[{', '.join(map(str, values))}]"


def of_access(access: Access, relation: Any, statement: Statement, kernel: Kernel) -> str:
    """Return one point of an access as an element, its iteration and the sizes."""
    values, count = point_of(relation), len(statement.dims)
    where = iteration(statement, values[:count])
    return f"{element(access.buffer, values[count:])} at {where}{parameters_of(relation, kernel)}"
