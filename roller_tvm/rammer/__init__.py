"""rTask fusion: the operators of a graph scheduled together at compile time (Rammer, OSDI'20), free of TVM."""

from .dependences import Dependences, Need
from .draw import draw
from .fused_model import explain_fusion
from .fusion_plan import FusionPlan, Part
from .partition import Node, Step, convex_parts
from .rkernels import planned_rkernels, rkernel, rkernels, roperator
from .roperator import DataFlowGraph, Edge, Phase, RKernel, ROperator
from .rtask import RTask, Tiling
from .simulation import Interval, Timeline, simulate
from .task_program import BadProgram, BarrierTask, ProgramBuilder, TaskProgram
from .veu import Costs, VDevice
from .wavefront import POLICIES, check_choices, plan_graph

__all__ = [
    "BadProgram", "BarrierTask", "Costs", "DataFlowGraph", "Dependences", "Edge", "FusionPlan", "Interval", "Need",
    "Node", "POLICIES", "Part", "Phase", "ProgramBuilder", "RKernel", "ROperator", "RTask", "Step", "TaskProgram",
    "Tiling", "Timeline", "VDevice", "check_choices", "convex_parts", "draw", "explain_fusion", "plan_graph",
    "planned_rkernels", "rkernel", "rkernels", "roperator", "simulate",
]  # fmt: skip
