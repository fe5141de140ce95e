"""Grouping the stages of a pipeline: each is computed in place, kept for a tile of a later stage, or stored.

From all stages stored, the step that saves most predicted time is taken until none saves any: a stage is computed in
place by all its readers, or a group of stages joins the only group that reads it (as in Halide's first autoscheduler,
SIGGRAPH'16; the tiles and times are Roller's).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from ..device import DeviceSpec
from ..ir import TensorExpression
from ..recipes.cpu_stages import points_of, tile_times
from ..recipes.stage_nests import StageNest, reads_windows


@dataclass(frozen=True)
class Grouping:
    """A way to compute a pipeline.

    Parameters
    ----------
    inlined : frozenset of str
        Stages computed in place.
    group : dict of str to str
        Each other stage -> the output of its group.
    """

    inlined: frozenset[str]
    group: dict[str, str]


@dataclass
class GroupSearch:
    """The search for a grouping: predicted times of nests, and the steps from one grouping to others."""

    expression: TensorExpression
    device: DeviceSpec
    known: dict[StageNest, float] = field(default_factory=dict)

    def seconds(self, grouping: Grouping) -> float:
        return sum(map(self._seconds, self.nests(grouping)))

    def _seconds(self, nest: StageNest) -> float:
        if nest not in self.known:
            points = points_of(self.expression, nest)
            found = [] if points is None else tile_times(self.expression, self.device, points)[1].seconds
            self.known[nest] = float(min(found, default=float("inf")))
        return self.known[nest]

    def nests(self, grouping: Grouping) -> list[StageNest]:
        """Return the nests of a grouping, in the order in which they run."""
        members: dict[str, list[str]] = {}
        for stage in self.expression.stages:
            if stage.name not in grouping.inlined:
                members.setdefault(grouping.group[stage.name], []).append(stage.name)
        order = [stage.name for stage in self.expression.stages if stage.name in members]
        return [self._nest(output, members[output], grouping.inlined) for output in order]

    def _nest(self, output: str, members: list[str], inlined: frozenset[str]) -> StageNest:
        used: set[str] = set()
        todo = list(members)
        while todo:
            for access in self.expression.stage(todo.pop()).reads:
                if access.tensor in inlined and access.tensor not in used:
                    used.add(access.tensor)
                    todo.append(access.tensor)
        own = tuple(stage.name for stage in self.expression.stages if stage.name in used)
        return StageNest(output, output, own, tuple(name for name in members if name != output))

    def readers(self, name: str, inlined: frozenset[str]) -> set[str]:
        """Return the stages with loops that read a stage, perhaps by others computed in place."""
        found: set[str] = set()
        todo = [name]
        while todo:
            for reader in self.expression.consumers(todo.pop()):
                if reader.name in inlined:
                    todo.append(reader.name)
                else:
                    found.add(reader.name)
        return found

    def steps(self, now: Grouping) -> Iterator[Grouping]:
        """Yield what a grouping becomes by one step."""
        outputs = {stage.name for stage in self.expression.outputs}
        sizes: dict[str, int] = {}
        for output in now.group.values():
            sizes[output] = sizes.get(output, 0) + 1
        for stage in self.expression.stages:
            name = stage.name
            if name in outputs or name in now.inlined:
                continue
            root = now.group[name] == name
            if not stage.reduce and not (root and sizes[name] > 1):
                rest = {other: output for other, output in now.group.items() if other != name}
                yield Grouping(now.inlined | {name}, rest)
            if root:
                joined = {now.group[reader] for reader in self.readers(name, now.inlined)}
                if len(joined) == 1:
                    into = joined.pop()
                    merged = {o: into if output == name else output for o, output in now.group.items()}
                    yield replace(now, group=merged)


def stage_groups(expression: TensorExpression, device: DeviceSpec) -> tuple[StageNest, ...] | None:
    """Return the nests of a pipeline of stages on a CPU; None if no stage is worth keeping for a tile.

    Examples
    --------
    >>> from roller_tvm.device import load_device
    >>> from roller_tvm.ir.operators import softmax
    >>> stage_groups(softmax(shape=(64, 1000)), load_device("a100")) is None
    True
    """
    if device.kind != "cpu" or not reads_windows(expression):
        return None
    search = GroupSearch(expression, device)
    now = Grouping(frozenset(), {stage.name: stage.name for stage in expression.stages})
    seconds = search.seconds(now)
    while True:
        found = [(search.seconds(step), step) for step in search.steps(now)]
        best = min(found, key=lambda one: one[0], default=None)
        if best is None or best[0] >= seconds:
            nests = search.nests(now)
            return tuple(nests) if any(nest.kept for nest in nests) else None
        seconds, now = best
