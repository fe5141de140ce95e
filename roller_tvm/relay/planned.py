"""Plans schedules at the moment ``relay.build`` asks for them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from roller_tvm.device import DeviceSpec
from roller_tvm.ir.stage import DTYPE_BYTES
from roller_tvm.micro_perf.plain import plain_seconds
from roller_tvm.progress import counted
from roller_tvm.relay.candidates import make_candidates
from roller_tvm.relay.tasks import short_name, task_of
from roller_tvm.tuning.model_report import KernelPlan

#: Plans tried if the first ones cannot be applied.
TOP = 4


@dataclass(frozen=True)
class Planner:
    """Returns Roller's first plan of an operator, applied but not measured.

    Parameters
    ----------
    device : DeviceSpec
    progress : function of str, optional
        Receives the number and the name of each operator before it is planned.

    Examples
    --------
    >>> state, plan = Planner(device)(target, workload_key, "fused_nn_dense")
    """

    device: DeviceSpec
    progress: Callable[[str], None] | None = None

    @cached_property
    def _tell(self) -> Callable[..., None]:
        return counted(self.progress, "plan")

    def __call__(self, target: Any, workload_key: str, name: str) -> tuple[Any, KernelPlan]:
        """Return Ansor's State of the best plan, or None with the reason in the plan."""
        self._tell(short_name(name))
        task = task_of(workload_key, target, self.device, name)
        found = make_candidates(task, self.device, TOP)
        first = next(found.schedules(), None)
        if first is None:
            tensors = task.search_task.compute_dag.tensors
            size = sum(math.prod(map(int, t.shape)) * DTYPE_BYTES.get(str(t.dtype), 4) for t in tensors)
            seconds = plain_seconds(task.flops, size, self.device)
            return None, KernelPlan(name, "tvm", predicted_s=seconds, reason=found.why_none())
        candidate, state = first
        return state, KernelPlan(name, "planned", candidate.ranked.plan.words(), candidate.ranked.seconds)
