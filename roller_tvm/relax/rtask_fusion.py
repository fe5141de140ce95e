"""The calls of a lowered Relax module made functions of many rTasks, for a GPU or a CPU; and the report of it."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import tvm
from tvm import relax

from ..codegen.host_code import BufferSpec
from ..codegen.host_code_tensorir import generated
from ..device import DeviceSpec
from ..errors import TargetError
from ..rammer import Part, check_choices, explain_fusion
from ..rammer.functions import Call
from ..rammer.fuse import Fuser
from ..rammer.fused_kernel import FusedKernel
from ..rammer.fused_model import ModelFusion
from ..rammer.makers import KernelMaker, Maker
from ..rammer.without_spills import without_spills
from ..tir.nodes import key
from .dataflow import Block, read_blocks, type_bytes, type_of
from .dead_code import KeepPackedCalls
from .devices import device_of, find_target
from .fused_calls import FusedCall, Made, rewritten, spec_of, with_blocks
from .fused_function import fused_function, require_sources, tvm_options
from .modules import with_functions
from .rtask_functions import RFunctions
from .rtask_regions import CpuRegions, ScheduledFunctions


@dataclass
class Fusion(ModelFusion):
    """The report of the pass.

    Parameters
    ----------
    device, regions, outside
        See `rammer.fused_model.ModelFusion`.
    kernels : dict
        Function -> its `FusedKernel`, for a GPU.
    seconds : float
        The pass took.
    """

    kernels: dict[str, FusedKernel] = field(default_factory=dict)
    seconds: float = 0.0

    def __str__(self) -> str:
        told = [line for region in self.regions for line in str(region).splitlines()]
        told += [f"{name}: outside of every plan, {reason}" for name, reason in self.outside]
        return "\n".join([f"{self.headline()} in {self.seconds:.1f} s", *(f"  {line}" for line in told)])

    def explain(self) -> str:
        """Return the report of ``--explain``: every plan of every region, what is outside, what was refused."""
        lines: list[str] = []
        for region in self.regions:
            lines += [*([""] if lines else []), region.name, explain_fusion(region.plan)]
        if self.outside:
            lines += ["", "outside of every plan", *(f"  {name}: {reason}" for name, reason in self.outside)]
        if refused := [line for why in self.refused for line in why.splitlines()]:
            lines += ["", "refused", *(f"  {line}" for line in refused)]
        return "\n".join(lines)


class RTaskFusion:
    """Fusion of lowered modules, with the parameters of `FuseRTasks`.

    Attributes
    ----------
    report : Fusion
        Report of the last run.
    """

    def __init__(
        self, target: Any = None, device: DeviceSpec | str | None = None, policy: str = "best",
        launch: str | None = None, top: int = 10, tf32: bool = False,
    ) -> None:  # fmt: skip
        check_choices(policy, launch)
        self.target, self.device, self.policy, self.launch = target, device, policy, launch
        self.top, self.tf32 = top, tf32
        self.report = Fusion()

    def kernels(self, mod: Any) -> Any:
        """Return a module with its plans for a GPU as functions, each with a kernel of CUDA C++."""
        start = time.perf_counter()
        target = find_target(self.target)
        if target.kind.name != "cuda":
            raise TargetError("fused kernels are CUDA C++, or loops of a CPU", f"target {target.kind.name}",
                              "give a target of kind cuda or llvm, or leave FuseRTasks out")
        require_sources()
        functions = RFunctions(device_of(self.device, target), self.top, self.tf32, target)
        maker = GpuKernels(functions, self.policy, self.launch or _launch())
        return self._fused(mod, maker, start)

    def merged(self, mod: Any, seconds: Mapping[str, float]) -> Any:
        """Return a module whose functions are scheduled for a CPU, with those merged that gain by it.

        Parameters
        ----------
        seconds : mapping of str to float
            Predicted time of a call of each function.
        """
        start = time.perf_counter()
        device = device_of(self.device, find_target(self.target))
        return self._fused(mod, CpuRegions(ScheduledFunctions(device, seconds)), start)

    def _fused(self, mod: Any, maker: Maker, start: float) -> Any:
        self.report = Fusion(maker.device)
        result = fused(in_dataflow(mod), maker, self.report)
        self.report.seconds = time.perf_counter() - start
        return result


class Fuses(Protocol):
    """A pass that fuses: `FuseRTasks`."""

    fusion: RTaskFusion


def _launch() -> str:
    config = tvm.transform.PassContext.current().config
    return "graph" if bool(config.get("relax.backend.use_cuda_graph", False)) else "stream"


class GpuKernels(KernelMaker):
    """Makes PrimFuncs with a kernel of CUDA C++ each."""

    functions: RFunctions
    block: Block

    def make(self, symbol: str, part: Part, calls: Sequence[Call], kept: Collection[str]) -> Made:
        # A tuple is handed out whole, or not at all.
        whole = {t for call in calls if set(kept).intersection(call.writes) for t in call.writes}
        kernel = self.fused(symbol, part, calls, whole)
        written = {t for call in calls for t in call.writes}
        given = [spec.name for spec in kernel.host.parameters if isinstance(spec, BufferSpec)]
        reads, results = (tuple(n for n in given if (n in written) == made) for made in (False, True))
        specs = [*(spec_of(self.block, n) for n in (*reads, *results)), *kernel.host.between]
        operators, target = [o for o, _ in part.kernels], self.functions.target

        def function(one: FusedKernel) -> Any:
            return fused_function(symbol, one, target, specs, operators)

        # By launch bounds that the compiler here keeps to without spilling.
        kernel = without_spills(kernel, self.device, str(target.attrs["arch"]),
                                text=lambda one: generated(function(one), target)[0], options=tvm_options())
        return Made(function(kernel), reads, (*results, *kernel.host.between), kernel)


def in_dataflow(mod: Any) -> Any:
    """Return a module with its bindings in dataflow blocks, as far as they are pure."""
    return relax.transform.ConvertToDataflow()(mod)


def fusers(mod: Any, maker: Maker, told: Callable[..., None] | None = None) -> list[tuple[Block, Fuser]]:
    """Return the dataflow blocks of a module, each with its `Fuser`."""
    blocks = tuple(read_blocks(mod))
    given: dict[int, Any] = {}  # weights and inputs of all blocks
    for block in blocks:
        given |= {key(value): value for name, value in block.values.items() if name not in block.made}
    taken = {str(var.name_hint) for var in mod.get_global_vars()}
    found = []
    for block in blocks:
        own = copy.copy(maker)  # with the same code of functions
        if isinstance(own, GpuKernels):
            own.block = block
        read = {key(block.values[t]) for b in block.bounds if b.writes for t in b.reads}
        elsewhere = [type_bytes(type_of(value)) for k, value in given.items() if k not in read]
        found.append((block, Fuser(block.graph(elsewhere), own, taken, f"{block.function}.{block.number}", told)))
    return found


def fused(mod: Any, maker: Maker, report: Fusion, told: Callable[..., None] | None = None) -> Any:
    """Return a module with functions of many rTasks in the places of their calls, and add to the report.

    Parameters
    ----------
    mod : tvm.IRModule
        Lowered, in dataflow blocks.
    """
    blocks: list[tuple[Block, list[FusedCall]]] = []
    builder = relax.BlockBuilder(mod)  # which gives functions' variables their types
    for block, fuser in fusers(mod, maker, told):
        report.regions += fuser.run()
        report.outside += block.outside(fuser.outside)
        report.outside += [(name, why) for name, why in fuser.outside.items() if name not in fuser.graph.by_name]
        own = []
        for one in fuser.fused:
            made: Made = one.made
            own.append(FusedCall(one.calls, builder.add_func(made.func, one.symbol), made.reads, made.writes))
            if made.kernel is not None:
                report.kernels[one.symbol] = made.kernel
        blocks.append((block, own))
    return put(builder.get(), blocks)


def put(mod: Any, fused: Sequence[tuple[Block, Sequence[FusedCall]]]) -> Any:
    """Return a module with calls fused in its blocks, and without what nobody uses any more."""
    changed: dict[str, dict[int, Any]] = {}
    for block, own in fused:
        if own:
            changed.setdefault(block.function, {})[block.number] = rewritten(mod, block, own)
    if not changed:
        return mod
    functions = {mod.get_global_var(n): with_blocks(mod[n], b) for n, b in changed.items()}
    passes = relax.transform
    tidied = tvm.transform.Sequential([passes.CanonicalizeBindings(), KeepPackedCalls(passes.DeadCodeElimination())])
    return tidied(with_functions(mod, functions))


__all__ = ["Fusion", "GpuKernels", "RTaskFusion", "fused", "fusers", "in_dataflow"]
