"""``FuseRTasks``: a Relay graph's operators scheduled together, each plan one kernel (Rammer, OSDI'20)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from roller_tvm.device import DeviceSpec
from roller_tvm.emulate import BufferSpec, HostCode
from roller_tvm.emulate.source import dtype_bytes
from roller_tvm.errors import BadInput, UnsupportedOperator
from roller_tvm.rammer import (
    DataFlowGraph,
    Edge,
    FusionPlan,
    Node,
    Part,
    RKernel,
    ROperator,
    VDevice,
    convex_parts,
    draw,
    explain_fusion,
    plan_graph,
)
from roller_tvm.rammer.code import OperatorCode, fuse
from roller_tvm.rammer.device_code import CannotFuse
from roller_tvm.rammer.policy import plain_kernel
from roller_tvm.rammer.regions import plan_regions
from roller_tvm.rammer.vdevice import Costs
from roller_tvm.relay.dataflow import CallNode, DataFlow, Tensor, as_graph
from roller_tvm.relay.folding import shared_constant_kernels
from roller_tvm.relay.rtask_codegen import (
    ATTRIBUTE,
    COMPILER,
    KernelCode,
    RegionCode,
    register_fused_kernels,
    with_one_workspace,
)
from roller_tvm.relay.rtask_kernels import Computation, Computations
from roller_tvm.relay.rtask_regions import Regions
from roller_tvm.relay.rtask_rewrite import Group, rewritten
from roller_tvm.relay.tasks import check_device, make_target
from roller_tvm.relay.tuning import find_device
from roller_tvm.tvm_env import import_relay_tvm

#: The attribute of a module that says what was fused.
FUSED = "roller_rtasks"
#: Of ``relay.build``'s own levels the one at which it fuses all patterns.
FUSION_LEVEL = 3


@dataclass(frozen=True)
class GraphFusion:
    """What ``FuseRTasks`` made of a model.

    Parameters
    ----------
    device : DeviceSpec
    plans : tuple of FusionPlan
        One after the other: between them are operators that cannot be planned.
    symbols : tuple of tuple of str
        For each part of each plan the function that is its kernel; '' where its operators stay as they were.
    outside : tuple of (operator, reason)
        What is in no plan.
    refused : tuple of str
        Why plans that were to be fused are not.
    """

    device: DeviceSpec
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
    def predicted_seconds(self) -> float:
        return sum(p.seconds for p in self.plans)

    @property
    def sequential_seconds(self) -> float:
        return sum(p.sequential_seconds for p in self.plans)

    @property
    def speedup(self) -> float:
        return self.sequential_seconds / self.predicted_seconds if self.predicted_seconds else 1.0

    def __str__(self) -> str:
        head = (f"FuseRTasks: {self.launches} kernels instead of {self.sequential_launches}, "
                f"{self.predicted_seconds * 1e6:.1f} us against {self.sequential_seconds * 1e6:.1f} us predicted, "
                f"{self.kernels} plans")
        lines = [head, *(line for p in self.plans for line in str(p).splitlines()[1:])]
        return "\n".join([*lines, *self._others()])

    def explain(self) -> str:
        """The report of ``--explain``."""
        head = str(self).splitlines()[0]
        return "\n".join([head, *(f"\n{explain_fusion(plan)}" for plan in self.plans), "", *self._others()]).strip()

    def pictures(self) -> tuple[str, ...]:
        """The operators of each plan over time, before and after, as SVG."""
        return tuple(draw(plan, self.device) for plan in self.plans)

    def _others(self) -> list[str]:
        lines = [f"  outside of every plan: {name}: {why}" for name, why in self.outside]
        return [*lines, *(f"  refused: {line}" for why in self.refused for line in why.splitlines())]

    def to_json(self) -> dict[str, Any]:
        return {
            "device": self.device.to_json(), "plans": [p.to_json() for p in self.plans],
            "symbols": [list(s) for s in self.symbols], "outside": [list(o) for o in self.outside],
            "refused": list(self.refused),
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> GraphFusion:
        plans = tuple(map(FusionPlan.from_json, data["plans"]))
        outside = tuple((name, why) for name, why in data["outside"])
        device = DeviceSpec.from_json(data["device"])
        return cls(device, plans, tuple(map(tuple, data["symbols"])), outside, tuple(data["refused"]))


def FuseRTasks(
    target: Any, device: DeviceSpec | str | None = None, params: Mapping[str, Any] | None = None,
    policy: str = "best", launch: str = "stream", top: int = 10,
) -> Any:  # fmt: skip
    """A pass that makes one kernel of operators that are faster together, by the model.

    It does the ordinary optimisations first (inference forms, constants, common subexpressions, fusion of patterns),
    and leaves what is not fused as it found it then. Build the result with plain ``relay.build`` or ``relay.vm``. A
    kernel whose blocks wait for each other counts their steps in the loaded module: run it in one stream at a time.

    Parameters
    ----------
    target : str or tvm.target.Target
        For cuda, its architecture given; or for a CPU, where independent operators that leave threads idle run side by
        side in one parallel region.
    device : DeviceSpec or str, optional
        By default the one that the target names.
    params : mapping of str to array, optional
        Values of parameters, as for ``relay.build``, which needs them no more.
    policy, launch
        On a GPU; see ``rammer.plan_graph``.
    top : int
        On a GPU: plans an operator, of which the fastest and the most efficient are its rKernels.

    Returns
    -------
    tvm.transform.Pass
        ``fusion_of`` tells what it did to a module.

    Raises
    ------
    TargetError
        The target is for neither, or the device none of it.

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
    register_fused_kernels()

    @tvm.transform.module_pass(opt_level=0, name="FuseRTasks")
    def fuse_rtasks(mod: Any, _context: Any) -> Any:
        fuser = _CpuFuser if spec.kind == "cpu" else _Fuser
        return fuser(spec, made_target, policy, launch, top).run(prepared(mod, params, made_target))

    return fuse_rtasks


