"""Turns the plans of a Relay function into functions of its module: one kernel per part, or smaller parts if that
fails.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from typing import Any

from roller_tvm.errors import RollerError, last_line
from roller_tvm.rammer import Part, ROperator
from roller_tvm.rammer.policy import plain_kernel
from roller_tvm.rammer.vdevice import Costs
from roller_tvm.relay.dataflow import DataFlow
from roller_tvm.relay.graph_fusion import GraphFusion
from roller_tvm.relay.rtask_codegen import ATTRIBUTE, COMPILER, KernelCode, RegionCode
from roller_tvm.relay.rtask_graph import Kind, RTaskGraph
from roller_tvm.relay.rtask_rewrite import Group, rewritten

#: Attribute of a module with the report of the fusion.
FUSED = "roller_rtasks"


class Fuser:
    """Plans and rewrites the main function of a module.

    Parameters
    ----------
    kind : Kind
    """

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.groups: list[Group] = []
        self.codes: dict[str, KernelCode | RegionCode] = {}
        self.taken: set[str] = set()

    def run(self, mod: Any) -> Any:
        """Return the module with its fused kernels, and with the report as an attribute.

        Parameters
        ----------
        mod : tvm.IRModule
            A module after the fusion of patterns; it is not changed.
        """
        import tvm
        from tvm import relay

        mod = tvm.IRModule(dict(mod.functions.items()), mod.type_definitions)  # not the caller's
        main = mod["main"]
        self.taken = {str(var.name_hint) for var in mod.get_global_vars()}  # by an earlier run
        flow = DataFlow.of(main.body, mod)
        self.graph = RTaskGraph(flow, self.kind)
        plans, symbols = [], []
        for plan in self.graph.plans():
            made = [one for part in plan.parts for one in self._parts(part)]
            plans.append(replace(plan, parts=tuple(part for part, _ in made)))
            symbols.append(tuple(symbol for _, symbol in made))
        if flow.control:
            # Bindings without effects are gone by now.
            why = "bindings that keep effects in order" if flow.control == "Let" else "control flow in it"
            self.graph.outside["main"] = f"{why} ({flow.control})"
        fusion = GraphFusion(self.kind.device, tuple(plans), tuple(symbols), tuple(self.graph.outside.items()),
                             tuple(self.graph.refused))  # fmt: skip
        if self.groups:
            body, functions = rewritten(flow.body, self.groups)
            for variable, function in functions.items():
                symbol = str(variable.name_hint)
                mod[variable] = function.with_attr({
                    "Primitive": tvm.tir.IntImm("int32", 1), "Inline": tvm.tir.IntImm("int32", 1),
                    "Compiler": COMPILER, "global_symbol": symbol, ATTRIBUTE: self.codes[symbol].to_json(),
                })  # fmt: skip
            mod["main"] = relay.Function(main.params, body, None, main.type_params, main.attrs)
        mod = relay.transform.InferType()(relay.transform.DefuseOps()(mod))
        return mod.with_attr(FUSED, tvm.runtime.convert(json.dumps(fusion.to_json())))

    def _parts(self, part: Part) -> Iterator[tuple[Part, str]]:
        """Yield a part and its kernel's symbol; if code generation fails, its halves, and in the end unfused operators.
        """
        graph, device = self.graph, self.kind.device
        if part.program is None:
            graph.refused += [why for why in part.reasons if why not in graph.refused]
            yield part, ""
            return
        names = {name for name, _ in part.kernels}
        inside = [node for node in graph.flow.calls if node.name in names]
        try:
            symbol = next(s for n in count(len(self.codes)) if (s := f"rtasks_{n}") not in self.taken)
            code, inputs, outputs = self.kind.code(graph, symbol, part, inside)
            self.codes[symbol] = code
            self.groups.append(Group(symbol, tuple(node.call for node in inside), inputs, outputs))
            yield part, symbol
            return
        except Exception as error:  # a kernel whose text is not understood must not stop the model
            why = error if isinstance(error, RollerError) else f"{type(error).__name__}: {last_line(error)}"
            graph.refused.append(f"{', '.join(name for name, _ in part.kernels)}: {why}")
        if len(inside) == 1:
            (only,) = names
            costs = Costs.of(device, self.kind.launch)
            plain = plain_kernel(ROperator(only, graph.computations[only].kernels), costs)
            yield Part(((only, plain),), part.sequential_seconds, part.sequential_seconds), ""
            return
        half = len(inside) // 2
        for some in (inside[:half], inside[half:]):
            for smaller in graph.plan_of([node.name for node in some]).parts:
                yield from self._parts(smaller)
