"""Runs a Relay model's fused kernels as OpenCL on PoCL: a second check beside the emulator, for kernels without waits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from roller_tvm.device import DeviceSpec
from roller_tvm.emulate import BufferSpec, Checked, OpenClFunction
from roller_tvm.emulate.opencl import queue
from roller_tvm.emulate.together import Arrays, Member, check_together, witnessed
from roller_tvm.errors import RollerError, TargetError
from roller_tvm.measure.numerics import shape_of
from roller_tvm.rammer import Part
from roller_tvm.rammer.opencl_code import OPENCL
from roller_tvm.relay.dataflow import CallNode, Tensor
from roller_tvm.relay.fuse_rtasks import prepared
from roller_tvm.relay.reference import reduction_terms, reference_schedule
from roller_tvm.relay.rtask_codegen import KernelCode
from roller_tvm.relay.rtask_fuser import Fuser
from roller_tvm.relay.rtask_gpu import GpuKernels
from roller_tvm.relay.rtask_graph import RTaskGraph
from roller_tvm.relay.rtask_kernels import Computation, Computations
from roller_tvm.relay.tasks import check_device, make_target
from roller_tvm.relay.tuning import find_device
from roller_tvm.tvm_env import import_relay_tvm


def check_fusion_on_pocl(
    mod: Any, target: Any, device: DeviceSpec | str | None = None, params: Mapping[str, Any] | None = None,
    policy: str = "horizontal", launch: str = "stream", top: int = 10,
) -> dict[str, Checked | RollerError]:  # fmt: skip
    """Execute every fused kernel of a model as OpenCL, and compare it with TVM's own results of its operators.

    OpenCL does not promise to run the blocks of a kernel together, so a block must not wait for another. The default
    policy makes no such kernels.

    Parameters
    ----------
    mod, target, device, params, policy, launch, top
        See `FuseRTasks`; for a GPU.

    Returns
    -------
    dict of str to Checked or RollerError
        The result of each function that `FuseRTasks` makes; see `emulate.together.witnessed`.

    Raises
    ------
    TargetError
        The target is not a GPU.
    ToolchainError
        There is no PoCL.

    Examples
    --------
    >>> found = check_fusion_on_pocl(mod, "cuda -arch=sm_80", params=params)  # doctest: +SKIP
    >>> [name for name, result in found.items() if isinstance(result, WrongAnswer)]  # doctest: +SKIP
    []
    """
    import_relay_tvm("fusing rTasks of a Relay model")
    made_target = make_target(target)
    spec = find_device(made_target if device is None else device, device is None)
    check_device(spec, made_target)
    if spec.kind != "gpu":
        raise TargetError("fused kernels are a GPU's", f"target {made_target.kind.name}", "give one of kind cuda")
    queue()
    witness = _Witness(spec, made_target, policy, launch, top)
    Fuser(witness).run(prepared(mod, params, made_target))
    return witness.found


class _Witness(GpuKernels):
    """Makes the pass's kernels, and checks each as soon as it is made."""

    def __init__(self, device: DeviceSpec, target: Any, policy: str, launch: str, top: int) -> None:
        super().__init__(device, target, policy, launch, top)
        self.opencl = GpuKernels(device, target, policy, launch, top)
        self.opencl.made = Computations(device, "", top, dialect=OPENCL)
        self.found: dict[str, Checked | RollerError] = {}
        self._built: dict[int, tuple[Computation, Callable[[Arrays], Arrays]]] = {}

    def code(
        self, graph: RTaskGraph, symbol: str, part: Part, inside: Sequence[CallNode]
    ) -> tuple[KernelCode, tuple[Tensor, ...], tuple[Tensor, ...]]:
        made = super().code(graph, symbol, part, inside)
        self.found[symbol] = witnessed(lambda: self._checked(graph, symbol, part, inside))
        return made

    def _checked(self, graph: RTaskGraph, symbol: str, part: Part, inside: Sequence[CallNode]) -> Checked:
        kernel = self.opencl.fused(graph, symbol, part, inside)
        members = [self._member(graph, node) for node in inside]
        return check_together(OpenClFunction(kernel.source, kernel.host), members)

    def _member(self, graph: RTaskGraph, node: CallNode) -> Member:
        import tvm

        computation = graph.computations[node.name]
        tensors = computation.program.tensors
        if id(computation) not in self._built:
            self._built[id(computation)] = computation, _own_loops(tensors, len(node.outputs))
        specs = tuple(BufferSpec(name, shape_of(tensor), str(tensor.dtype))
                      for name, tensor in zip(graph.tensors(node.name), tensors, strict=True))
        terms = reduction_terms(tvm.auto_scheduler.ComputeDAG(list(tensors)).ops)
        return Member(specs, self._built[id(computation)][1], terms, len(node.outputs))


def _own_loops(tensors: Sequence[Any], outputs: int) -> Callable[[Arrays], Arrays]:
    """Return a function from a computation's inputs to its outputs, by TVM's own schedule."""
    import tvm

    results = tensors[len(tensors) - outputs :]
    kernel = tvm.build(reference_schedule(results), list(tensors), "llvm")

    def compute(arrays: Arrays) -> Arrays:
        made = [tvm.nd.empty(shape_of(r), r.dtype) for r in results]
        kernel(*map(tvm.nd.array, arrays), *made)
        return [m.numpy() for m in made]

    return compute


__all__ = ["check_fusion_on_pocl"]
