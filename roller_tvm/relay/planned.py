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
from roller_tvm.relay.tasks import Task, hardware_params, short_name
from roller_tvm.tuning.model_report import KernelPlan, plan_words

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
        from tvm import auto_scheduler

        self._tell(short_name(name))
        search_task = auto_scheduler.SearchTask(
            workload_key=workload_key, target=target, hardware_params=hardware_params(target, self.device), desc=name,
            layout_rewrite_option=auto_scheduler.LayoutRewriteOption.get_target_default(target, True),
        )  # fmt: skip
        flops = max(0.0, float(search_task.compute_dag.flop_ct))
        found = make_candidates(Task(0, short_name(name), 1, search_task, flops), self.device, TOP)
        first = next(found.schedules(), None)
        if first is None:
            tensors = search_task.compute_dag.tensors
            size = sum(math.prod(map(int, t.shape)) * DTYPE_BYTES.get(str(t.dtype), 4) for t in tensors)
            seconds = plain_seconds(flops, size, self.device)
            return None, KernelPlan(name, "tvm", predicted_s=seconds, reason=found.why_none())
        candidate, state = first
        return state, KernelPlan(name, "planned", plan_words(candidate.ranked.plan), candidate.ranked.seconds)
