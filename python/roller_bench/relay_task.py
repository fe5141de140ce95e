"""A task open on the Relay line: kernels built from Ansor's records, checked by Roller's worker."""

from __future__ import annotations

import hashlib
import time as clock
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from roller_bench.files import keep_folder, why_wrong_now
from roller_bench.task import OpenedTask, Order, Searched
from roller_tvm.errors import UnsupportedOperator
from roller_tvm.roller.features import Features
from roller_tvm.tuning.line import Built
from roller_tvm.tuning.measurer import Measurer
from roller_tvm.tuning.session import CHECK, PACKED, PLAIN
from roller_tvm.tuning.supervise import Pool


@dataclass
class Opened(OpenedTask):
    """A task open in a job.

    Parameters
    ----------
    desc : str
        Ansor's description of the task.
    dag : ComputeDAG
    default : str
        TVM's own kernel as lowered TIR, or ''.
    flops : float
        FLOPs of one run.
    """

    line = "relay"
    desc: str
    dag: Any
    default: str
    flops: float

    @cached_property
    def search_task(self) -> Any:
        """Ansor's task, with the packing of weights that ``relay.build`` applies."""
        from tvm import auto_scheduler

        return auto_scheduler.SearchTask(
            compute_dag=self.dag, workload_key=self.key, target=self.target, desc=self.desc,
            layout_rewrite_option=auto_scheduler.LayoutRewriteOption.get_target_default(self.target, True),
        )  # fmt: skip

    @property
    def packs(self) -> bool:
        """True if ``relay.build`` repacks a weight for the kernel, which then takes it packed."""
        from roller_tvm.relay.worker_side import packs_weights

        return bool(packs_weights(self.search_task))

    @property
    def modes(self) -> tuple[int, int]:
        return (CHECK, PACKED) if self.packs else (PLAIN, PLAIN)

    def file_of(self, text: str) -> Path:
        """Return the path of a kernel; Roller's build and TVM's build of one record have different paths."""
        from roller_tvm.relay.rewrites import EdgeVectors, PrefetchPanels, StackTiles, WideIndices

        ways = {"64": WideIndices, "stack": StackTiles, "ahead": PrefetchPanels, "edge": EdgeVectors}
        built = text + "".join(word for word, way in ways.items() if way.active())
        return self.kernels / f"{hashlib.sha256(built.encode()).hexdigest()[:16]}.so"

    def open_reference(self) -> None:
        from tvm.runtime._ffi_node_api import SaveJSON

        key, worker = self.key, self.worker
        if key in worker.TASKS:
            return
        reference = self.kernels / hashlib.sha256(key.encode()).hexdigest()[:16]
        worker.open_task(key, str(SaveJSON(self.dag.tensors)), str(self.target))
        keep_folder(reference, lambda part: worker.make_reference(key, part))
        worker.load_reference(key, str(reference))

    def default_kernel(self) -> Path:
        self.open_reference()
        return self.build_plain(self.default, self.key + self.default)

    def build_schedule(self, key: str, schedule: Any, args: Sequence[Any], name: str) -> Path:
        """Build a ``te.Schedule`` of `args`, checked against TVM's default schedule of the same; return its path."""
        import tvm
        from tvm import auto_scheduler, te

        path = self.file_of(name)
        task = replace(self, key=key, dag=auto_scheduler.ComputeDAG(list(args)))
        task.open_reference()
        start = clock.perf_counter()
        with self.target, tvm.transform.PassContext(opt_level=3):
            module = tvm.build(schedule, list(args), self.target)
        seconds = clock.perf_counter() - start
        outputs = tuple(n for n, t in enumerate(args) if not isinstance(t.op, te.PlaceholderOp))
        self.worker.TASKS[key].built[0, PLAIN] = Built(module, module.entry_name, list(args), outputs)
        return task.keep(path, 0, PLAIN, why_wrong_now(self.worker, key, PLAIN), seconds)

    def shapes_of(self, number: int, mode: int) -> list[tuple[list[int], str]]:
        args = self.worker.TASKS[self.key].built[number, mode].tensors
        return [([int(e) for e in t.shape], str(t.dtype)) for t in args]

    def candidates(self, top: int, order: Order | None, most: int | None = None) -> Iterator[tuple[Any, Any]]:
        from roller_tvm.relay.candidates import make_candidates
        from roller_tvm.relay.tasks import Task

        found = make_candidates(Task(0, self.case.id, 1, self.search_task, self.flops), self.device, top)
        if order is not None and found.plans:
            ranked = list({id(plan.ranked): plan.ranked for plan in found.plans}.values())
            places = {id(plan): place for place, plan in enumerate(order(ranked))}
            found.plans.sort(key=lambda plan: places[id(plan.ranked)])
        states = found.applied()
        if found.reason:
            raise UnsupportedOperator(found.reason, self.case.id)
        self.failures += found.failures
        best = list(dict.fromkeys(plan.number for plan, _ in states))[:most]
        yield from ((plan.ranked, state) for plan, state in states if plan.number in best)

    def record(self, schedule: Any) -> str:
        from roller_tvm.relay.worker_side import record_line

        return str(record_line(self.search_task, schedule))

    def measured(self, pool: Pool, schedules: Sequence[Any]) -> Any:
        from roller_tvm.relay.worker_side import work_of

        lines = [self.record(schedule) for schedule in schedules]
        return Measurer(pool).measure(work_of(self.search_task), lines, default=self.default)

    def searched(self) -> Searched:
        from tvm.runtime._ffi_node_api import SaveJSON

        from roller_tvm.codegen.apply_te import TeProgram, apply_steps_state, keep_layout
        from roller_tvm.planner.lower import lower
        from roller_tvm.relay.candidates import packable, packed_operands
        from roller_tvm.relay.worker_side import layout_mode
        from roller_tvm.te.read import read_te

        dag, mode = self.dag, layout_mode(self.search_task)
        reading = read_te(dag, name=self.case.id, constants=packed_operands(dag) if mode == PACKED else ())
        program = TeProgram.of_reading(reading, list(dag.tensors))

        def record(plan: Any) -> str:
            """Return the record of a plan, with weights packed if ``relay.build`` can."""
            steps = tuple(lower(plan))
            if (mode == PACKED and not packable(program, steps)) or mode == CHECK:
                steps = keep_layout(dict(program.ops), steps)
            return self.record(apply_steps_state(dag, program, steps))

        opening = (self.key, str(SaveJSON(dag.tensors)), str(self.target))
        return Searched(reading.expression, Features.of_te(self.device), opening, mode, record)
