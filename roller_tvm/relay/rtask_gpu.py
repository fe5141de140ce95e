"""Plans for a GPU: each part is one CUDA C++ kernel, whose rTasks are the blocks of TVM's own kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from roller_tvm.device import DeviceSpec
from roller_tvm.emulate import BufferSpec, HostCode
from roller_tvm.rammer import DataFlowGraph, FusionPlan, Part, RKernel, plan_graph
from roller_tvm.rammer.bounds import without_spills
from roller_tvm.rammer.code import FusedKernel, OperatorCode, fuse, refuse_waits
from roller_tvm.relay.dataflow import CallNode, Tensor
from roller_tvm.relay.rtask_codegen import KernelCode
from roller_tvm.relay.rtask_graph import RTaskGraph, shape_of
from roller_tvm.relay.rtask_kernels import Computation, Computations


class GpuKernels:
    """Makes fused CUDA kernels; see ``rtask_graph.Kind``.

    Parameters
    ----------
    device : DeviceSpec
    target : tvm.target.Target
    policy, launch
        See ``rammer.plan_graph``.
    top : int
        Number of plans per operator.
    """

    def __init__(self, device: DeviceSpec, target: Any, policy: str, launch: str, top: int) -> None:
        self.device, self.target, self.policy, self.launch = device, target, policy, launch
        self.made = Computations(device, str(target.arch), top)

    def schedule(self, graph: RTaskGraph, operators: DataFlowGraph, kept: list[str], resident: int) -> FusionPlan:
        return plan_graph(operators, self.device, self.policy, self.launch, kept, resident)

    def check(self, computation: Computation, kernel: RKernel, name: str) -> None:
        self.made.code(computation, kernel, name)

    def code(
        self, graph: RTaskGraph, symbol: str, part: Part, inside: Sequence[CallNode]
    ) -> tuple[KernelCode, tuple[Tensor, ...], tuple[Tensor, ...]]:
        fused = self.fused(graph, symbol, part, inside)
        written = {t for node in inside for t in node.outputs}
        inputs = tuple(dict.fromkeys(t for node in inside for t in node.inputs if t not in written))
        given = {p.name for p in fused.host.parameters if isinstance(p, BufferSpec)}
        outputs = tuple(t for node in inside for t in node.outputs if graph.name(t) in given)
        host = _host(graph, fused.host, inputs, outputs)
        return KernelCode(fused.source, host, str(self.target.arch)), inputs, outputs

    def fused(self, graph: RTaskGraph, symbol: str, part: Part, inside: Sequence[CallNode]) -> FusedKernel:
        """Return the one kernel of a part, with parameters under the graph's names; raise ``CannotFuse`` if it has no
        code.
        """
        assert part.program is not None
        refuse_waits(symbol, part.program.waits, self.made.dialect)
        members = {node.name for node in inside}
        codes = {}
        for name, kernel in part.kernels:
            source, host = self.made.code(graph.computations[name], kernel, name)
            codes[name] = OperatorCode(source, host, graph.tensors(name), len(graph.calls[name].outputs))
        kept = {graph.name(t) for node in inside for t in node.outputs if graph.kept(t, members)}
        made = fuse(symbol, part.program, codes, self.device, kept, self.made.dialect)
        return without_spills(made, self.device, str(self.target.arch))


def _host(graph: RTaskGraph, host: HostCode, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> HostCode:
    """Return the launch of a kernel whose parameters are the function's inputs, then its outputs."""
    known = {p.name: p for p in host.parameters if isinstance(p, BufferSpec)}
    parameters = []
    for tensor in (*inputs, *outputs):
        name, (shape, dtype) = graph.name(tensor), shape_of(tensor)
        parameters.append(replace(known[name], shape=shape) if name in known else BufferSpec(name, shape, dtype))
    return HostCode(tuple(parameters), host.between, host.launches)
