"""``FuseRTasks``: schedules a Relay graph's operators together, one kernel per part of a plan (Rammer, OSDI'20)."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

from roller_tvm.codegen.cuda_text import dtype_bytes
from roller_tvm.codegen.host_code import BufferSpec, HostCode
from roller_tvm.device import DeviceSpec
from roller_tvm.rammer import FusionPlan, Part, check_choices, explain_fusion
from roller_tvm.rammer.functions import Call
from roller_tvm.rammer.fuse import CallGraph, Fuser
from roller_tvm.rammer.fused_model import FusedRegion, ModelFusion
from roller_tvm.rammer.makers import KernelMaker, Maker, RegionMaker
from roller_tvm.rammer.without_spills import without_spills
from roller_tvm.relay.dataflow import CallNode, DataFlow, Tensor, as_graph, without_copies
from roller_tvm.relay.folding import shared_constant_kernels
from roller_tvm.relay.fused_calls import Group, rewritten
from roller_tvm.relay.fused_codegen import ATTRIBUTE, COMPILER, KernelCode, RegionCode, register_fused_kernels
from roller_tvm.relay.rtask_functions import RelayFunctions
from roller_tvm.relay.rtask_regions import RegionFunctions, merged
from roller_tvm.relay.tasks import check_device, find_device, make_target
from roller_tvm.tvm_env import import_relay_tvm

#: The level at which ``relay.build`` fuses all patterns.
FUSION_LEVEL = 3
#: Attribute of a module with the report of the fusion.
FUSED = "roller_rtasks"


def FuseRTasks(
    target: Any, device: DeviceSpec | str | None = None, params: Mapping[str, Any] | None = None,
    policy: str = "best", launch: str = "stream", top: int = 10,
) -> Any:  # fmt: skip
    """Return a pass that fuses operators into one kernel if the model predicts that this is faster.

    It runs Relay's ordinary optimisations first (inference forms, constants, common subexpressions, fusion of patterns)
    and leaves the other operators in that form. Build the result with plain ``relay.build`` or ``relay.vm``. A kernel
    whose blocks wait for each other counts their steps in the loaded module: run it in one stream at a time. All of its
    blocks must be resident at once: on a device with fewer units than planned for, it fails after some seconds. A
    target only names an architecture; if your card has fewer units than others of it (A30, L4, a MIG slice), pass the
    card's name or a spec file as `device`.

    Parameters
    ----------
    target : str or tvm.target.Target
        CUDA with its architecture, or a CPU. On a CPU, independent operators that leave threads idle run side by side
        in one parallel region.
    device : DeviceSpec or str, optional
        By default the representative device of the target's architecture.
    params : mapping of str to array, optional
        Values of parameters; ``relay.build`` no longer needs them.
    policy, launch
        For a GPU; see ``rammer.plan_graph``.
    top : int
        For a GPU: plans per operator; the fastest and the most efficient become its rKernels.

    Returns
    -------
    tvm.transform.Pass
        ``fusion_of`` returns its report for a module.

    Raises
    ------
    TargetError
        The target is neither CUDA nor a CPU, or the device does not fit it.

    Examples
    --------
    >>> mod = FuseRTasks("cuda -arch=sm_80", params=params)(mod)
    >>> print(fusion_of(mod))
    FuseRTasks: ... kernels instead of ...
    >>> lib = relay.build(mod, tvm.target.Target("cuda -arch=sm_80", host="llvm"))
    """
    check_choices(policy, launch)
    tvm = import_relay_tvm("fusing rTasks of a Relay model")
    made_target, spec = target_and_device(target, device)
    register_fused_kernels()

    @tvm.transform.module_pass(opt_level=0, name="FuseRTasks")
    def fuse_rtasks(mod: Any, _context: Any) -> Any:
        mod = prepared(mod, params, made_target)
        graph = ModelGraph.of(mod)
        if spec.kind == "cpu":
            maker: Maker = CpuRegions(RegionFunctions(spec, "", 1, made_target), graph, made_target)
        else:
            maker = GpuKernels(RelayFunctions(spec, str(made_target.arch), top), graph, policy, launch)
        return fused(mod, graph, maker)

    return fuse_rtasks


def target_and_device(target: Any, device: DeviceSpec | str | None) -> tuple[Any, DeviceSpec]:
    """Return the target, and the device to plan for; raise ``TargetError`` if they do not fit."""
    made = make_target(target)
    spec = find_device(made if device is None else device, device is None)
    check_device(spec, made)
    return made, spec


def fusion_of(mod: Any) -> GraphFusion | None:
    """Return the report of ``FuseRTasks`` on a module; None if the pass was not run on it."""
    if not mod.attrs or FUSED not in mod.attrs:
        return None
    return GraphFusion.from_json(json.loads(str(mod.attrs[FUSED])))


def fused_sources(mod: Any) -> dict[str, str]:
    """Return the source of each fused kernel by function name: CUDA C++, or TensorIR for a CPU."""
    import tvm

    found = {}
    for var, function in mod.functions.items():
        if getattr(function, "attrs", None) and ATTRIBUTE in function.attrs:
            data = json.loads(str(function.attrs[ATTRIBUTE]))
            found[str(var.name_hint)] = str(data["source"] if "source" in data else tvm.ir.load_json(data["module"]))
    return dict(sorted(found.items()))


class GraphFusion(ModelFusion):
    """The report of ``FuseRTasks`` on a Relay model, as text, pictures and JSON."""

    @property
    def kernels(self) -> int:
        """Number of parts that became one kernel."""
        return len(self.functions)

    def __str__(self) -> str:
        lines = [self.headline(), *(line for p in self.plans for line in str(p).splitlines()[1:])]
        return "\n".join([*lines, *self._others()])

    def explain(self) -> str:
        """Return the report of ``--explain``."""
        plans = (f"\n{explain_fusion(plan)}" for plan in self.plans)
        return "\n".join([self.headline(), *plans, "", *self._others()]).strip()

    def _others(self) -> list[str]:
        lines = [f"  outside of every plan: {name}: {why}" for name, why in self.outside]
        return [*lines, *(f"  refused: {line}" for why in self.refused for line in why.splitlines())]

    def to_json(self) -> dict[str, Any]:
        assert self.device is not None
        return {
            "device": self.device.to_json(), "plans": [p.to_json() for p in self.plans],
            "symbols": [list(r.functions) for r in self.regions], "outside": [list(o) for o in self.outside],
            "refused": [list(r.refused) for r in self.regions],
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> GraphFusion:
        regions = [
            FusedRegion(f"main.{n}", FusionPlan.from_json(plan), tuple(symbols), tuple(refused))
            for n, (plan, symbols, refused) in enumerate(zip(data["plans"], data["symbols"], data["refused"],
                                                             strict=True))
        ]  # fmt: skip
        return cls(DeviceSpec.from_json(data["device"]), regions, [(name, why) for name, why in data["outside"]])


def prepared(mod: Any, params: Mapping[str, Any] | None, target: Any) -> Any:
    """Return a module after Relay's ordinary optimisations, including the fusion of patterns."""
    import tvm
    from tvm import relay

    from roller_tvm.relay.recurrent import with_recurrences

    if params:
        main = relay.build_module.bind_params_by_name(mod["main"], dict(params))
        mod = tvm.IRModule({**dict(mod.functions.items()), mod.get_global_var("main"): main}, mod.type_definitions)
    mod = with_recurrences(as_graph(relay.transform.InferType()(mod)), target, None)
    main = mod["main"]
    body = without_copies(main.body)
    if not body.same_as(main.body):
        main = relay.Function(main.params, body, main.ret_type, main.type_params, main.attrs)
        mod = tvm.IRModule({**dict(mod.functions.items()), mod.get_global_var("main"): main}, mod.type_definitions)
    passes = relay.transform
    sequence = [
        passes.RemoveUnusedFunctions(), passes.InferType(), relay.qnn.transform.Legalize(),
        relay.qnn.transform.CanonicalizeOps(), passes.SimplifyInference(), passes.FoldConstant(),
        passes.SimplifyExpr(), passes.EliminateCommonSubexpr(), passes.FoldScaleAxis(), passes.FoldConstant(),
        passes.CanonicalizeOps(), *([passes.AlterOpLayout()] if target.kind.name == "llvm" else []), passes.InferType(),
        passes.EliminateCommonSubexpr(), passes.FoldConstant(),
        passes.DeadCodeElimination(), passes.InferType(), passes.FuseOps(FUSION_LEVEL), passes.InferType(),
    ]  # fmt: skip
    with target, shared_constant_kernels():
        for one in sequence:  # not as a Sequential, which leaves out what the context's level does not ask for
            mod = one(mod)
    return mod


