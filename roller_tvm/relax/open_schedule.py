"""PrimFuncs with open extents scheduled: kernels of a few tiles, chosen by the size at each call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tvm.ir import Range

from ..codegen.apply_tensorir import apply_steps_tir
from ..codegen.tensorir_packing import constant_parameters
from ..device import DeviceSpec
from ..errors import MeasureError, RollerError, UnsupportedOperator
from ..planner.family import plan_families
from ..planner.family_grid import GRID_LARGE, grid_families
from ..planner.family_values import LARGE, TYPICAL, Member, PlanFamily
from ..roller.features import Features
from ..te.quotient import nodes_of
from ..tir.nodes import analyzer_of_tvm
from ..tir.open_axes import OpenAxes, open_axes
from ..tir.open_choice import Instead, chosen
from ..tir.open_merged import merged_axes
from ..tir.open_tiles import Turn, tiled_kernel
from ..tir.read import TirReading, read_prim_func

#: Names of variables with likely sizes.
Likely = tuple[tuple[str, int], ...]


class OpenFunction:
    """A PrimFunc with open extents, on its way to a schedule.

    Parameters
    ----------
    func : PrimFunc
    device : DeviceSpec
    name : str
    tf32 : bool
    likely : tuple of (name, size)
        Sizes of its variables to plan for before others.
    merges : bool
        Whether neighbouring open axes may become one (`tir.open_merged`).

    Raises
    ------
    UnsupportedOperator
        Of a kind that is not planned.

    Examples
    --------
    >>> scheduled, family = next(OpenFunction(func, device, "matmul").schedules())
    """

    def __init__(
        self, func: Any, device: DeviceSpec, name: str, tf32: bool = False, likely: Likely = (), merges: bool = True
    ) -> None:
        if device.kind not in ("cpu", "gpu"):
            raise UnsupportedOperator("open extents are planned for CPUs and GPUs", name, "name the sizes (buckets)")
        self.func, self.device, self.name, self.likely = func, device, name, dict(likely)
        self.axes: OpenAxes = open_axes(func)
        self.merged = merged_axes(func) if merges and device.kind == "cpu" else None
        if self.merged is not None:
            self.axes = open_axes(self.merged.made)
        self.features = Features.of_tensor_ir(device, tf32)
        self._read: dict[tuple[int, ...], tuple[Any, TirReading]] = {}

    def reading(self, extents: Sequence[int]) -> tuple[Any, TirReading]:
        """Return the function with these extents, and its reading."""
        key = tuple(extents)
        if key not in self._read:
            readable = self.axes.fixed(key, read=True)
            reading = read_prim_func(readable, self.name, constant_parameters(self.func))
            fixed = self.axes.fixed(key) if self.axes.symbols else readable
            self._read[key] = fixed, reading
        return self._read[key]

    def families(self) -> Iterator[PlanFamily]:
        """Yield families of plans, best first."""
        axes = self.axes.axes
        asked = (
            lambda extents: self.reading(extents)[1].expression, [a.name for a in axes], [a.sliced for a in axes],
            self.device, self.features, [self._likely(a.extent) for a in axes],
        )  # fmt: skip
        yield from grid_families(*asked) if self.device.kind == "gpu" else plan_families(
            *asked, self.axes.windows, self.merged is not None
        )

    def _likely(self, extent: Any) -> int:
        """The likely size of an axis, a large one where nothing tells it."""
        named = [str(v.name) in self.likely for v in _symbols_of(extent)]
        return self._size(extent) if named and all(named) else GRID_LARGE if self.device.kind == "gpu" else LARGE

    def sizes(self) -> list[int]:
        """Return the extents of the axes where each variable has its likely size, or a typical one."""
        return [self._size(axis.extent) for axis in self.axes.axes]

    def _size(self, extent: Any) -> int:
        analyzer = analyzer_of_tvm()
        for var in _symbols_of(extent):
            size = self.likely.get(str(var.name), TYPICAL)
            analyzer.bind(var, Range(size, size + 1))
        return max(1, int(analyzer.const_int_bound(extent).max_value))

    def schedules(self, instead: Instead | None = None) -> Iterator[tuple[Any, PlanFamily]]:
        """Yield functions with a schedule, each with its family; raises ``MeasureError`` if there is none.

        Parameters
        ----------
        instead : Instead, optional
            A kernel that goes before the family's at some sizes.
        """
        reasons: list[str] = []
        for family in self.families():
            try:
                yield self.scheduled(family, instead), family
            except RollerError as error:
                reasons.append(error.what)
        what = f"no family of plans could be applied: {(reasons or ['none made'])[0]}"
        raise MeasureError(what, where=self.name, kind="schedule error", remedy="name the sizes (buckets)")

    def scheduled(self, family: PlanFamily, instead: Instead | None = None) -> Any:
        """Return the function with the schedule of a family, and another kernel before it."""
        made = self._scheduled(family, instead)
        return made if self.merged is None else self.merged.viewed(made)

    def _scheduled(self, family: PlanFamily, instead: Instead | None) -> Any:
        used = sorted({rule.member for rule in family.rules})
        turns: list[Turn | None] = [None] * len(used)
        if family.in_turn:
            turns = [Turn(before) for before in (0, *(family.members[n].extents[0] for n in used[:-1]))]
        kernels = [self._kernel(family.members[n], family.parallel, t) for n, t in zip(used, turns, strict=True)]
        if any(n > 1 for n in kernels[-1].least):
            raise MeasureError("no kernel serves the size 1", where=self.name, kind="schedule error")
        if family.in_turn:
            return chosen(self.axes, kernels, None, instead=instead)
        conditions = [self._condition(family, n, kernel.least) for n, kernel in zip(used[:-1], kernels, strict=False)]
        return chosen(self.axes, kernels, conditions, self.device.kind == "gpu", instead)

    def _kernel(self, member: Member, parallel: bool, turn: Turn | None) -> Any:
        fixed, reading = self.reading(member.extents)
        schedule = apply_steps_tir(fixed, reading, member.steps())
        return tiled_kernel(
            self.axes, member.extents, schedule.mod["main"], parallel, turn, grid=self.device.kind == "gpu"
        )  # fmt: skip

    def _condition(self, family: PlanFamily, member: int, least: Sequence[int]) -> Any:
        """The sizes for which a member is used, as an expression; from the least ones of its kernel."""
        from tvm import tirx

        found = tirx.const(False, "bool")
        for rule in family.rules:
            if rule.member != member:
                continue
            every = tirx.const(True, "bool")
            for axis, first, last in rule.sizes:
                extent = self.axes.axes[axis].extent
                every = tirx.And(every, extent >= first)
                every = every if last is None else tirx.And(every, extent <= last)
            found = tirx.Or(found, every)
        for own, size in zip(self.axes.axes, least, strict=True):
            found = found if size == 1 else tirx.And(found, own.extent >= size)
        return found


def _symbols_of(extent: Any) -> list[Any]:
    return [node for node in nodes_of(extent) if type(node).__name__ in ("Var", "SizeVar")]


__all__ = ["OpenFunction"]