def fusion_of(mod: Any) -> GraphFusion | None:
    """What ``FuseRTasks`` did to a module; None for one that it has not seen."""
    if not mod.attrs or FUSED not in mod.attrs:
        return None
    return GraphFusion.from_json(json.loads(str(mod.attrs[FUSED])))


def fused_sources(mod: Any) -> dict[str, str]:
    """CUDA C++ (for a CPU TensorIR) of each fused kernel in a module, by the name of its function."""
    import tvm

    found = {}
    for var, function in mod.functions.items():
        if getattr(function, "attrs", None) and ATTRIBUTE in function.attrs:
            data = json.loads(str(function.attrs[ATTRIBUTE]))
            found[str(var.name_hint)] = str(data["source"] if "source" in data else tvm.ir.load_json(data["module"]))
    return dict(sorted(found.items()))


def prepared(mod: Any, params: Mapping[str, Any] | None, target: Any) -> Any:
    """A module after Relay's ordinary optimisations, up to the fusion of patterns."""
    import tvm
    from tvm import relay

    if params:
        main = relay.build_module.bind_params_by_name(mod["main"], dict(params))
        mod = tvm.IRModule({**dict(mod.functions.items()), mod.get_global_var("main"): main}, mod.type_definitions)
    mod = as_graph(relay.transform.InferType()(mod))
    passes = relay.transform
    sequence = [
        passes.RemoveUnusedFunctions(), passes.InferType(), passes.SimplifyInference(), passes.FoldConstant(),
        passes.SimplifyExpr(), passes.EliminateCommonSubexpr(), passes.FoldScaleAxis(), passes.FoldConstant(),
        passes.CanonicalizeOps(), *([passes.AlterOpLayout()] if target.kind.name == "llvm" else []), passes.InferType(),
        passes.EliminateCommonSubexpr(), passes.FoldConstant(),
        passes.DeadCodeElimination(), passes.InferType(), passes.FuseOps(FUSION_LEVEL), passes.InferType(),
    ]  # fmt: skip
    with target, shared_constant_kernels():
        for one in sequence:  # not as a Sequential, which leaves out what the context's level does not ask for
            mod = one(mod)
    return mod


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
        self.flow = flow
        self.made = self._computations()
        self.computations: dict[str, Computation] = {}
        self.outside = {node.name: node.outside for node in flow.calls if node.outside}
        self.calls = {node.name: node for node in flow.calls}
        self.producers: dict[Tensor, CallNode] = {t: node for node in flow.calls for t in node.outputs}
        self.readers: dict[Tensor, set[str]] = {}
        for node in flow.calls:
            for tensor in node.inputs:
                self.readers.setdefault(tensor, set()).add(node.name)
        self.results = set(flow.results)
        self.names: dict[Tensor, str] = {}
        self.groups: list[Group] = []
        self.codes: dict[str, KernelCode | RegionCode] = {}
        self.refused: list[str] = []
        for node in flow.calls:
            if not node.outside:
                try:
                    self.computations[node.name] = self.made.of(node.call.op, node.name)
                except UnsupportedOperator as error:
                    self.outside[node.name] = error.what
        plans, symbols = [], []
        for plan in self._planned():
            made = [one for part in plan.parts for one in self._parts(part)]
            plans.append(replace(plan, parts=tuple(part for part, _ in made)))
            symbols.append(tuple(symbol for _, symbol in made))
        if flow.control:
            self.outside["main"] = f"control flow in it ({flow.control})"
        fusion = GraphFusion(self.device, tuple(plans), tuple(symbols), tuple(self.outside.items()),
                             tuple(self.refused))  # fmt: skip
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

    def _computations(self) -> Computations:
        return Computations(self.device, str(self.target.arch), self.top)

    def _planned(self) -> list[FusionPlan]:
        """A plan for each convex part; every rKernel in them has code."""
        while True:
            nodes = []
            for node in self.flow.calls:
                inputs = dict.fromkeys(self.producers[t].name for t in node.inputs if t in self.producers)
                nodes.append(Node(node.name, tuple(inputs), self.outside.get(node.name, ""), node.effect))
            self.steps = convex_parts(nodes)
            self.step = {name: number for number, step in enumerate(self.steps) for name in step.operators}
            outside = len(self.outside)
            plans = [self._plan_of_step(step.operators) for step in self.steps if not step.outside]
            if len(self.outside) == outside:
                return plans

    def _plan_of_step(self, names: Sequence[str]) -> FusionPlan:
        """A plan; what has no code is given up, an operator of which nothing is left is outside from now on."""
        while True:
            names = [name for name in names if name not in self.outside]
            plan = self._plan(names)
            lost = False
            for name, kernel in [k for part in plan.parts if part.program for k in part.kernels]:
                computation = self.computations[name]
                try:
                    self._check(name, kernel)
                except CannotFuse as error:
                    lost = True
                    if kernel in computation.kernels:
                        self.refused.append(str(error))
                        computation.kernels = tuple(k for k in computation.kernels if k is not kernel)
                    if not computation.kernels:
                        self.outside[name] = error.what
            if not lost:
                return plan

    def _plan(self, names: Sequence[str]) -> FusionPlan:
        inside = set(names)
        operators = []
        for name in names:
            node, computation = self.calls[name], self.computations[name]
            edges = []
            for argument, tensor in zip(computation.inputs, node.inputs, strict=True):
                writer = self.producers.get(tensor) if argument else None
                if writer is not None and writer.name in inside:
                    edges.append(Edge(argument, writer.name, self.computations[writer.name].outputs[tensor[1]]))
            size = sum(map(_bytes, node.outputs)) if computation.kernels[0].plan is None else 0
            operators.append(ROperator(name, computation.kernels, tuple(edges), size))
        kept = [n for n in names if any(self._kept(t, inside) for t in self.calls[n].outputs)]
        graph = DataFlowGraph(tuple(operators))
        return self._schedule(graph, kept, self._resident(self.step[names[0]]) if names else 0)

    def _schedule(self, graph: DataFlowGraph, kept: list[str], resident: int) -> FusionPlan:
        return plan_graph(graph, self.device, self.policy, self.launch, kept, resident)

    def _check(self, name: str, kernel: RKernel) -> None:
        """That an rKernel has code."""
        self.made.code(self.computations[name], kernel, name)

    def _kept(self, tensor: Tensor, inside: set[str]) -> bool:
        """Whether a tensor is read outside of these operators."""
        return tensor in self.results or not self.readers.get(tensor, set()) <= inside

    def _resident(self, step: int) -> int:
        """Bytes that others keep in memory while a step runs: inputs and weights, results between steps."""
        total = 0
        for tensor, readers in self.readers.items():
            node = self.producers.get(tensor)
            last = len(self.steps) if tensor in self.results else max(self.step[r] for r in readers)
            if node is None or self.step[node.name] < step <= last:
                total += _bytes(tensor)
        return total

    def _parts(self, part: Part) -> Iterator[tuple[Part, str]]:
        """A part with its kernel; in halves where it cannot be one, in the end unfused."""
        if part.program is None:
            for name, kernel in part.kernels:
                try:
                    VDevice.of(self.device, [kernel])
                except BadInput as error:
                    self.refused.append(f"operator '{name}': {error}")
            yield part, ""
            return
        names = [name for name, _ in part.kernels]
        try:
            symbol = f"rtasks_{len(self.codes)}"
            inside = [self.calls[name] for name, _ in part.kernels]
            code, inputs, outputs = self._fused(symbol, part, inside)
            self.codes[symbol] = code
            self.groups.append(Group(symbol, tuple(node.call for node in inside), inputs, outputs))
            yield part, symbol
            return
        except (CannotFuse, BadInput) as error:
            self.refused.append(f"{', '.join(names)}: {error}")
        if len(names) == 1:
            costs = Costs.of(self.device, self.launch)
            plain = plain_kernel(ROperator(names[0], self.computations[names[0]].kernels), costs)
            yield Part(((names[0], plain),), part.sequential_seconds, part.sequential_seconds), ""
            return
        ordered = [node.name for node in self.flow.calls if node.name in names]
        half = len(ordered) // 2
        for some in (ordered[:half], ordered[half:]):
            for smaller in self._plan_of_step(some).parts:
                yield from self._parts(smaller)

    def _fused(
        self, symbol: str, part: Part, inside: Sequence[CallNode]
    ) -> tuple[KernelCode | RegionCode, tuple[Tensor, ...], tuple[Tensor, ...]]:
        """The code of a part, what it is given, and what it returns."""
        assert part.program is not None
        members = {node.name for node in inside}
        codes = {}
        for (name, kernel), node in zip(part.kernels, inside, strict=True):
            source, host = self.made.code(self.computations[name], kernel, name)
            read = [t for t, argument in zip(node.inputs, self.computations[name].inputs, strict=True) if argument]
            tensors = tuple(self._name(t) for t in (*read, *node.outputs))
            codes[name] = OperatorCode(source, host, tensors, len(node.outputs))
        written = {t for node in inside for t in node.outputs}
        kept = {self._name(t) for t in written if self._kept(t, members)}
        fused = fuse(symbol, part.program, codes, self.device, kept)
        inputs = tuple(dict.fromkeys(t for node in inside for t in node.inputs if t not in written))
        given = {p.name for p in fused.host.parameters if isinstance(p, BufferSpec)}
        outputs = tuple(t for node in inside for t in node.outputs if self._name(t) in given)
        source, host = with_one_workspace(fused.source, self._host(fused.host, inputs, outputs))
        return KernelCode(source, host, str(self.target.arch)), inputs, outputs

    def _host(self, host: HostCode, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> HostCode:
        """The launch of a kernel that is given the function's inputs, then its outputs."""
        known = {p.name: p for p in host.parameters if isinstance(p, BufferSpec)}
        parameters = []
        for tensor in (*inputs, *outputs):
            name, (shape, dtype) = self._name(tensor), _shape(tensor)
            parameters.append(replace(known[name], shape=shape) if name in known else BufferSpec(name, shape, dtype))
        return HostCode(tuple(parameters), host.between, host.launches)

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


class _CpuFuser(_Fuser):
    """On a CPU: operators of a wave side by side in one parallel region, where a thread would be idle otherwise."""

    made: Regions

    def _computations(self) -> Computations:
        return Regions(self.device, "", 1, self.target)

    def _schedule(self, graph: DataFlowGraph, kept: list[str], resident: int) -> FusionPlan:
        apart = {o.name: why for o in graph.operators if (why := self.made.apart(self.computations[o.name]))}
        for name, why in apart.items():
            line = f"{name} stays by itself: {why}"
            self.refused += [line] if line not in self.refused else []
        return plan_regions(graph, self.device, kept, resident, set(apart))

    def _check(self, name: str, kernel: RKernel) -> None:
        """Loops were read when it was planned."""

    def _fused(
        self, symbol: str, part: Part, inside: Sequence[CallNode]
    ) -> tuple[KernelCode | RegionCode, tuple[Tensor, ...], tuple[Tensor, ...]]:
        assert part.program is not None
        inputs = tuple(dict.fromkeys(t for node in inside for t in node.inputs))
        outputs = tuple(t for node in inside for t in node.outputs)
        members = []
        for node in inside:
            computation = self.computations[node.name]
            read = [t for t, argument in zip(node.inputs, computation.inputs, strict=True) if argument]
            members.append((node.name, computation, (*read, *node.outputs)))
        places = {t: n for n, t in enumerate((*inputs, *outputs))}
        specs = [_shape(t) for t in (*inputs, *outputs)]
        text = self.made.merged(
            symbol, part.program, [(n, c, tuple(places[t] for t in tensors)) for n, c, tensors in members], specs
        )  # fmt: skip
        return RegionCode(text, str(self.target)), inputs, outputs


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