@dataclass(frozen=True)
class ModelGraph:
    """The main function of a module, as calls on named tensors."""

    flow: DataFlow

    @classmethod
    def of(cls, mod: Any) -> ModelGraph:
        return cls(DataFlow.of(mod["main"].body, mod))

    @cached_property
    def name_of(self) -> dict[Tensor, str]:
        """Tensor -> its name, unique in the graph."""
        names: dict[Tensor, str] = {}
        for node in self.flow.calls:
            for number, tensor in enumerate(node.outputs):
                names[tensor] = node.name if len(node.outputs) == 1 else f"{node.name}:{number}"
        for tensor in (*(t for node in self.flow.calls for t in node.inputs), *self.flow.results):
            names.setdefault(tensor, f"{getattr(tensor[0], 'name_hint', 'constant')}@{len(names)}")
        return names

    @cached_property
    def tensor_of(self) -> dict[str, Tensor]:
        return {name: tensor for tensor, name in self.name_of.items()}

    @cached_property
    def calls(self) -> CallGraph:
        name_of = self.name_of
        nodes = {node.call: node for node in self.flow.calls}
        parts: dict[str, list[Tensor]] = {}  # parts of a part of what a call returns
        for tensor in (t for node in self.flow.calls for t in node.inputs):
            maker = nodes.get(_whole(tensor[0]))
            if maker is not None and tensor not in maker.outputs and tensor not in parts.setdefault(maker.name, []):
                parts[maker.name].append(tensor)
        calls = []
        for node in self.flow.calls:
            writes = (*node.outputs, *parts.get(node.name, ()))
            outside = node.outside or ("it returns tuples of tuples" if node.name in parts else "")
            tensors = tuple(name_of[t] for t in (*node.inputs, *writes))
            calls.append(Call(node.name, node.call.op, tensors, len(writes), outside, node.effect))
        results = frozenset(name_of[t] for t in self.flow.results)
        return CallGraph(tuple(calls), results, {name: bytes_of(t) for t, name in name_of.items()})

    def interface(self, calls: Sequence[Call], outputs: Collection[str]) -> tuple[list[str], list[str]]:
        """Return the inputs of some calls together, and those of their outputs that are in `outputs`."""
        written = {t for call in calls for t in call.writes}
        inputs = dict.fromkeys(t for call in calls for t in call.reads if t not in written)
        return list(inputs), [t for call in calls for t in call.writes if t in outputs]

    def group(self, symbol: str, calls: Sequence[Call], inputs: Sequence[str], outputs: Sequence[str]) -> Group:
        nodes: dict[str, CallNode] = {node.name: node for node in self.flow.calls}
        tensors = self.tensor_of
        return Group(symbol, tuple(nodes[c.name].call for c in calls), tuple(tensors[t] for t in inputs),
                     tuple(tensors[t] for t in outputs))


