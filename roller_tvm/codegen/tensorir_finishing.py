"""Parts that te infers from a schedule but TensorIR needs explicitly: memory scopes, initial values, grids."""

from __future__ import annotations

from math import prod
from typing import Any

from ..tir.nodes import REDUCTION, elements_kept, key, variables
from .tensorir_copies import Runs, realize_of


class Finishing(Runs):
    """The part of ``TirApplier`` that runs after the steps."""

    func_name: str
    #: Stage computed inside a loop of another -> that loop.
    _inside: dict[str, Any]
    #: True if a reduction is cut into steps that do not divide it.
    _remainders: bool

    def finish(self) -> None:
        """Set the memory of values that threads keep; set initial values before a reduction, not behind an if in it."""
        for stage, loop in self._inside.items():
            if not self._alive(self.blocks[stage]):  # an instruction took its place
                continue
            if not self._exists(loop):  # it was made one with others, or cut
                loop = self._around(stage)
                if loop is None:
                    continue
            scope = self._scope_inside(loop)
            if scope and str(self._written(self.blocks[stage]).scope()) == "global":
                count = len(self.schedule.get(self.blocks[stage]).writes)
                for n in range(count):
                    self.schedule.set_scope(self.blocks[stage], n, scope)
        for stage, block in self.blocks.items():
            if stage in self.loops and self._alive(block):
                self._decompose(stage, block)
        for block in self.blocks.values():
            if self._alive(block):
                self._give_a_block(block)
        if self._remainders and self._boxes:
            self._hold_tiles()

    def _around(self, stage: str) -> Any:
        """Return the innermost of the loops that a stage is computed in."""
        loops = list(self.schedule.get_loops(self.blocks[stage]))
        outer = loops[: len(loops) - len(self.loops[stage])]
        return outer[-1] if outer else None

    def _give_a_block(self, block: Any) -> None:
        """Bind a loop to a grid block if threads have none: else TVM keeps one partial sum for all in global memory."""
        loops = list(self.schedule.get_loops(block))
        bound = [self.schedule.get(loop).thread_binding for loop in loops]
        tags = {str(b.thread_tag).split(".")[0] for b in bound if b is not None}
        if "threadIdx" in tags and "blockIdx" not in tags:
            self.schedule.bind(self.schedule.add_unit_loop(loops[0]), "blockIdx.x")

    def _hold_tiles(self) -> None:
        """Refuse a schedule in which TVM keeps more of a tensor than its tile, as it cannot tell where windows end."""
        boxes = [box for name, box in self._boxes.items() if self._alive(self.blocks[name])]
        wanted, kept = sum(map(prod, boxes)), elements_kept(self.schedule.mod, self.func_name)
        if kept > wanted:
            raise self._error(f"TVM keeps {kept} elements in shared memory for tiles of {wanted}: a window is cut")

    def _scope_inside(self, loop: Any) -> str:
        """Return the scope of values computed inside a loop: 'local' (a thread's), 'shared' (a block's), '' for any."""
        sref, tags = self.schedule.get_sref(loop), set()
        while sref is not None:
            binding = getattr(sref.stmt, "thread_binding", None)
            if binding is not None:
                tags.add(str(binding.thread_tag).split(".")[0])
            sref = sref.parent
        return "local" if "threadIdx" in tags else "shared" if "blockIdx" in tags else ""

    def _alive(self, block: Any) -> bool:
        try:
            self.schedule.get_loops(block)  # kept in the trace, and so in records
            return True
        except ValueError:  # TVM: it no longer exists in the IRModule (inlined, or an instruction took its place)
            return False

    def _exists(self, loop: Any) -> bool:
        try:
            self.schedule.get_sref(loop)
            return True
        except ValueError:  # it was merged with another
            return False

    def _decompose(self, stage: str, block: Any) -> None:
        statement = self.schedule.get(block)
        if statement.init is None:
            return
        realize = realize_of(self.schedule, self.schedule.get_sref(block))
        used: set[int] = set()
        for iv, value in zip(statement.iter_vars, realize.iter_values, strict=True):
            if int(iv.iter_type) == REDUCTION:
                used |= variables(value)
        loops = self._loops(block, len(self.loops[stage]))
        mine = [loop for loop in loops if key(self.schedule.get(loop).loop_var) in used]
        if mine and not any(self.schedule.get(loop).thread_binding is not None for loop in mine):
            try:
                self.schedule.decompose_reduction(block, mine[0])
            except RuntimeError:  # ScheduleError, axes that TVM cannot take apart: the value is set behind an if
                return
