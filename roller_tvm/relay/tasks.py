"""The tuning tasks of a Relay model, under the keys by which ``relay.build`` will look for their records."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from roller_tvm.device import DeviceSpec, load_device
from roller_tvm.device.from_target import device_for_target
from roller_tvm.errors import BadInput, TargetError, UnsupportedOperator
from roller_tvm.relay.cpu_names import check_cpu
from roller_tvm.relay.dense_weights import computation_of, packable, theirs_of
from roller_tvm.relay.folding import shared_constant_kernels
from roller_tvm.relay.fused_codegen import uncompiled
from roller_tvm.relay.silence import silent_autotvm
from roller_tvm.tuning.interrupt import stop_if_interrupted
from roller_tvm.tuning.line import Tasks
from roller_tvm.tuning.machine import require_kind

#: What a target must say for its kernels to run where they are meant to.
ARCH_REQUIRED = ("cuda", "nvptx")
# Ansor's own constants for NVIDIA GPUs, where it cannot ask one (tvm's hardware_params.cc).
GPU_VECTOR_UNIT_BYTES, GPU_CACHE_LINE_BYTES, GPU_MAX_VTHREAD = 16, 64, 8
NO_LIMIT = 2**31 - 1
#: After the name of a task that only a build by TVM alone looks for.
FOR_TVM = "(for TVM alone)"


@dataclass(frozen=True)
class Task:
    """One distinct operator of a model.

    Parameters
    ----------
    id : int
    name : str
        Relay's name of the fused function, without its decoration.
    weight : int
        Number of calls in the model; 0 for a task that only a build by TVM alone looks for.
    search_task : auto_scheduler.SearchTask
    flops : float
    default : str
        TVM's untuned kernel, as JSON of lowered TIR; '' if it is not known.
    weights : tuple of str
        Names of the operands that are weights.
    """

    id: int
    name: str
    weight: int
    search_task: Any
    flops: float
    default: str = ""
    weights: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        return str(self.search_task.workload_key)

    @property
    def target(self) -> str:
        return str(self.search_task.target)

    @property
    def computation(self) -> str:
        return computation_of(self.search_task.compute_dag)


def make_target(target: Any) -> Any:
    """Return a ``tvm.target.Target`` with a host, from a user's target.

    Raises
    ------
    TargetError
        TVM does not know the target, LLVM does not know its CPU, or a CUDA target names no architecture.
    """
    import tvm

    text = target if isinstance(target, str) else str(target)
    kind = re.split(r"[\s,]", text.strip(), maxsplit=1)[0]
    if kind in ARCH_REQUIRED and "arch" not in text:
        # TVM would ask whichever card is number 0, or take sm_50.
        raise TargetError(
            f"a target for {kind} needs its architecture",
            f"target '{text}'",
            f"write '{kind} -arch=sm_90' (H100, H200), sm_80 (A100), sm_70 (V100)",
        )
    try:
        made = tvm.target.Target(target)
        if made.host is None and made.kind.name != "llvm":
            made = tvm.target.Target(made, host="llvm")
    except (tvm.TVMError, ValueError, TypeError) as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        raise TargetError(
            f"TVM does not know it: {lines[-1].strip()}",
            f"target '{text}'",
            "give for example 'llvm -mcpu=skylake-avx512' or 'cuda -arch=sm_90'",
        ) from error
    for part in (made, made.host):
        if part is not None:
            check_cpu(part)
    if made.kind.name in ARCH_REQUIRED and len(digits := re.sub(r"\D", "", str(made.attrs.get("arch", "")))) > 2:
        # Its schedules for cuda take the architecture apart into two digits.
        raise TargetError(
            f"TVM {tvm.__version__} knows no architecture of {len(digits)} digits",
            f"target '{text}'",
            "give the newest of two digits, whose code newer cards run: -arch=sm_90; or use the Relax line",
        )
    return made


def find_device(source: Any, is_target: bool) -> DeviceSpec:
    """Return the DeviceSpec of a name, a spec file, a target, or the given DeviceSpec."""
    if isinstance(source, DeviceSpec):
        return source
    return device_for_target(source) if is_target else load_device(source)


def check_device(device: DeviceSpec, target: Any) -> None:
    """Refuse a device that the target's code cannot run on.

    Raises
    ------
    TargetError
    """
    require_kind(device, target.kind.name, f"target '{target}'")


def hardware_params(target: Any, device: DeviceSpec) -> Any:
    """Return the parameters that Ansor would query from a GPU; None for a CPU, whose target has them all."""
    from tvm import auto_scheduler

    if device.kind != "gpu":
        return None
    return auto_scheduler.HardwareParams(
        num_cores=-1, vector_unit_bytes=GPU_VECTOR_UNIT_BYTES, cache_line_bytes=GPU_CACHE_LINE_BYTES,
        max_shared_memory_per_block=device.limits.shared_per_block_bytes or 0,
        max_local_memory_per_block=NO_LIMIT,
        max_threads_per_block=device.limits.max_threads_per_block or 0, max_vthread_extent=GPU_MAX_VTHREAD,
        warp_size=device.vector_width)  # fmt: skip


def task_of(workload_key: str, target: Any, device: DeviceSpec, name: str, dag: Any = None) -> Task:
    """Return the task of a workload, by default the one that TVM has registered, for the function of this name."""
    from tvm import auto_scheduler

    search_task = auto_scheduler.SearchTask(
        compute_dag=dag, workload_key=workload_key, target=target, hardware_params=hardware_params(target, device),
        desc=name,
        layout_rewrite_option=auto_scheduler.LayoutRewriteOption.get_target_default(target, True),
    )  # fmt: skip
    return Task(0, short_name(name), 1, search_task, max(0.0, float(search_task.compute_dag.flop_ct)))


def check_shapes(mod: Any) -> None:
    """Refuse inputs of dynamic shape, naming them."""
    import tvm
    from tvm import relay

    for var in mod["main"].params:
        kind = var.type_annotation
        if kind is None or not isinstance(kind, relay.TensorType):
            continue
        if any(not isinstance(e, tvm.tir.IntImm) for e in kind.shape):
            shape = ", ".join(str(int(e)) if isinstance(e, tvm.tir.IntImm) else "?" for e in kind.shape)
            name = var.name_hint
            raise BadInput(
                f"input '{name}' has a dynamic shape ({shape})",
                "model",
                f"give it a shape: --input-shapes {name}:1,3,224,224 (or import the model with it)",
            )


def extract_tasks(mod: Any, params: Any, target: Any, device: DeviceSpec) -> Tasks:
    """Return every distinct operator of a model, including those without a reduction.

    A dense layer that TVM cannot pack has two tasks (see ``dense_weights``): one for `build`, one for a build by TVM
    alone.

    Parameters
    ----------
    mod : tvm.IRModule
    params : dict of str to array, or None
        As for ``relay.build``: the keys of the tasks depend on which parameters are bound.
    target : tvm.target.Target
    device : DeviceSpec

    Raises
    ------
    UnsupportedOperator
        Relay itself cannot lower the model for this target.
    """
    import tvm
    from tvm import auto_scheduler

    from roller_tvm.relay.recurrent import with_recurrences

    check_shapes(mod)
    mod = with_recurrences(mod, target, device)
    rewrite = auto_scheduler.LayoutRewriteOption.get_target_default(target, True)
    try:
        graph, axes = packable(mod, params, target)
        with axes:
            traced, kernels = _trace(graph, params, target)
    except tvm.TVMError as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise UnsupportedOperator(
            f"Relay cannot lower this model: {lines[-1]}", f"target '{target}'",
            "build it with relay.build alone to see which operator it is") from error  # fmt: skip
    parameters = hardware_params(target, device)
    tasks = Tasks()
    tasks.weight_bytes, sizes = weights_of(mod, params)
    tasked = {name for _, names in traced.values() for name in names}
    # What is lowered to do something with shapes or memory only has no name of an operator.
    tasks.left = tuple(sorted(short_name(n) for n in kernels if "fused_" in n and n not in tasked))
    workloads: list[tuple[str, str, int, set[str]]] = []
    for_tvm: list[tuple[str, str, int, set[str]]] = []  # last: tasks are chosen by number
    for key, (weight, names) in traced.items():
        name = short_name(",".join(names))
        workloads.append((key, name, int(weight), names))
        if axes.enabled and (plain := theirs_of(key)) is not None and plain not in traced:
            for_tvm.append((plain, f"{name} {FOR_TVM}", 0, names))
    for key, name, weight, names in (*workloads, *for_tvm):
        lowered = next((kernels[n] for n in sorted(names) if n in kernels), None)
        default = "" if lowered is None else str(tvm.ir.save_json(tvm.IRModule({"default_function": lowered})))
        task = auto_scheduler.SearchTask(
            workload_key=key, target=target, hardware_params=parameters, layout_rewrite_option=rewrite,
            desc=",".join(sorted(names)))  # fmt: skip
        flops = max(0.0, float(task.compute_dag.flop_ct))
        weights = weight_names(list(task.compute_dag.tensors), sizes)
        tasks.append(Task(len(tasks), name, weight, task, flops, default, weights))
    return tasks


def weights_of(mod: Any, params: Mapping[str, Any] | None) -> tuple[int, frozenset[int]]:
    """Return the bytes of a module's weights (constants, and the values in `params`), and their numbers of elements."""
    from tvm import relay

    arrays: list[Any] = list((params or {}).values())

    def visit(node: Any) -> None:
        if isinstance(node, relay.Constant):
            arrays.append(node.data)

    relay.analysis.post_order_visit(mod["main"], visit)
    shapes = [(prod(int(e) for e in a.shape), np.dtype(str(a.dtype)).itemsize) for a in arrays]
    return sum(n * size for n, size in shapes), frozenset(n for n, _ in shapes)


