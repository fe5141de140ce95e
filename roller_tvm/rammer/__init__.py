"""rTask fusion: the operators of a graph scheduled together at compile time (Rammer, OSDI'20), free of TVM."""

from .depend import Dependences, Need
from .draw import draw
from .fusion import FusionPlan, Part
from .kernels import planned_rkernels, rkernel, rkernels, roperator
from .operators import DataFlowGraph, Edge, Phase, RKernel, ROperator
from .partition import Node, Step, convex_parts
from .policy import POLICIES, check_choices, plan_graph
from .program import BadProgram, BarrierTask, ProgramBuilder, RTask, TaskProgram
from .report import explain_fusion
from .tiling import Tiling
from .timing import Interval, Timeline, simulate
from .vdevice import Costs, VDevice

__all__ = [
    "BadProgram", "BarrierTask", "Costs", "DataFlowGraph", "Dependences", "Edge", "FusionPlan", "Interval", "Need",
    "Node", "POLICIES", "Part", "Phase", "ProgramBuilder", "RKernel", "ROperator", "RTask", "Step", "TaskProgram",
    "Tiling", "Timeline", "VDevice", "check_choices", "convex_parts", "draw", "explain_fusion", "plan_graph",
    "planned_rkernels", "rkernel", "rkernels", "roperator", "simulate",
]  # fmt: skip
