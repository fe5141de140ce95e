"""Fused kernels of a Relax module in OpenCL on PoCL: a second witness beside the emulator, where none waits."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import tvm

from ..device import DeviceSpec
from ..emulate import BufferSpec, Checked
from ..emulate.opencl import OpenClFunction, queue
from ..emulate.together import Arrays, Member, check_together, witnessed
from ..errors import RollerError, TargetError
from ..measure.numerics import shape_of
from ..rammer import Part
from ..tir.emulated import OPENCL
from ..tir.nodes import parameters
from ..tir.rtasks import Call, KernelMaker, RFunction, RFunctions
from .fuse_rtasks import _GpuFusion
from .fused_block import FusedCall
from .fusion import Fusion
from .reference import reference_module
from .rtasks import Block, Region, rtask_graph
from .tasks import reduction_terms


def check_fusion_on_pocl(
    mod: Any, target: Any = None, device: DeviceSpec | str | None = None, policy: str = "horizontal",
    launch: str = "stream", top: int = 10, tf32: bool = False,
) -> dict[str, Checked | RollerError]:  # fmt: skip
    """Execute every fused kernel of a module in OpenCL, and compare it with its operators as TVM computes them.

    OpenCL does not promise to run the blocks of a kernel together, so a block must not wait for another. The default
    policy makes no such kernels.

    Parameters
    ----------
    mod, target, device, policy, launch, top, tf32
        As for `FuseRTasks`.

    Returns
    -------
    dict of str to Checked or RollerError
        Of each function that `FuseRTasks` makes; see `emulate.together.witnessed`.

    Raises
    ------
    TargetError
        It is no GPU's.
    ToolchainError
        There is no PoCL.

    Examples
    --------
    >>> found = check_fusion_on_pocl(model.mod, "cuda -arch=sm_80")  # doctest: +SKIP
    >>> [name for name, result in found.items() if isinstance(result, WrongAnswer)]  # doctest: +SKIP
    []
    """
    graph = rtask_graph(mod, target, device, top, tf32)
    if graph.device.kind != "gpu":
        raise TargetError("fused kernels are a GPU's", f"target {graph.target.kind.name}", "give one of kind cuda")
    queue()
    witness = _Witness(graph, policy, launch, Fusion(graph.device))
    witness.module()
    return witness.found


class FusedOnPocl:
    """Parts of plans as OpenCL kernels; a function's own loops are built once.

    Parameters
    ----------
    functions : RFunctions

    Examples
    --------
    >>> print(FusedOnPocl(functions).check("rtasks_0", part, calls))  # doctest: +SKIP
    executed in OpenCL by PoCL: 1 kernel, all blocks, all elements agree with the reference (0.1 s)
    """

    def __init__(self, functions: RFunctions) -> None:
        self.functions, self.maker = functions, KernelMaker(functions, OPENCL)
        self._built: dict[int, tuple[RFunction, Callable[[Arrays], Arrays]]] = {}

    def check(self, name: str, part: Part, calls: Sequence[Call], kept: Collection[str] = ()) -> Checked:
        """Execute the kernel of a part; see `KernelMaker.fused`.

        Raises
        ------
        CannotFuse, NotEmulated, WrongAnswer, ToolchainError
        """
        kernel = self.maker.fused(name, part, calls, kept)
        inside = {operator for operator, _ in part.kernels}
        members = [self._member(call) for call in calls if call.name in inside]
        return check_together(OpenClFunction(kernel.source, kernel.host), members)

    def _member(self, call: Call) -> Member:
        known = parameters(call.func)
        tensors = tuple(BufferSpec(t, shape_of(p), str(p.dtype)) for t, p in zip(call.tensors, known, strict=True))
        found = self.functions.of(call.func, call.name)
        if id(found) not in self._built:
            self._built[id(found)] = found, _own_loops(call)
        return Member(tensors, self._built[id(found)][1], reduction_terms(call.func), call.outputs)


def _own_loops(call: Call) -> Callable[[Arrays], Arrays]:
    """Return a function from a call's inputs to its outputs, by its unscheduled loops."""
    plain = reference_module(tvm.IRModule({"main": call.func.with_attr("global_symbol", "main")}))
    cpu = tvm.get_global_func("target.llvm_get_system_cpu")()
    kernel = tvm.compile(plain, target=tvm.target.Target({"kind": "llvm", "mcpu": str(cpu)}))
    results = parameters(call.func)[len(call.tensors) - call.outputs :]

    def compute(arrays: Arrays) -> Arrays:
        made = [tvm.runtime.empty(shape_of(r), str(r.dtype)) for r in results]
        kernel(*map(tvm.runtime.tensor, arrays), *made)
        return [m.numpy() for m in made]

    return compute


class _Witness(_GpuFusion):
    """The pass at work, each of its kernels checked as soon as it is made."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.on_pocl = FusedOnPocl(self.graph.functions)
        self.found: dict[str, Checked | RollerError] = {}

    def _fused(self, block: Block, region: Region, part: Part) -> tuple[str, FusedCall]:
        name, made = super()._fused(block, region, part)
        self.found[name] = witnessed(lambda: self.on_pocl.check(name, part, region.calls, region.kept))
        return name, made


__all__ = ["FusedOnPocl", "check_fusion_on_pocl"]
