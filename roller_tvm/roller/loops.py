"""The loops that a stage starts with, its axes fused or split into those of the expression, and loops made one."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ..ir import Axis, Stage
from .steps import Fuse, Split, Step


def open_parts(stage: str, axes: Sequence[Axis]) -> tuple[list[Step], list[str]]:
    """Return the steps that make the expression's axes from the source's loops: fusions and splits into parts.

    Parameters
    ----------
    stage : str
        Name of the stage that has the loops.
    axes : sequence of Axis
        Parts of one source axis stand next to each other, largest stride first.

    Returns
    -------
    (list of Step, list of str)
        Fusions and splits, and the name of one loop per axis.

    Examples
    --------
    >>> steps, loops = open_parts("C", [Axis("ic.o", 4, "reduce", ("ic", 16)), Axis("ic.i", 16, "reduce", ("ic", 1))])
    >>> print(steps[0], loops)
    split(C, ic, [16], [ic.o, ic.i]) ['ic.o', 'ic.i']
    >>> print(open_parts("C", [Axis("n*c", 12, fused_of=(("n", 3), ("c", 4)))])[0][0])
    fuse(C, [n, c], n*c)
    """
    steps: list[Step] = [Fuse(stage, tuple(n for n, _ in a.fused_of), a.name) for a in axes if a.fused_of]
    at = 0
    while at < len(axes):
        if axes[at].part_of is None:
            at += 1
            continue
        source = axes[at].part_of
        group = [a for a in axes[at:] if a.part_of and source and a.part_of[0] == source[0]]
        assert source is not None
        if prod(a.extent for a in group) > 1 and len(group) > 1:
            steps.append(Split(stage, source[0], tuple(a.extent for a in group[1:]), tuple(a.name for a in group)))
        at += len(group)
    return steps, [a.name for a in axes]


def source_loops(axes: Sequence[Axis]) -> list[str]:
    """Return the loops of the source that the axes are made of, in order.

    Examples
    --------
    >>> source_loops([Axis("n*c", 12, fused_of=(("n", 3), ("c", 4))), Axis("h", 5)])
    ['n', 'c', 'h']
    """
    names: list[str] = []
    for axis in axes:
        if axis.part_of:
            names.append(axis.part_of[0])
        else:
            names += [n for n, _ in axis.fused_of] or [axis.name]
    return list(dict.fromkeys(names))


def vector_name(anchor: Stage) -> str:
    """Return the axis to vectorise: the last one with more than one iteration."""
    return next((a.name for a in reversed(anchor.spatial) if a.extent > 1), anchor.spatial[-1].name)


def vector_last(loops: list[str], anchor: Stage) -> list[str]:
    """Return the loops of the spatial axes in order, with that of the vector axis last."""
    at = next(n for n, a in enumerate(anchor.spatial) if a.name == vector_name(anchor))
    return [*loops[:at], *loops[at + 1 :], loops[at]]


def fuse(steps: list[Step], stage: str, loops: Sequence[str], name: str) -> str:
    """Append a step that fuses the loops and return the new loop; a single loop keeps its name."""
    if len(loops) == 1:
        return loops[0]
    steps.append(Fuse(stage, tuple(loops), name))
    return name
