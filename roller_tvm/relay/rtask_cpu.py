"""Plans for a CPU: operators of a wave run side by side in one parallel region if a thread would be idle otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from roller_tvm.device import DeviceSpec
from roller_tvm.rammer import DataFlowGraph, FusionPlan, Part, RKernel
from roller_tvm.rammer.regions import plan_regions
from roller_tvm.relay.dataflow import CallNode, Tensor
from roller_tvm.relay.rtask_codegen import RegionCode
from roller_tvm.relay.rtask_graph import RTaskGraph, shape_of
from roller_tvm.relay.rtask_kernels import Computation
from roller_tvm.relay.rtask_regions import Regions


class CpuRegions:
    """Makes parallel regions for a CPU; see ``rtask_graph.Kind``.

    Parameters
    ----------
    device : DeviceSpec
    target : tvm.target.Target
    """

    launch = "stream"

    def __init__(self, device: DeviceSpec, target: Any) -> None:
        self.device, self.target = device, target
        self.made = Regions(device, "", 1, target)

    def schedule(self, graph: RTaskGraph, operators: DataFlowGraph, kept: list[str], resident: int) -> FusionPlan:
        apart = {o.name: why for o in operators.operators if (why := self.made.apart(graph.computations[o.name]))}
        for name, why in apart.items():
            line = f"{name} stays by itself: {why}"
            graph.refused += [line] if line not in graph.refused else []
        return plan_regions(operators, self.device, kept, resident, set(apart))

    def check(self, computation: Computation, kernel: RKernel, name: str) -> None:
        """Do nothing: the loops were checked when it was planned."""

    def code(
        self, graph: RTaskGraph, symbol: str, part: Part, inside: Sequence[CallNode]
    ) -> tuple[RegionCode, tuple[Tensor, ...], tuple[Tensor, ...]]:
        assert part.program is not None
        written = {t for node in inside for t in node.outputs}
        inputs = tuple(dict.fromkeys(t for node in inside for t in node.inputs if t not in written))
        outputs = tuple(t for node in inside for t in node.outputs)
        places = {t: n for n, t in enumerate((*inputs, *outputs))}
        members = []
        for node in inside:
            computation = graph.computations[node.name]
            read = [t for t, argument in zip(node.inputs, computation.inputs, strict=True) if argument]
            members.append((node.name, computation, tuple(places[t] for t in (*read, *node.outputs))))
        specs = [shape_of(t) for t in (*inputs, *outputs)]
        return RegionCode(self.made.merged(symbol, part.program, members, specs), str(self.target)), inputs, outputs
