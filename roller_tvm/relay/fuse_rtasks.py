"""``FuseRTasks``: a Relay graph's operators scheduled together, each plan one kernel (Rammer, OSDI'20)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from roller_tvm.device import DeviceSpec
from roller_tvm.emulate import BufferSpec, HostCode, NotEmulated
from roller_tvm.emulate.source import dtype_bytes
from roller_tvm.errors import BadInput, UnsupportedOperator
from roller_tvm.rammer import (
    DataFlowGraph,
    Edge,
    FusionPlan,
    Node,
    Part,
    ROperator,
    VDevice,
    convex_parts,
    explain_fusion,
    plan_graph,
)
from roller_tvm.rammer.code import OperatorCode, fuse
from roller_tvm.rammer.device_code import CannotFuse
from roller_tvm.rammer.policy import plain_kernel
from roller_tvm.rammer.vdevice import Costs
from roller_tvm.relay.dataflow import CallNode, DataFlow, Tensor
from roller_tvm.relay.rtask_codegen import ATTRIBUTE, COMPILER, KernelCode, register
from roller_tvm.relay.rtask_kernels import Computation, Computations
from roller_tvm.relay.rtask_rewrite import Group, rewritten
from roller_tvm.relay.tasks import check_device, make_target
from roller_tvm.relay.tuning import find_device
from roller_tvm.tvm_env import import_relay_tvm

#: The attribute of a module that says what was fused.
FUSED = "roller_rtasks"


@dataclass(frozen=True)
class GraphFusion:
    """What ``FuseRTasks`` made of a model.

    Parameters
    ----------
    plans : tuple of FusionPlan
        One after the other: between them are operators that cannot be planned.
    symbols : tuple of tuple of str
        For each part of each plan the function that is its kernel; '' where its operators stay as they were.
    outside : tuple of (operator, reason)
        What is in no plan.
    refused : tuple of str
        Why plans that were to be fused are not.
    """

    plans: tuple[FusionPlan, ...]
    symbols: tuple[tuple[str, ...], ...]
    outside: tuple[tuple[str, str], ...] = ()
    refused: tuple[str, ...] = ()

    @property
    def kernels(self) -> int:
        """Parts of plans that are one kernel."""
        return sum(bool(s) for symbols in self.symbols for s in symbols)

    @property
    def launches(self) -> int:
        """Kernels that all plans are."""
        return sum(p.launches for p in self.plans)

    @property
    def sequential_launches(self) -> int:
        """Kernels that their operators are, each by itself."""
        return sum(p.sequential_launches for p in self.plans)

    @property
    def seconds(self) -> float:
        return sum(p.seconds for p in self.plans)

    @property
    def sequential_seconds(self) -> float:
        return sum(p.sequential_seconds for p in self.plans)

    @property
    def speedup(self) -> float:
        return self.sequential_seconds / self.seconds if self.seconds else 1.0

    def __str__(self) -> str:
        head = (f"{self.launches} kernels instead of {self.sequential_launches}: {self.seconds * 1e6:.1f} us against "
                f"{self.sequential_seconds * 1e6:.1f} us predicted, {self.speedup:.2f}x")
        lines = [head, *(line for p in self.plans for line in str(p).splitlines()[1:])]
        return "\n".join([*lines, *self._others()])

    def explain(self) -> str:
        """The report of ``--explain``."""
        head = str(self).splitlines()[0]
        return "\n".join([head, *(f"\n{explain_fusion(plan)}" for plan in self.plans), "", *self._others()]).strip()

    def _others(self) -> list[str]:
        lines = [f"  outside of every plan: {name}: {why}" for name, why in self.outside]
        return [*lines, *(f"  refused: {line}" for why in self.refused for line in why.splitlines())]

    def to_json(self) -> dict[str, Any]:
        return {"plans": [p.to_json() for p in self.plans], "symbols": [list(s) for s in self.symbols],
                "outside": [list(o) for o in self.outside], "refused": list(self.refused)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> GraphFusion:
        plans = tuple(map(FusionPlan.from_json, data["plans"]))
        outside = tuple((name, why) for name, why in data["outside"])
        return cls(plans, tuple(map(tuple, data["symbols"])), outside, tuple(data["refused"]))


def FuseRTasks(
    target: Any, device: DeviceSpec | str | None = None, params: Mapping[str, Any] | None = None,
    policy: str = "best", launch: str = "stream", top: int = 10,
) -> Any:  # fmt: skip
    """A pass that makes one kernel of operators that are faster together, by the model.

    It does the ordinary optimisations first (inference forms, constants, common subexpressions, fusion of patterns),
    and leaves what is not fused as it found it then. Build the result with plain ``relay.build`` or ``relay.vm``.

    Parameters
    ----------
    target : str or tvm.target.Target
        For cuda, its architecture given.
    device : DeviceSpec or str, optional
        By default the one that the target names.
    params : mapping of str to array, optional
        Values of parameters, as for ``relay.build``, which needs them no more.
    policy, launch
        See ``rammer.plan_graph``.
    top : int
        Plans an operator, of which the fastest and the most efficient are its rKernels.

    Returns
    -------
    tvm.transform.Pass
        ``fusion_of`` tells what it did to a module.

    Raises
    ------
    TargetError
        The target is none for CUDA, or the device none of it.

    Examples
    --------
    >>> mod = FuseRTasks("cuda -arch=sm_80", params=params)(mod)  # doctest: +SKIP
    >>> print(fusion_of(mod))  # doctest: +SKIP
    >>> lib = relay.build(mod, tvm.target.Target("cuda -arch=sm_80", host="llvm"))  # doctest: +SKIP
    """
    tvm = import_relay_tvm("fusing rTasks of a Relay model")
    made_target = make_target(target)
    spec = find_device(made_target if device is None else device, device is None)
    check_device(spec, made_target)
    register()

    @tvm.transform.module_pass(opt_level=0, name="FuseRTasks")
    def fuse_rtasks(mod: Any, _context: Any) -> Any:
        return _Fuser(spec, made_target, policy, launch, top).run(prepared(mod, params, made_target))

    return fuse_rtasks


def fusion_of(mod: Any) -> GraphFusion | None:
    """What ``FuseRTasks`` did to a module; None for one that it has not seen."""
    if not mod.attrs or FUSED not in mod.attrs:
        return None
    return GraphFusion.from_json(json.loads(str(mod.attrs[FUSED])))


def fused_sources(mod: Any) -> dict[str, str]:
    """CUDA C++ of each fused kernel in a module, by the name of its function."""
    found = {}
    for var, function in mod.functions.items():
        if getattr(function, "attrs", None) and ATTRIBUTE in function.attrs:
            found[str(var.name_hint)] = KernelCode.from_json(str(function.attrs[ATTRIBUTE])).source
    return dict(sorted(found.items()))


def prepared(mod: Any, params: Mapping[str, Any] | None, target: Any) -> Any:
    """A module after Relay's ordinary optimisations, up to the fusion of patterns."""
    import tvm
    from tvm import relay

    if params:
        main = relay.build_module.bind_params_by_name(mod["main"], dict(params))
        mod = tvm.IRModule({**dict(mod.functions.items()), mod.get_global_var("main"): main}, mod.type_definitions)
    passes = relay.transform
    sequence = [
        passes.RemoveUnusedFunctions(), passes.InferType(), passes.SimplifyInference(), passes.FoldConstant(),
        passes.SimplifyExpr(), passes.EliminateCommonSubexpr(), passes.FoldScaleAxis(), passes.FoldConstant(),
        passes.CanonicalizeOps(), passes.InferType(), passes.EliminateCommonSubexpr(), passes.FoldConstant(),
        passes.DeadCodeElimination(), passes.InferType(), passes.FuseOps(), passes.InferType(),
    ]  # fmt: skip
    current = tvm.transform.PassContext.current()
    config = {str(k): v for k, v in current.config.items()}
    with target, tvm.transform.PassContext(3, config=config, instruments=list(current.instruments or ())):
        return tvm.transform.Sequential(sequence)(mod)