def _whole(expr: Any) -> Any:
    """Return the expression under all TupleGetItems."""
    from tvm import relay

    while isinstance(expr, relay.TupleGetItem):
        expr = expr.tuple_value
    return expr


def shape_and_dtype(tensor: Tensor) -> tuple[tuple[int, ...], str]:
    """Return the shape and the dtype of a tensor whose shape is known."""
    from tvm import relay

    expr, number = tensor
    kind = expr.checked_type
    kind = kind.fields[number] if isinstance(kind, relay.TupleType) else kind
    return tuple(int(e) for e in kind.shape), str(kind.dtype)


def bytes_of(tensor: Tensor) -> int | None:
    """Return the size of a tensor in bytes; None if it is known only at run time, or is no tensor's."""
    from tvm import relay, tir

    expr, number = tensor
    kind = expr.checked_type
    kind = kind.fields[number] if isinstance(kind, relay.TupleType) else kind
    if not isinstance(kind, relay.TensorType) or not all(isinstance(e, tir.IntImm) for e in kind.shape):
        return None
    return prod(int(e) for e in kind.shape) * dtype_bytes(str(kind.dtype))


#: Code of a part, with the inputs and the outputs of its function.
Made = tuple[KernelCode | RegionCode, list[str], list[str]]


class GpuKernels(KernelMaker):
    """Makes one CUDA C++ kernel per part, whose rTasks are the blocks of TVM's own kernels."""

    def __init__(self, functions: RelayFunctions, graph: ModelGraph, policy: str, launch: str) -> None:
        super().__init__(functions, policy, launch)
        self.graph, self.arch = graph, functions.arch

    def make(self, symbol: str, part: Part, calls: Sequence[Call], kept: Collection[str]) -> Made:
        kernel = without_spills(self.fused(symbol, part, calls, kept), self.device, self.arch)
        known = {p.name: p for p in kernel.host.parameters if isinstance(p, BufferSpec)}
        inputs, outputs = self.graph.interface(calls, known)
        parameters = []
        for name in (*inputs, *outputs):
            shape, dtype = shape_and_dtype(self.graph.tensor_of[name])
            parameters.append(replace(known[name], shape=shape) if name in known else BufferSpec(name, shape, dtype))
        host = HostCode(tuple(parameters), kernel.host.between, kernel.host.launches)
        return KernelCode(kernel.source, host, self.arch), inputs, outputs