def weight_names(tensors: Sequence[Any], sizes: Collection[int]) -> tuple[str, ...]:
    """Return the names of a task's operands that are weights of a model.

    An operand counts as one if a weight of the model has its number of elements, which repacking keeps. The first
    operand never counts: it is an activation.
    """
    from tvm import te

    inputs = [t for t in tensors if isinstance(t.op, te.PlaceholderOp)]
    return tuple(str(t.op.name) for t in inputs[1:] if prod(int(e) for e in t.shape) in sizes)


def _trace(mod: Any, params: Any, target: Any) -> tuple[dict[str, tuple[int, set[str]]], dict[str, Any]]:
    """Lower the model once; return workload keys with weight and function names, and TVM's kernels by function name.

    Like ``auto_scheduler.extract_tasks``, but in this thread (so that Ctrl-C ends it), and it keeps the kernels.
    """
    import tvm
    from tvm import relay
    from tvm.auto_scheduler.dispatcher import FallbackContext
    from tvm.auto_scheduler.relay_integration import TracingEnvironment, TracingMode
    from tvm.relay.backend import te_compiler

    kernels: dict[str, Any] = {}

    @tvm.tir.transform.prim_func_pass(opt_level=0)
    def keep(function: Any, _mod: Any, _context: Any) -> Any:
        name = function.attrs["global_symbol"] if function.attrs and "global_symbol" in function.attrs else ""
        stop_if_interrupted()
        kernels[str(name)] = function
        return function

    # Phase 3 comes after all passes of lowering.
    config = {"relay.backend.use_auto_scheduler": True, "tir.add_lower_pass": [(3, keep)]}
    context = tvm.transform.PassContext(
        opt_level=3, config=config, disabled_pass={"AutoSchedulerLayoutRewrite"})  # fmt: skip
    tracing = TracingEnvironment(TracingMode.EXTRACT_TASK)
    untuned = FallbackContext()  # records that the caller applies are not to be seen here
    untuned.verbose = 0
    te_compiler.get().clear()  # what an earlier build cached would not be seen
    with silent_autotvm(), shared_constant_kernels(), uncompiled(), untuned, tracing, context:
        compiler = relay.vm.VMCompiler()
        if params:
            compiler.set_params(params)
        compiler.lower(mod, target)
    return tracing.wkl_key_to_weight, kernels


def short_name(description: str) -> str:
    """Return the shortest of a task's function names, undecorated.

    Examples
    --------
    >>> short_name("vm_mod_fused_nn_conv2d_add_3,vm_mod_fused_nn_conv2d_add")
    'nn_conv2d_add'
    """
    names = sorted(description.split(","), key=lambda n: (len(n), n))
    return re.sub(r"^(vm_mod_|tvmgen_default_|default_)?(fused_)?", "", names[0]) or description
