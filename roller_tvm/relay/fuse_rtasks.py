"""``FuseRTasks``: schedules a Relay graph's operators together, one kernel per part of a plan (Rammer, OSDI'20)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from roller_tvm.device import DeviceSpec
from roller_tvm.rammer import check_choices
from roller_tvm.relay.dataflow import as_graph, without_copies
from roller_tvm.relay.folding import shared_constant_kernels
from roller_tvm.relay.graph_fusion import GraphFusion
from roller_tvm.relay.rtask_codegen import ATTRIBUTE, register_fused_kernels
from roller_tvm.relay.rtask_cpu import CpuRegions
from roller_tvm.relay.rtask_fuser import FUSED, Fuser
from roller_tvm.relay.rtask_gpu import GpuKernels
from roller_tvm.relay.rtask_graph import Kind
from roller_tvm.relay.tasks import check_device, make_target
from roller_tvm.relay.tuning import find_device
from roller_tvm.tvm_env import import_relay_tvm

#: The level at which ``relay.build`` fuses all patterns.
FUSION_LEVEL = 3


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
    >>> mod = FuseRTasks("cuda -arch=sm_80", params=params)(mod)  # doctest: +SKIP
    >>> print(fusion_of(mod))  # doctest: +SKIP
    >>> lib = relay.build(mod, tvm.target.Target("cuda -arch=sm_80", host="llvm"))  # doctest: +SKIP
    """
    check_choices(policy, launch)
    tvm = import_relay_tvm("fusing rTasks of a Relay model")
    made_target = make_target(target)
    spec = find_device(made_target if device is None else device, device is None)
    check_device(spec, made_target)
    register_fused_kernels()

    @tvm.transform.module_pass(opt_level=0, name="FuseRTasks")
    def fuse_rtasks(mod: Any, _context: Any) -> Any:
        on_cpu = spec.kind == "cpu"
        kind: Kind = CpuRegions(spec, made_target) if on_cpu else GpuKernels(spec, made_target, policy, launch, top)
        return Fuser(kind).run(prepared(mod, params, made_target))

    return fuse_rtasks


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


def prepared(mod: Any, params: Mapping[str, Any] | None, target: Any) -> Any:
    """Return a module after Relay's ordinary optimisations, including the fusion of patterns."""
    import tvm
    from tvm import relay

    if params:
        main = relay.build_module.bind_params_by_name(mod["main"], dict(params))
        mod = tvm.IRModule({**dict(mod.functions.items()), mod.get_global_var("main"): main}, mod.type_definitions)
    mod = as_graph(relay.transform.InferType()(mod))
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
