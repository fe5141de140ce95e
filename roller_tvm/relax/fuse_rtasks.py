"""FuseRTasks: the operators of a Relax module scheduled together, each plan one kernel (Rammer, OSDI'20)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import tvm
from tvm import relax

from ..codegen.host_code import BufferSpec
from ..codegen.host_code_tensorir import generated
from ..device import DeviceSpec
from ..errors import BadInput, RollerError, TargetError, UnsupportedOperator, last_line
from ..rammer import FusionPlan, Part, check_choices
from ..rammer.bounds import without_spills
from ..rammer.code import FusedKernel
from ..rammer.device_code import CannotFuse
from ..tir.fused_func import fused_function, require_sources, tvm_options
from ..tir.nodes import key
from ..tir.rtasks import Call, KernelMaker
from .blocks import Block, Region, read_blocks
from .constants import array_of
from .devices import device_of, find_target
from .fuse_cpu import ScheduledFunctions, merge_region
from .fused_block import FusedCall, rewritten, spec_bytes, spec_of, with_blocks
from .fusion import FusedRegion, Fusion
from .modules import with_functions
from .rtasks import RTaskGraph, in_dataflow, lowered, rtask_graph

#: Functions of plans are called so, and a number.
NAME = "rtasks"


@tvm.transform.module_pass(opt_level=0, name="FuseRTasks")
class FuseRTasks:
    """Make one kernel of operators that are predicted to take less time so, and put it in the place of their calls.

    The operators of each dataflow block are planned by ``roller_tvm.rammer``; where one cannot be (an extern call, a
    shape known at run time, no kernel) it stays as it is, and no plan reaches across it and back. What a plan hands on
    within itself lies in one workspace, a tensor of the model like any other; plans keep no more alive than
    ``rammer.memory.MemoryRule`` allows. A plan's kernel must not run twice at the same time.

    Put it after ``FuseTIR`` (a module that is not legalized yet is prepared first) and before the functions that are
    left are scheduled. On a CPU, where operators run side by side in one parallel region, it schedules the functions
    itself.

    A kernel whose blocks wait for each other counts their steps in the loaded module: run it in one stream at a time.
    All of its blocks have to run at once: on a device of fewer units than planned for it fails after some seconds. A
    target names an architecture; where your card has fewer units than others of it (A30, L4, a MIG slice), name the
    card, or describe it in a spec file: `device`.

    Parameters
    ----------
    target : Target, dict or str, optional
        By default the target in whose scope the pass runs.
    device : DeviceSpec or str, optional
        By default the one that stands for the target's architecture.
    policy : str
        See ``rammer.plan_graph``. With 'horizontal' no block waits for another: such kernels may run in any streams,
        and ``check_fusion_on_pocl`` executes them.
    launch : str, optional
        How the model's kernels are launched, 'stream' or 'graph' (a CUDA graph): what fusing saves. By default as
        ``relax.backend.use_cuda_graph`` says.
    top : int
        Plans a function, of which its rKernels are chosen.
    tf32 : bool
        See `ScheduleWithRoller`.

    Attributes
    ----------
    report : Fusion
        What the last run did.

    Raises
    ------
    TargetError
        A target that is neither cuda nor a CPU.
    TvmLineError
        A TVM before 0.27, for cuda.

    Examples
    --------
    >>> with tvm.target.Target({"kind": "cuda", "arch": "sm_80"}):  # doctest: +SKIP
    ...     mod = FuseRTasks()(mod)
    """

    def __init__(
        self, target: Any = None, device: DeviceSpec | str | None = None, policy: str = "best",
        launch: str | None = None, top: int = 10, tf32: bool = False,
    ) -> None:  # fmt: skip
        check_choices(policy, launch)
        self.target, self.device, self.policy, self.launch = target, device, policy, launch
        self.top, self.tf32 = top, tf32
        self.report = Fusion()

    def transform_module(self, mod: Any, _context: Any) -> Any:
        """The module with its plans as functions."""
        target = find_target(self.target)
        if target.kind.name == "llvm":
            from .pipeline import schedule

            return schedule(lowered(mod, target), target, device=self.device, fuse_rtasks=self)[0]
        if target.kind.name != "cuda":
            raise TargetError("fused kernels are CUDA C++, or loops of a CPU", f"target {target.kind.name}",
                              "give a target of kind cuda or llvm, or leave FuseRTasks out")
        require_sources()
        start = time.perf_counter()
        graph = rtask_graph(mod, target, self.device, self.top, self.tf32)
        report = self.report = Fusion(graph.device)
        launch = self.launch or _launch()
        result = _GpuFusion(graph, self.policy, launch, report).module()
        report.seconds = time.perf_counter() - start
        return result

    def merged(self, mod: Any, seconds: Mapping[str, float]) -> Any:
        """A module whose functions are scheduled for a CPU, with those merged that gain by it.

        Parameters
        ----------
        mod : tvm.IRModule
        seconds : mapping of str to float
            Predicted of a call of each function.
        """
        start = time.perf_counter()
        target = find_target(self.target)
        report = self.report = Fusion(device_of(self.device, target))
        result = _merged(mod, ScheduledFunctions(seconds), report)
        report.seconds = time.perf_counter() - start
        return result


def _launch() -> str:
    config = tvm.transform.PassContext.current().config
    return "graph" if bool(config.get("relax.backend.use_cuda_graph", False)) else "stream"


class _GpuFusion:
    """Plans of one module, each a PrimFunc with a kernel of CUDA C++."""

    def __init__(self, graph: RTaskGraph, policy: str, launch: str, report: Fusion) -> None:
        self.graph, self.policy, self.launch, self.report = graph, policy, launch, report
        self.maker = KernelMaker(graph.functions, graph.target)
        self.mod = graph.mod
        self.taken = {str(var.name_hint) for var in graph.mod.get_global_vars()}
        self.resident = resident_bytes(graph)

    def module(self) -> Any:
        planned = self._planned()
        self.report.outside += self.graph.outside
        fused = []
        for block in self.graph.blocks:
            regions = [region for region in block.regions if region.name in planned]
            own = [one for region in regions for one in self._region(block, region, *planned[region.name])]
            fused.append((block, own))
        return _put(self.mod, fused)

    def _planned(self) -> dict[str, tuple[FusionPlan, list[str]]]:
        """A plan for each region, and what it had to go without."""
        while True:
            found = {}
            self.report.outside.clear()
            try:
                for region in self.graph.regions:
                    refused: list[str] = []
                    try:
                        found[region.name] = self._plan(region, refused), refused
                    except UnsupportedOperator:
                        raise
                    except BadInput as error:
                        self.report.outside.append((region.name, str(error)))
                return found
            except UnsupportedOperator:  # the last rKernel of a function has no code: it is outside then
                blocks = tuple(read_blocks(self.graph.mod, self.graph.functions))
                self.graph = replace(self.graph, blocks=blocks)

    def _region(
        self, block: Block, region: Region, plan: FusionPlan, refused: list[str]
    ) -> Iterator[FusedCall]:  # fmt: skip
        """The plans of a region that became kernels."""
        parts: list[Part] = []
        names: list[str] = []
        todo = list(reversed(plan.parts))
        by_name = {call.name: call for call in region.calls}
        while todo:
            part = todo.pop()
            if part.program is None:
                refused += [why for why in part.reasons if why not in refused]
                parts.append(part)
                names.append("")
                continue
            try:
                name, made = self._fused(block, region, part)
            except Exception as error:  # a kernel whose text is not understood must not stop the model
                why = error if isinstance(error, RollerError) else f"{type(error).__name__}: {last_line(error)}"
                refused.append(f"{', '.join(o for o, _ in part.kernels)}: {why}")
                todo += reversed(self._halves(region, [by_name[o] for o, _ in part.kernels]))
                continue
            parts.append(part)
            names.append(name)
            yield made
        self.report.regions.append(FusedRegion(region.name, replace(plan, parts=tuple(parts)), tuple(names),
                                               tuple(refused)))  # fmt: skip

    def _plan(self, region: Region, refused: list[str]) -> FusionPlan:
        """A plan whose operators all have code; rKernels without are given up."""
        calls = {call.name: call for call in region.calls}
        while True:
            plan = self.graph.plan(region, self.policy, self.launch, self.resident)
            lost = False
            for part in plan.parts:
                for name, kernel in part.kernels if part.program else ():
                    try:
                        self.maker.code(calls[name], kernel)
                    except CannotFuse as error:
                        refused.append(str(error))
                        lost = True
                        self.graph.functions.give_up(calls[name].func, kernel)
            if not lost:
                return plan

    def _halves(self, region: Region, calls: Sequence[Call]) -> list[Part]:
        """Plans of the first and of the last calls of one that is refused."""
        names = {call.name for call in calls}
        ordered = [call for call in region.calls if call.name in names]
        if len(ordered) == 1:
            return [self.graph.apart(ordered[0], self.launch)]
        half = len(ordered) // 2
        found: list[Part] = []
        for some in (ordered[:half], ordered[half:]):
            names = {call.name for call in some}
            outside = _read([call for call in region.calls if call.name not in names])
            smaller = Region(region.name, tuple(some), region.kept | outside)
            found += self.graph.plan(smaller, self.policy, self.launch, self.resident).parts
        return found

    def _fused(self, block: Block, region: Region, part: Part) -> tuple[str, FusedCall]:
        """The function of a part in the module, and the call of it."""
        name = next(f"{NAME}_{n}" for n in range(len(self.taken) + 1) if f"{NAME}_{n}" not in self.taken)
        inside = {o for o, _ in part.kernels}
        calls = [call for call in region.calls if call.name in inside]
        kept = {*region.kept, *_read([call for call in region.calls if call.name not in inside])}
        for call in calls:  # a tuple is handed out whole, or not at all
            results = call.tensors[len(call.tensors) - call.outputs :]
            kept |= set(results) if kept.intersection(results) else set()
        kernel = self.maker.fused(name, part, region.calls, kept)
        made = {t for call in calls for t in call.tensors[len(call.tensors) - call.outputs :]}
        given = [spec.name for spec in kernel.host.parameters if isinstance(spec, BufferSpec)]
        reads, results = (tuple(n for n in given if (n in made) == written) for written in (False, True))
        specs = [*(spec_of(block, n) for n in (*reads, *results)), *kernel.host.between]
        func, kernel = self._function(name, kernel, specs, [o for o, _ in part.kernels])
        self.taken.add(name)
        builder = relax.BlockBuilder(self.mod)  # which gives the variable its type
        var = builder.add_func(func, name)
        self.mod = builder.get()
        self.report.kernels[name] = kernel
        return name, FusedCall(tuple(calls), var, reads, (*results, *kernel.host.between))

    def _function(
        self, name: str, kernel: FusedKernel, specs: Sequence[BufferSpec], operators: Sequence[str]
    ) -> tuple[Any, FusedKernel]:
        """A kernel as a function, by launch bounds that the compiler here keeps to without spilling; and the kernel."""
        target = self.graph.target

        def text(one: FusedKernel) -> str:
            return generated(fused_function(name, one, target, specs, operators), target)[0]

        kernel = without_spills(kernel, self.graph.device, str(target.attrs["arch"]), text=text, options=tvm_options())
        return fused_function(name, kernel, target, specs, operators), kernel


def _read(calls: Sequence[Call]) -> frozenset[str]:
    return frozenset(t for c in calls for t in c.tensors[: len(c.tensors) - c.outputs])


def _merged(mod: Any, functions: ScheduledFunctions, report: Fusion) -> Any:
    """A module for a CPU, its functions side by side where that pays."""
    assert report.device is not None
    found = []
    mod = in_dataflow(mod)
    for block in read_blocks(mod, functions):
        own: list[FusedCall] = []
        for region in block.regions:
            mod, plan, names, fused, refused = merge_region(mod, block, region, functions, report.device)
            report.regions.append(FusedRegion(region.name, plan, names, refused))
            own += fused
        report.outside += block.outside
        found.append((block, own))
    return _put(mod, found)


def _put(mod: Any, fused: Sequence[tuple[Block, Sequence[FusedCall]]]) -> Any:
    """A module with calls fused in its blocks, and without what nobody uses any more."""
    changed: dict[str, dict[int, Any]] = {}
    for block, own in fused:
        if own:
            changed.setdefault(block.function, {})[block.number] = rewritten(mod, block, own)
    if not changed:
        return mod
    functions = {mod.get_global_var(n): with_blocks(mod[n], b) for n, b in changed.items()}
    passes = relax.transform
    tidied = tvm.transform.Sequential([passes.CanonicalizeBindings(), passes.DeadCodeElimination()])
    return tidied(with_functions(mod, functions))


def resident_bytes(graph: RTaskGraph) -> int:
    """Return the bytes of device memory that the model's weights and inputs occupy while it runs."""
    total = 0
    seen: set[int] = set()
    for block in graph.blocks:
        made = {t for b in block.bounds for t in b.writes}
        for name, value in block.values.items():
            if name in made or key(value) in seen:
                continue
            seen.add(key(value))
            array = array_of(value)
            if array is not None:
                total += int(array.nbytes)
            elif isinstance(getattr(value.ty, "shape", None), relax.ShapeExpr):
                total += _bytes_of(block, name)
    return total


def _bytes_of(block: Block, tensor: str) -> int:
    try:
        return spec_bytes(spec_of(block, tensor))
    except (TypeError, AttributeError):  # a size known only at run time
        return 0


__all__ = ["FuseRTasks", "FusedRegion", "Fusion"]