@dataclass
class _Fuser:
    """One module's main function, planned and rewritten."""

    device: DeviceSpec
    target: Any
    policy: str
    launch: str
    top: int

    def run(self, mod: Any) -> Any:
        import tvm
        from tvm import relay

        mod = tvm.IRModule(dict(mod.functions.items()), mod.type_definitions)  # not the caller's
        main = mod["main"]
        flow = DataFlow.of(main.body)
        self.made = Computations(self.device, str(self.target.arch), self.top)
        self.computations: dict[str, Computation] = {}
        self.calls = {node.name: node for node in flow.calls}
        self.producers: dict[Tensor, CallNode] = {t: node for node in flow.calls for t in node.outputs}
        self.names: dict[Tensor, str] = {}
        self.results = set(flow.results)
        self.groups: list[Group] = []
        self.codes: dict[str, KernelCode] = {}
        self.refused: list[str] = []
        outside = [("main", f"control flow ({flow.control}) in it")] if flow.control else []
        nodes = [self._node(node) for node in flow.calls]
        plans, symbols = [], []
        steps = convex_parts(nodes)
        self.step = {name: number for number, step in enumerate(steps) for name in step.operators}
        self.last: dict[Tensor, int] = {}
        for node in flow.calls:
            for tensor in node.inputs:
                self.last[tensor] = max(self.last.get(tensor, -1), self.step[node.name])
        self.last |= dict.fromkeys(self.results, len(steps))
        for step in steps:
            if step.outside:
                outside += [(name, step.outside) for name in step.operators]
                continue
            plan = self._plan(step.operators)
            made = [self._part(part) for part in plan.parts]
            plans.append(replace(plan, parts=tuple(part for part, _ in made)))
            symbols.append(tuple(symbol for _, symbol in made))
        fusion = GraphFusion(tuple(plans), tuple(symbols), tuple(outside), tuple(self.refused))
        if self.groups:
            body, functions = rewritten(flow.body, self.groups)
            for variable, function in functions.items():
                symbol = str(variable.name_hint)
                function = function.with_attr({
                    "Primitive": tvm.tir.IntImm("int32", 1), "Inline": tvm.tir.IntImm("int32", 1),
                    "Compiler": COMPILER, "global_symbol": symbol, ATTRIBUTE: self.codes[symbol].to_json(),
                })
                mod[variable] = function
            mod["main"] = relay.Function(main.params, body, None, main.type_params, main.attrs)
        mod = relay.transform.InferType()(relay.transform.DefuseOps()(mod))
        return mod.with_attr(FUSED, tvm.runtime.convert(json.dumps(fusion.to_json())))

    def _node(self, node: CallNode) -> Node:
        inputs = tuple(dict.fromkeys(self.producers[t].name for t in node.inputs if t in self.producers))
        outside = node.outside
        if not outside:
            try:
                self.computations[node.name] = self.made.of(node.call.op, node.name)
            except UnsupportedOperator as error:
                outside = error.what
        return Node(node.name, inputs, outside, node.effect)

    def _plan(self, names: Sequence[str]) -> FusionPlan:
        inside = set(names)
        operators = []
        for name in names:
            node, computation = self.calls[name], self.computations[name]
            edges = []
            for argument, tensor in zip(computation.inputs, node.inputs, strict=True):
                writer = self.producers.get(tensor)
                if writer is not None and writer.name in inside and argument:
                    edges.append(Edge(argument, writer.name, self.computations[writer.name].outputs[tensor[1]]))
            operators.append(ROperator(name, computation.kernels, tuple(edges)))
        kept = [n for n in names if any(self._last(t) > self.step[n] for t in self.calls[n].outputs)]
        graph = DataFlowGraph(tuple(operators))
        return plan_graph(graph, self.device, self.policy, self.launch, kept, self._resident(self.step[names[0]]))

    def _last(self, tensor: Tensor) -> int:
        """The last step that reads a tensor."""
        return self.last.get(tensor, -1)

    def _resident(self, step: int) -> int:
        """Bytes that others keep in memory while a step runs: inputs and weights, results between steps."""
        total = sum(_bytes(t) for t in self.last if t not in self.producers)
        for tensor, node in self.producers.items():
            at = self.step[node.name]
            total += _bytes(tensor) if at < step <= self._last(tensor) else 0
        return total

    def _part(self, part: Part) -> tuple[Part, str]:
        """A part with its code; unfused where there is none."""
        if part.program is None:
            for name, kernel in part.kernels:
                try:
                    VDevice.of(self.device, [kernel])
                except BadInput as error:
                    self._refuse(f"operator '{name}'", error)
            return part, ""
        try:
            return part, self._fused(part)
        except (CannotFuse, NotEmulated, BadInput) as error:
            self._refuse(f"plan of {', '.join(name for name, _ in part.kernels)}", error)
        costs = Costs.of(self.device, self.launch)
        plain = tuple((n, plain_kernel(ROperator(n, self.computations[n].kernels), costs)) for n, _ in part.kernels)
        return Part(plain, part.sequential_seconds, part.sequential_seconds), ""

    def _refuse(self, what: str, error: Exception) -> None:
        self.refused.append(f"{what} stays unfused: {error}")

    def _fused(self, part: Part) -> str:
        assert part.program is not None
        inside = [self.calls[name] for name, _ in part.kernels]
        members = {node.name for node in inside}
        codes = {}
        for (name, kernel), node in zip(part.kernels, inside, strict=True):
            source, host = self.made.code(self.computations[name], kernel)
            tensors = tuple(self._name(t) for t in (*node.inputs, *node.outputs))
            codes[name] = OperatorCode(source, host, tensors, len(node.outputs))
        written = {t for node in inside for t in node.outputs}
        others = {t for node in self.calls.values() if node.name not in members for t in node.inputs} | self.results
        symbol = f"rtasks_{len(self.codes)}"
        fused = fuse(symbol, part.program, codes, self.device, {self._name(t) for t in written & others})
        inputs = tuple(dict.fromkeys(t for node in inside for t in node.inputs if t not in written))
        given = {p.name for p in fused.host.parameters if isinstance(p, BufferSpec)}
        outputs = tuple(t for node in inside for t in node.outputs if self._name(t) in given)
        code = KernelCode(fused.source, self._host(fused.host, inputs, outputs), str(self.target.arch))
        symbol = self._shared(symbol, code)
        self.groups.append(Group(symbol, tuple(node.call for node in inside), inputs, outputs))
        return symbol

    def _host(self, host: HostCode, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> HostCode:
        """The launch of a kernel that is given the function's inputs, then its outputs."""
        known = {p.name: p for p in host.parameters if isinstance(p, BufferSpec)}
        parameters = []
        for tensor in (*inputs, *outputs):
            name, (shape, dtype) = self._name(tensor), _shape(tensor)
            parameters.append(replace(known[name], shape=shape) if name in known else BufferSpec(name, shape, dtype))
        return HostCode(tuple(parameters), host.between, host.launches)

    def _shared(self, symbol: str, code: KernelCode) -> str:
        """The function of an equal kernel, or a new one."""
        for other, known in self.codes.items():
            if _anonymous(other, known) == _anonymous(symbol, code):
                return other
        self.codes[symbol] = code
        return symbol

    def _name(self, tensor: Tensor) -> str:
        """A tensor's name, unique in the graph."""
        if tensor not in self.names:
            expr, number = tensor
            node = self.producers.get(tensor)
            if node is not None:
                name = node.name if len(node.outputs) == 1 else f"{node.name}:{number}"
            else:
                name = f"{getattr(expr, 'name_hint', 'constant')}@{len(self.names)}"
            self.names[tensor] = name
        return self.names[tensor]


def _bytes(tensor: Tensor) -> int:
    """0 where its size is not known."""
    try:
        shape, dtype = _shape(tensor)
        return prod(shape) * dtype_bytes(dtype)
    except (TypeError, ValueError, AttributeError):  # a dynamic shape, no tensor
        return 0


def _shape(tensor: Tensor) -> tuple[tuple[int, ...], str]:
    from tvm import relay

    expr, number = tensor
    kind = expr.checked_type
    kind = kind.fields[number] if isinstance(kind, relay.TupleType) else kind
    return tuple(int(e) for e in kind.shape), str(kind.dtype)


def _anonymous(symbol: str, code: KernelCode) -> tuple[Any, ...]:
    """What of a kernel does not depend on its name, nor on those of its tensors."""
    host = code.host
    places = {s.name: n for n, s in enumerate((*host.parameters, *host.between)) if isinstance(s, BufferSpec)}
    specs = [(s.shape, s.dtype) for s in (*host.parameters, *host.between) if isinstance(s, BufferSpec)]
    launch = host.launches[0]
    arguments = tuple(places.get(a, a) for a in launch.arguments)
    return (code.source.replace(symbol, "@"), specs, len(host.between), arguments, launch.grid, launch.block,
            launch.dynamic_shared)
