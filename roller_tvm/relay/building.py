"""Build a Relay model with tuning records, and with Roller's plans for operators without a record."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from roller_tvm.codegen.host_reading import TakeHost
from roller_tvm.device import DeviceSpec
from roller_tvm.errors import BadInput, NothingTuned, last_line, must_be
from roller_tvm.folders import work_folder
from roller_tvm.models.line import SCHEDULES
from roller_tvm.models.package import KERNELS, REPORT
from roller_tvm.relay.dataflow import as_graph
from roller_tvm.relay.dense_weights import NamedAxes, constant_dense, history_of, packs_dense
from roller_tvm.relay.folding import shared_constant_kernels
from roller_tvm.relay.index_range import check_index_range
from roller_tvm.relay.planned import Planner
from roller_tvm.relay.records import load_settled
from roller_tvm.relay.rewrites import cpu_code
from roller_tvm.relay.silence import silent_autotvm
from roller_tvm.relay.tasks import find_device, make_target
from roller_tvm.relay.tuning import tune
from roller_tvm.tuning.model_report import ModelReport
from roller_tvm.tvm_env import import_relay_tvm, use_threads

#: Begins the names of kernels.
PREFIX = "tvmgen_default_"
#: Relay's pass that rearranges weights for Ansor's States.
PACKING = "AutoSchedulerLayoutRewrite"
#: An attribute of what `build` returns: the `GraphFusion`, or None.
FUSION = "roller_tvm_fusion"
#: Another: function -> `dense_weights.Asked`.
ASKED = "roller_tvm_asked"


def build(
    mod: Any, params: Any = None, target: Any = "llvm", log_file: str | os.PathLike[str] | None = None,
    fuse_rtasks: Any = False, vector_math: bool = True, wide_indices: bool = True,
    stack_tiles: bool = True, prefetch: bool = True, edge_vectors: bool = True,
    schedules: str = "roller", device: DeviceSpec | str | None = None, threads: int | None = None,
    progress: Callable[[str], None] | None = None, fast_math: bool = False, prove: bool = False,
    packed: bool = True, chosen: Sequence[str] = (),
) -> Any:  # fmt: skip
    """Build a Relay model with the records of a file, and with Roller's plans for operators without a record.

    Parameters
    ----------
    mod : tvm.IRModule
    params : dict of str to array, optional
    target : str or tvm.target.Target
    log_file : path, optional
        Records that `tune` or Ansor wrote. Plain ``ApplyHistoryBest`` + ``relay.build`` with
        ``relay.backend.use_auto_scheduler`` gives the same schedules, with two exceptions on CPUs. Dense layers: TVM
        alone cannot pack their weights (``dense_weights``). Vectors over an edge: TVM alone builds them slowly, so tune
        with ``device=cpu_device().built_by_tvm()`` for it. fuse_rtasks : bool or tvm.transform.Pass
            Run ``FuseRTasks`` first; the result then has the attribute `FUSION`.
        For CPU kernels: compute exp, erf and tanh with arithmetic (``VectorMath``; False: with calls of the math
        library),
        compute addresses in 64 bits (``WideIndices``), keep register tiles on the stack (``StackTiles``; False: in
        workspaces if they have 1 KiB or more), prefetch weights (``PrefetchPanels``), and check vectors over an edge
        once per tile instead of per lane (``EdgeVectors``).
    schedules : {'roller', 'tvm'}
        'tvm' leaves operators without a record to TVM's own schedules.
    device : DeviceSpec or str, optional
        Device to plan for; by default the target's.
    threads : int, optional
        Threads of TVM's pool in this process; by default TVM_NUM_THREADS, else what a CPU target says, else all
        physical cores.
    progress : function of str, optional
        Receives the number and the name of each operator before it is planned or compiled.
    fast_math : bool
        For CPU kernels: erf and tanh within 8 units in the last place, not 2, in less time (``FastMath``).
    prove : bool
        Prove the kernels with a schedule of Roller or of a record; `REPORT` has the answers.
    packed : bool
        Rearrange constant weights as schedules read them.
    chosen : sequence of str
        Forms of the whole model that an exploration has taken, for the report.

    Raises
    ------
    RefutedKernel, WrongAnswer
        With `prove`, a kernel is wrong.

    Returns
    -------
    tvm.relay.backend.executor_factory.ExecutorFactoryModule
        `FUSION` and `REPORT` are attributes of it.

    Examples
    --------
    >>> lib = build(mod, params, "llvm -mcpu=skylake-avx512", "records.json")
    """
    tvm = import_relay_tvm("building a Relay model")
    made = make_target(target)
    if schedules not in SCHEDULES:
        raise BadInput(must_be("schedules", f"one of {', '.join(SCHEDULES)}", schedules), "build", "leave it out")
    cpu = made.kind.name == "llvm"
    spec = find_device(made if device is None else device, device is None) if cpu or schedules == "roller" else None
    use_threads(threads, spec.units if cpu and spec is not None else None)
    ways = {"vector_math": vector_math, "wide_indices": wide_indices, "stack_tiles": stack_tiles,
            "prefetch": prefetch, "edge_vectors": edge_vectors, "fast_math": fast_math}  # fmt: skip
    options = _Options(log_file, fuse_rtasks, {way: on and cpu for way, on in ways.items()}, spec, prove, packed,
                       tuple(chosen))  # fmt: skip
    if schedules == "tvm" or spec is None:
        return _build(mod, params, made, options, None)
    try:
        return _build(mod, params, made, options, Planner(spec, progress))
    except (tvm.TVMError, ValueError) as error:
        if log_file is not None:  # its records may be what fails
            raise
        told = f"a plan cannot be built ({last_line(error)}); each operator's plans are built and compared one by one"
        warnings.warn(told, RuntimeWarning, stacklevel=2)
    with work_folder() as folder:
        records = Path(folder, "records.json")
        with contextlib.suppress(NothingTuned):
            tune(mod, params, made, records, 0, spec)
        records.touch()
        return _build(mod, params, made, replace(options, log_file=records), None)


@dataclass(frozen=True)
class _Options:
    """Options of a build other than the model and its target."""

    log_file: str | os.PathLike[str] | None
    fuse_rtasks: Any
    ways: dict[str, bool]
    device: DeviceSpec | None
    prove: bool = False
    packed: bool = True
    chosen: tuple[str, ...] = ()


def _build(mod: Any, params: Any, made: Any, options: _Options, planner: Planner | None) -> Any:
    """Build with records, with a planner for operators without one, or with neither (TVM's own schedules)."""
    import tvm
    from tvm import relay
    from tvm.auto_scheduler.dispatcher import FallbackContext
    from tvm.relay.backend import te_compiler

    from roller_tvm.relay.recurrent import kernel_plans, with_recurrences

    if made.kind.name == "cuda":
        from roller_tvm.relay.cuda import use_toolchain

        use_toolchain()
    te_compiler.get().clear()
    take, log_file, fuse_rtasks = TakeHost(), options.log_file, options.fuse_rtasks
    ours = log_file is not None or planner is not None
    config = {"relay.backend.use_auto_scheduler": ours}
    untuned = FallbackContext()
    untuned.verbose = 0  # it would print the whole computation of each operator without a record
    history = None
    with contextlib.ExitStack() as stack:
        stack.enter_context(silent_autotvm())
        stack.enter_context(untuned)
        if ours:
            records, settled = load_settled(log_file, str(made)) if log_file is not None else ([], {})
            history = stack.enter_context(history_of(records, settled, planner))
            stack.enter_context(cpu_code(**options.ways))
        stack.enter_context(shared_constant_kernels())
        instruments = [take.instrument] if made.kind.name == "cuda" else []
        left_out = () if options.packed else (PACKING,)
        stack.enter_context(tvm.transform.PassContext(opt_level=3, config=config, instruments=instruments,
                                                      disabled_pass=left_out))  # fmt: skip
        fusion = None
        mod = with_recurrences(as_graph(mod), made, options.device)  # as its tasks were extracted
        check_index_range(relay.transform.InferType()(mod), "model")
        if ours and options.packed and packs_dense(mod, made):
            mod = constant_dense(mod, params)
            stack.enter_context(NamedAxes())
        if fuse_rtasks:
            from roller_tvm.relay.fuse_rtasks import FuseRTasks, fusion_of

            mod = (FuseRTasks(made, params=params) if fuse_rtasks is True else fuse_rtasks)(mod)
            params = None if fuse_rtasks is True else params
            fusion = fusion_of(mod)
            take.modules.clear()  # those of the operators one by one
        apart = None
        if ours and made.kind.name == "llvm":
            from roller_tvm.relay.compiling import compiled_apart

            apart = stack.enter_context(compiled_apart(planner.progress if planner is not None else None))
        built = relay.build(mod, target=made, params=params)
    if apart is not None:
        built = apart.linked(built)
    if history is not None and log_file is not None:
        _tell(list(history.asked.values()), log_file, made, planner is not None)
    # TVM asks under names without the prefix too, for the layouts of weights.
    kernels = [k for name, k in history.kernels.items() if name.startswith(PREFIX)] if history is not None else []
    if history is not None and options.prove and options.device is not None:
        from roller_tvm.relay.proving import prove_kernels

        proofs = prove_kernels({name: history.states[name] for name in history.states if name.startswith(PREFIX)},
                               made, options.device)  # fmt: skip
        kernels = [replace(k, proof=proofs.get(k.kernel, "")) for k in kernels]
    kernels += kernel_plans(built.function_metadata, options.device if options.prove else None)
    setattr(built, KERNELS, take.kernels(built.get_lib()))
    setattr(built, REPORT, ModelReport(str(made), tuple(kernels), choices=options.chosen))
    setattr(built, FUSION, fusion)
    setattr(built, ASKED, history.functions if history is not None else {})
    return built


def _tell(found: list[str], log_file: str | os.PathLike[str], target: Any, planned: bool) -> None:
    """Warn if no operator has a record, or some have records of another target only."""
    others = found.count("another target's")
    if found and found.count("none") == len(found):
        told = f"none of {len(found)} operators has a record in {log_file}: tuned for another model or other shapes"
        taken = "Roller's plans are taken, not measured" if planned else "TVM's own schedules are taken"
        warnings.warn(f"{told}; {taken}", RuntimeWarning, stacklevel=4)
    elif others:
        told = f"{others} of {len(found)} operators have a record of another target alone in {log_file}"
        warnings.warn(f"{told}; tune for {target}", RuntimeWarning, stacklevel=4)
