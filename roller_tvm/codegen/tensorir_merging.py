"""A block computed in another's loops with its own loops kept, so that none of its checks is lost.

``compute_at`` makes a block's loops anew, for the region that is needed. A factored reduction has further checks (of
197 terms in 16 lanes the last vector has 5) that are not in any region, and TVM 0.27 drops them: it then reads beyond
the row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..roller.steps import Fuse, Reorder, Split, Step


def axes_of(loops: Sequence[str], steps: Sequence[Step]) -> list[str]:
    """Return the axes that the loops had before these steps were taken.

    Examples
    --------
    >>> axes_of(["row"], [Fuse("C", ("i", "j"), "row"), Split("C", "k", (16,), ("k.o", "k.v"))])
    ['i', 'j']
    """
    found = list(loops)
    for step in reversed(steps):
        if isinstance(step, Split):
            found = [step.axis if name in step.names else name for name in found]
        elif isinstance(step, Fuse):
            found = [axis for name in found for axis in (step.axes if name == step.name else (name,))]
    return list(dict.fromkeys(found))


class Merged:
    """Loops of a block, split like another block's loops in order to be merged with them.

    Parameters
    ----------
    schedule : tvm.s_tir.Schedule
    block : SBlockRV
    axes : sequence of str
        The other block's first axes, in whose loops this one is computed; they name its own first loops.
    rest : sequence of str
        Its loops after them.
    lacking : sequence of str
        Those of the other's axes that this block does not have: its loops of that name run once.
    """

    def __init__(
        self, schedule: Any, block: Any, axes: Sequence[str], rest: Sequence[str], lacking: Sequence[str] = ()
    ) -> None:
        self.schedule, self.block = schedule, block
        self.names = [*axes, *rest]
        self.rest, self.lacking = list(rest), list(lacking)
        #: Loop -> the axes that it is of.
        self.axes: dict[str, tuple[str, ...]] = {name: (name,) for name in axes}

    def follow(self, steps: Sequence[Step]) -> None:
        """Repeat the other block's steps, as far as they concern these axes."""
        for step in steps:
            loops = self._loops()
            if isinstance(step, Split) and step.axis in self.axes:
                at = self.names.index(step.axis)
                self.schedule.split(loops[at], [None, *step.lengths])
                self.axes |= dict.fromkeys(step.names, self.axes[step.axis])
                self.names[at : at + 1] = step.names
            elif isinstance(step, Fuse) and all(axis in self.axes for axis in step.axes):
                at = self.names.index(step.axes[0])
                if len(step.axes) > 1:
                    self.schedule.fuse(*loops[at : at + len(step.axes)])
                self.axes[step.name] = tuple(axis for loop in step.axes for axis in self.axes[loop])
                self.names[at : at + len(step.axes)] = [step.name]
            elif isinstance(step, Reorder):
                self._reorder([name for name in step.axes if name in self.axes] + self.rest)

    def merge(self, names: Sequence[str], loop: Any) -> Any:
        """Compute the block in another's loops.

        Parameters
        ----------
        names : sequence of str
            Those loops, outermost first; after `follow` this block's outermost loops have the same names.
        loop : LoopRV
            The innermost of them.

        Returns
        -------
        LoopRV
            The merged loop.

        Raises
        ------
        ValueError
            If this block's loops are not the same.
        """
        if self.names[: len(names)] != list(names):
            raise ValueError(f"loops {', '.join(self.names)} cannot be merged with {', '.join(names)}")
        axes = list(dict.fromkeys(axis for own in self.axes.values() for axis in own))
        inside = {name: self.axes[name] for name in self.names[len(names) : len(self.names) - len(self.rest)]}
        found = {last: name for name, (*_, last) in inside.items()}  # of axes that were fused: the others have one trip
        if len(found) != len(inside):
            raise ValueError(f"loops {', '.join(inside)} remain of axes {', '.join(axes)}")
        merged = self.schedule.merge(self._loops()[len(names) - 1], loop)
        self.names = self.names[len(names) :]
        own = [axis for axis in axes if axis not in self.lacking]
        for axis in own:  # a loop an axis, as `compute_at` leaves them
            if axis not in found:
                self.schedule.add_unit_loop(self._loops()[0] if self.names else self.block)
                self.names.insert(0, axis)
        more = [found[axis] for axis in self.lacking if axis in found]
        self._reorder(more + [found.get(axis, axis) for axis in own] + self.rest)
        return merged

    def _loops(self) -> list[Any]:
        every = list(self.schedule.get_loops(self.block))
        return every[len(every) - len(self.names) :]

    def _reorder(self, names: list[str]) -> None:
        if names != self.names:
            loops = self._loops()
            self.schedule.reorder(*(loops[self.names.index(name)] for name in names))
            self.names = names
