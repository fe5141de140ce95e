"""The Relay line's side of a worker process: tasks as TE tensors, candidates as lines of a record file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from roller_tvm.relay import reference
from roller_tvm.relay.rewrites import as_tvm, cpu_code
from roller_tvm.tuning.line import Built, in_order
from roller_tvm.tuning.machine import same_machine
from roller_tvm.tuning.measurer import Work
from roller_tvm.tuning.numerics import shape_of
from roller_tvm.tuning.session import PACKED, PLAIN
from roller_tvm.tuning.supervise import Failed, last_line
from roller_tvm.tvm_env import import_relay_tvm

#: Bytes of local memory, of the CUDA kernels compiled last that spill.
SPILLED: list[int] = []


@dataclass
class Workload:
    """A TE program of which candidates are States; see ``tuning.line.Workload``."""

    dag: Any
    target: Any
    weights: frozenset[str]
    tensors: list[Any] = field(init=False)
    outputs: tuple[int, ...] = field(init=False)
    terms: int = field(init=False)

    def __post_init__(self) -> None:
        self.tensors = list(self.dag.tensors)
        self.outputs = _outputs(self.tensors)
        self.terms = reference.reduction_terms(self.dag.ops)

    def reference(self) -> Callable[[Sequence[np.ndarray]], list[np.ndarray]]:
        """Return TVM's default schedule of the program, built without any of our rewrites."""
        import tvm

        outs = [self.tensors[n] for n in self.outputs]
        host = self.target if self.target.kind.name == "llvm" else tvm.target.Target("llvm")
        with as_tvm():  # independent of what it is to judge
            module = tvm.build(reference.reference_schedule(outs), self.tensors, host)

        def compute(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
            results = [tvm.nd.empty(shape_of(t), t.dtype) for t in outs]
            module(*in_order([tvm.nd.array(a) for a in inputs], results, self.outputs))
            return [r.numpy() for r in results]

        return compute

    def scheduled(self, line: str, mode: int) -> tuple[Any, Any]:
        """Return the TE schedule of a State, given by its record line, and its arguments."""
        from tvm.auto_scheduler.measure_record import load_record_from_string

        try:
            state = load_record_from_string(line)[0].state
            if mode != PLAIN:
                self._check_packing(state)
            schedule, args = self.dag.apply_steps_from_state(state, layout_rewrite=mode)
            return schedule, args
        except Failed:
            raise
        except Exception as error:  # whatever TVM raises of steps that do not apply
            raise Failed("layout error" if mode else "schedule error", last_line(error)) from error

    def build(self, line: str, mode: int) -> Built:
        """Build a State from its record line, as ``relay.build`` does."""
        import tvm

        schedule, args = self.scheduled(line, mode)
        try:
            with tvm.transform.PassContext(opt_level=3):
                return self._built(tvm.build(schedule, list(args), self.target), list(args))
        except Exception as error:  # whatever TVM's passes raise
            raise Failed("build error", last_line(error)) from error

    def _check_packing(self, state: Any) -> None:
        """Fail if ``relay.build`` would repack a constant weight to another number of elements."""
        new = self.dag.rewrite_layout_from_state(state)
        for before, after in zip(self.tensors, new.tensors, strict=True):
            old, packed = np.prod(shape_of(before)), np.prod(shape_of(after))
            if old != packed:
                raise Failed("layout error", f"'{before.op.name}' of {old} elements would become {packed}")

    def build_default(self, text: str) -> Built:
        """Build TVM's own kernel of the task from lowered TIR, whose parameters may come in another order."""
        import tvm

        lowered = tvm.ir.load_json(text)
        (function,) = lowered.functions.values()
        inputs = {t.op.name: t for n, t in enumerate(self.tensors) if n not in self.outputs}
        results = iter([self.tensors[n] for n in self.outputs])
        names = [function.buffer_map[p].name for p in function.params]
        args = [inputs[name] if name in inputs else next(results) for name in names]
        with tvm.transform.PassContext(opt_level=3):
            return self._built(tvm.build(lowered, target=self.target), args)

    def _built(self, module: Any, args: list[Any]) -> Built:
        if same_machine(self.target):
            module[module.entry_name]  # the code of an llvm module is generated at the first look-up
        else:
            module.get_source("asm")
        weights = tuple(n for n, t in enumerate(args) if t.op.name in self.weights)
        return Built(module, module.entry_name, args, _outputs(args), weights, module)

    def spilled(self, line: str) -> int:
        SPILLED.clear()
        self.build(line, PLAIN)
        return max(SPILLED, default=0)


def _outputs(tensors: Sequence[Any]) -> tuple[int, ...]:
    from tvm import te

    return tuple(n for n, t in enumerate(tensors) if not isinstance(t.op, te.PlaceholderOp))


class RelayWorker:
    """See ``tuning.line.WorkerSide``."""

    def warm_up(self) -> None:
        """Import the modules for building."""
        import_relay_tvm("measuring")
        from tvm import auto_scheduler, relay, te, topi  # noqa: F401

    def code(self) -> AbstractContextManager[Any]:
        """Return the context of ``relay.build`` here, and of our ApplyHistoryBest."""
        return cpu_code()

    def device(self, kind: str) -> Any:
        import tvm

        return tvm.device(kind, 0)

    def tensor(self, values: np.ndarray, device: Any) -> Any:
        import tvm

        return tvm.nd.array(values, device)

    def open(self, text: str, target: str, weights: Sequence[str]) -> Workload:
        """Open TE tensors, given as JSON."""
        import tvm
        from tvm import auto_scheduler

        made = tvm.target.Target(target)
        if made.kind.name == "cuda":
            _cuda_compiler()
        arrays = tvm.runtime._ffi_node_api.LoadJSON(text)
        return Workload(auto_scheduler.ComputeDAG(list(arrays)), made, frozenset(weights))


def _cuda_compiler() -> None:
    """Make TVM compile CUDA with the compiler found here; without one, only generate the source."""
    import tvm

    from roller_tvm.codegen import find_compilers
    from roller_tvm.relay.cuda import use_toolchain

    if find_compilers():
        use_toolchain(lambda kernels: SPILLED.extend(k.local_bytes for k in kernels.values() if k.spills))
    else:
        tvm.register_func("tvm_callback_cuda_compile", lambda code, target=None: "", override=True)


SIDE = RelayWorker()


def work_of(task: Any, weights: tuple[str, ...] = (), name: str = "") -> Work:
    """Return a ``SearchTask`` as workers open it; `weights` are the names of operands that are weights."""
    from tvm.runtime._ffi_node_api import SaveJSON

    tensors = str(SaveJSON(task.compute_dag.tensors))
    return Work(str(task.workload_key), tensors, str(task.target), layout_mode(task), weights, name)


def layout_mode(task: Any) -> int:
    """Return a task's layout mode: PLAIN, CHECK (a transform runs each time), PACKED (operands are packed beforehand).
    """
    free = any("layout_free_placeholders" in (getattr(op, "attrs", None) or {}) for op in task.compute_dag.ops)
    return int(task.layout_rewrite_option) if free else PLAIN


def packs_weights(task: Any) -> bool:
    """Return whether ``relay.build`` repacks an operand of this task to fit the State."""
    return layout_mode(task) == PACKED


def record_line(task: Any, state: Any) -> str:
    """Return the record line of a State; workers and later builds read it."""
    from tvm.auto_scheduler.measure import MeasureInput, MeasureResult
    from tvm.auto_scheduler.measure_record import dump_record_to_string

    return str(dump_record_to_string(MeasureInput(task, state), MeasureResult([0.0], 0, "", 0.0, 0.0)))