class CpuRegions(RegionMaker):
    """Makes parallel regions of a CPU."""

    apart = "{} stays by itself: {}"

    def __init__(self, functions: RegionFunctions, graph: ModelGraph, target: Any) -> None:
        super().__init__(functions)
        self.graph, self.target = graph, target

    def make(self, symbol: str, part: Part, calls: Sequence[Call], kept: Collection[str]) -> Made:
        assert part.program is not None
        inputs, outputs = self.graph.interface(calls, {t for call in calls for t in call.writes})
        places = {t: n for n, t in enumerate((*inputs, *outputs))}
        members = []
        for call in calls:
            planned = self.functions.called(call)
            read = [t for argument, t in zip(planned.arguments, call.tensors, strict=True) if argument is not None]
            members.append((call.name, planned.handle, tuple(places[t] for t in read)))
        specs = [shape_and_dtype(self.graph.tensor_of[t]) for t in (*inputs, *outputs)]
        return RegionCode(merged(symbol, part.program, members, specs), str(self.target)), inputs, outputs


def fused(mod: Any, graph: ModelGraph, maker: Maker, told: Callable[..., None] | None = None) -> Any:
    """Return a module with its fused kernels, and with the report as an attribute.

    Parameters
    ----------
    mod : tvm.IRModule
        A module after the fusion of patterns; it is not changed.
    """
    import tvm
    from tvm import relay

    mod = tvm.IRModule(dict(mod.functions.items()), mod.type_definitions)  # not the caller's
    main = mod["main"]
    fuser = Fuser(graph.calls, maker, {str(var.name_hint) for var in mod.get_global_vars()}, "main", told)
    report = GraphFusion(maker.device, fuser.run(), list(fuser.outside.items()))
    if flow := graph.flow.control:  # bindings without effects are gone by now
        why = "bindings that keep effects in order" if flow == "Let" else "control flow in it"
        report.outside.append(("main", f"{why} ({flow})"))
    if fuser.fused:
        groups = [graph.group(one.symbol, one.calls, *one.made[1:]) for one in fuser.fused]
        codes = {one.symbol: one.made[0] for one in fuser.fused}
        body, functions = rewritten(graph.flow.body, groups)
        for variable, function in functions.items():
            symbol = str(variable.name_hint)
            mod[variable] = function.with_attr({
                "Primitive": tvm.tir.IntImm("int32", 1), "Inline": tvm.tir.IntImm("int32", 1),
                "Compiler": COMPILER, "global_symbol": symbol, ATTRIBUTE: codes[symbol].to_json(),
            })  # fmt: skip
        mod["main"] = relay.Function(main.params, body, None, main.type_params, main.attrs)
    mod = relay.transform.InferType()(relay.transform.DefuseOps()(mod))
    return mod.with_attr(FUSED, tvm.runtime.convert(json.dumps(report.to_json())))
