"""The Relax line's side of a worker process: tasks as modules, candidates as a database's records."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tvm
from tvm.s_tir import meta_schedule  # noqa: F401  (records are read with it)
from tvm_ffi.serialization import from_json_graph_str

from ..tir.nodes import parameters
from ..tuning.line import Built, in_order
from ..tuning.machine import same_machine
from ..tuning.numerics import shape_of
from ..tuning.session import PACKED
from ..tuning.supervise import Failed, last_line
from .kernels import taking_packed
from .modules import each_prim_func
from .record_lines import copies_ahead, replay
from .reference import reference_function
from .resources import spilled_bytes
from .rewrites import cpu_code
from .tasks import output_positions, reduction_terms


@dataclass
class Workload:
    """A module of one function, whose candidates are traces; see ``tuning.line.Workload``.

    Attributes
    ----------
    ours : bool
        True to build as our pipeline does, False as TVM's does.
    """

    mod: Any
    target: Any
    weights: tuple[int, ...]
    ours: bool = True
    tensors: list[Any] = field(init=False)
    outputs: tuple[int, ...] = field(init=False)
    terms: int = field(init=False)

    def __post_init__(self) -> None:
        func = self.mod["main"]
        self.tensors = parameters(func)
        self.outputs, self.terms = output_positions(func), reduction_terms(func)

    def reference(self) -> Callable[[Sequence[np.ndarray]], list[np.ndarray]]:
        """Return the unscheduled function, built by TVM."""
        function = reference_function(self.mod, self.target)

        def compute(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
            buffers = [self.tensors[n] for n in self.outputs]
            results = [tvm.runtime.tensor(np.zeros(shape_of(b), str(b.dtype))) for b in buffers]
            function(*in_order([tvm.runtime.tensor(a) for a in inputs], results, self.outputs))
            return [r.numpy() for r in results]

        return compute

    def build(self, line: str, mode: int) -> Built:
        """Build a candidate from its record, with its constants packed in mode PACKED."""
        module = _replayed(self.mod, line)
        try:
            return self._loaded(each_prim_func(module, taking_packed) if mode == PACKED else module, line)
        except Exception as error:  # whatever TVM's passes raise
            raise Failed("build error", last_line(error)) from error

    def build_default(self, text: str) -> Built:
        """Build TVM's own kernel, which comes as a module."""
        return self._loaded(tvm.ir.load_json(text), "")

    def _loaded(self, module: Any, line: str) -> Built:
        library = executable = self._compiled(module, line)
        if same_machine(self.target):
            library = executable.jit()
            library["main"]  # the code of an llvm module is generated at the first look-up
        return Built(library, "main", parameters(module["main"]), self.outputs, self.weights, executable)

    def _compiled(self, module: Any, line: str) -> Any:
        if self.ours and self.target.kind.name == "llvm":
            module = cpu_code()(module)
        with tvm.transform.PassContext(config={"tirx.use_async_copy": True} if copies_ahead(line) else {}):
            return tvm.compile(module, self.target)

    def spilled(self, line: str) -> int:
        module = _replayed(self.mod, line)
        try:
            library = self._compiled(module, line)
            return spilled_bytes(library.mod, self.target) if self.target.kind.name == "cuda" else 0
        except Exception as error:  # whatever TVM's passes and the CUDA compiler raise
            raise Failed("build error", last_line(error)) from error


def _replayed(mod: Any, line: str) -> Any:
    """Return a module with a record's trace applied."""
    try:
        return replay(mod, line).mod
    except Exception as error:  # whatever TVM raises of a trace that does not apply
        raise Failed("schedule error", last_line(error)) from error


class RelaxWorker:
    """See ``tuning.line.WorkerSide``."""

    def warm_up(self) -> None:
        """Do nothing more: what building needs came with this module."""

    def code(self) -> nullcontext[None]:
        """Return a context of nothing: rewrites of CPU code are passes here."""
        return nullcontext()

    def device(self, kind: str) -> Any:
        return tvm.device("cpu" if kind in ("llvm", "c") else kind, 0)

    def tensor(self, values: np.ndarray, device: Any) -> Any:
        return tvm.runtime.tensor(np.asarray(values, order="C"), device)

    def open(self, text: str, target: str, weights: Sequence[int]) -> Workload:
        """Open a module, given as JSON."""
        made = tvm.target.Target(json.loads(target) if target.lstrip().startswith("{") else target)
        return Workload(from_json_graph_str(text), made, tuple(int(n) for n in weights))


SIDE = RelaxWorker()
