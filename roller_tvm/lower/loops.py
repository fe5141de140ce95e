"""Loops that a stage starts with: its source axes, opened into the parts that the expression names."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ..expr import Axis
from .steps import Split, Step


def open_parts(stage: str, axes: Sequence[Axis]) -> tuple[list[Step], list[str]]:
    """Split source axes into their parts.

    Parameters
    ----------
    stage : str
        The stage whose loops they are.
    axes : sequence of Axis
        Parts of one source axis stand next to each other, largest stride first.

    Returns
    -------
    (list of Step, list of str)
        The splits, and the name of one loop per axis.

    Examples
    --------
    >>> steps, loops = open_parts("C", [Axis("ic.o", 4, "reduce", ("ic", 16)), Axis("ic.i", 16, "reduce", ("ic", 1))])
    >>> print(steps[0], loops)
    split(C, ic, [16], [ic.o, ic.i]) ['ic.o', 'ic.i']
    """
    steps: list[Step] = []
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
