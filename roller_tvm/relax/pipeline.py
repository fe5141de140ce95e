"""The Relax pipeline "roller": legalize, fuse, schedule (from records, then by Roller, then by default), build.

Three stages, each a pass of its own, so that a tuner can step in between:

``prepare(mod, target)`` -> fused PrimFuncs, what `tune_relax` extracts tasks from
``schedule(mod, target, database)`` -> every PrimFunc scheduled
``lower(target)`` -> what TVM's virtual machine is built from
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tvm
from tvm import relax

from ..codegen.host_reading import TakeHost
from ..device import DeviceSpec, load_device
from ..errors import BadInput, must_be
from ..models.line import SCHEDULES
from ..models.package import KERNELS, REPORT
from ..tuning.model_report import ModelReport
from ..tvm_env import use_threads
from .alignment import UnalignedInputs
from .callbacks import CallsOfCallbacks, KeepCallbacks
from .choices import Choices
from .compiling import compile_model
from .concat_in_place import ConcatInPlace
from .connected import ConnectTiles
from .contexts import context_like
from .cubins import Cubins
from .dead_code import KeepPackedCalls
from .devices import device_of, find_target
from .dilated import DilatedForms
from .dynamic import Buckets, Sizes
from .empty import EmptyReductions, InitialValuesFirst, LoopsOfSome, ScansOfNothing
from .enlarging import open_rules
from .folding import FoldScales
from .group_norms import GroupNorms
from .grouped import GroupedProducts
from .importers import bound
from .kernels import LayoutFreeBuffers, pack_constants
from .layout import PlanLayout
from .lines import LinesAsPictures
from .live_taps import LiveTaps
from .long_sums import CutLongSums
from .lowered import require_lowered
from .matrix_products import MatrixProducts
from .merged import MergeAxes
from .moved_parts import MovedParts
from .names import LowerCaseBuffers
from .pools import PoolsOfPixels
from .powers import PowersAsProducts
from .records_in_use import choices_beside, database_in_use, left_of, warn_of_no_record
from .recurrent import PlanRecurrences
from .reference import gpu_rules
from .results_in_place import ResultsInPlace
from .rewrites import cpu_code
from .rtask_fusion import Fuses, RTaskFusion
from .rtask_regions import PACKED, predicted_seconds
from .schedule import Report, ScheduleWithRoller
from .separable import SeparableSums
from .size_checks import CheckSizes
from .sums import SumsAsAdditions
from .targets import make_target
from .training import NormsInTraining
from .transposed import SquaresOfPixels

#: Marks a module that `prepare` made: fusing it a second time would fuse what is scheduled already.
PREPARED = "roller_tvm.prepared"
#: TVM's setting by which kernels are captured in CUDA graphs.
CAPTURE = "relax.backend.use_cuda_graph"


def prepare(
    mod: Any, target: Any = None, buckets: Sizes | Sequence[int] | None = None,
    device: DeviceSpec | str | None = None, winograd: bool = True, arranged: str | None = None,
) -> Any:  # fmt: skip
    """Return a Relax module legalized, folded and fused: every PrimFunc is one task.

    Parameters
    ----------
    mod : tvm.IRModule
        As an importer gives it, its weights bound.
    target : Target, dict or str, optional
        By default the target in scope.
    buckets : mapping of variable to sizes, or sequence of int, optional
        Sizes of open extents for which static functions are made (`dynamic.Buckets`).
    device : DeviceSpec or str, optional
        For which activations are laid out; by default the one that follows from the target.
    winograd, arranged
        See `PlanLayout`; `arranged` is its `only`.

    Raises
    ------
    BadInput
        The module was prepared before: for another kind of target, or without the buckets.

    Examples
    --------
    >>> fused = prepare(mod, {"kind": "llvm", "num-cores": 2})
    """
    target, passes = _target(target), relax.transform
    if _is_prepared(mod):
        if (kind := str(mod.attrs[PREPARED])) != target.kind.name:
            what = f"it was prepared for {kind}, not for {target.kind.name}"
            raise BadInput(what, "module", "prepare the module that it was made of")
        if buckets is not None:
            raise BadInput("it was prepared before its buckets were known", "module", "give 'buckets' to prepare")
        return mod
    _require_relax(mod)
    cpu = [LinesAsPictures(), DilatedForms(target, device, winograd), PlanLayout(target, device, arranged, winograd)]
    cpu += [CutLongSums(target, device)]
    steps: list[Any] = [Buckets(buckets)] if buckets is not None else []
    steps += [
        KeepCallbacks(),
        NormsInTraining(),
        SumsAsAdditions(),
        *([SquaresOfPixels(), GroupNorms()] if target.kind.name == "llvm" else []),
        PowersAsProducts(),
        GroupedProducts(),
        PoolsOfPixels(),
        LiveTaps(),
        FoldScales(),  # normalisations as one product and one sum, before they are taken apart
        passes.DecomposeOpsForInference(),
        MovedParts(),
        passes.CanonicalizeBindings(),
        *(cpu if target.kind.name == "llvm" else []),
        ScansOfNothing(),
        relax.backend.DispatchSampling(),  # sorting and sampling are libraries' work
        relax.backend.DispatchSortScan(),
        *([LoopsOfSome()] if target.kind.name == "llvm" else []),
        passes.LegalizeOps(open_rules(cpu=target.kind.name == "llvm")),
        EmptyReductions(),
        passes.AnnotateTIROpPattern(),
        KeepPackedCalls(passes.FoldConstant()),
        passes.FuseOps(),
        KeepPackedCalls(passes.FuseTIR()),
        passes.RewriteDataflowReshape(),  # before scheduling: it knows a reshape by its plain loops
        KeepPackedCalls(passes.DeadCodeElimination()),
        # Each schedule lays weights out as its register tile reads them.
        *([LayoutFreeBuffers()] if target.kind.name == "llvm" else [LowerCaseBuffers()]),
    ]
    with target:
        return tvm.transform.Sequential(steps)(mod).with_attr(PREPARED, target.kind.name)


def schedule(
    mod: Any, target: Any = None, database: Any = None, device: DeviceSpec | str | None = None, top: int = 4,
    tf32: bool = False, fuse_rtasks: bool | Fuses = False, progress: Callable[[str], None] | None = None,
    fast_math: bool = False, prove: bool = False, connected: bool = False,
) -> tuple[Any, Report]:  # fmt: skip
    """Every PrimFunc of a prepared module scheduled, and what Roller did of it.

    Parameters
    ----------
    database : tvm.s_tir.meta_schedule.Database or path, optional
        Records used first, as `tune_relax` or MetaSchedule wrote them; a path is the folder of their JSON files.
        By default the database in scope, if there is one.
    tf32 : bool
        See `ScheduleWithRoller`.
    fuse_rtasks : bool or FuseRTasks
        Whether operators are made one kernel where that is predicted to pay, and how (see `FuseRTasks`).
    progress : function of str, optional
        Receives the number and the name of each function before it is planned or compiled.
    fast_math : bool
        CPUs: erf and tanh of float32 within 8 units in the last place, not 2, in less time.
    prove : bool
        Prove the functions (`proving.prove_module`); the report has the answers.
    connected : bool
        Calls are connected by their tiles though that is not predicted to pay (`ConnectTiles`).

    Raises
    ------
    RefutedKernel, WrongAnswer
        With `prove`, a function is wrong.
    RecordError
        The folder holds no records that can be read, or those of another target.
    """
    target, given = _target(target), mod
    require_lowered(mod)
    scheduler: Any = ScheduleWithRoller(target, device, top, tf32, progress)
    fuse = RTaskFusion(target, device, tf32=tf32) if fuse_rtasks is True else fuse_rtasks and fuse_rtasks.fusion
    matrices = MatrixProducts(target, device)
    with target, database_in_use(database, target) as records:
        before, recorded = mod, list[str]()
        chosen = choices_beside(database, target).connected
        connect = ConnectTiles(target, device, chosen=chosen, eager=connected)
        mod = connect.kept(mod)
        if fuse and target.kind.name != "llvm":
            mod = fuse.kernels(mod)
        if records is not None:
            unscheduled, mod = left_of(mod), relax.transform.MetaScheduleApplyDatabase()(mod)
            recorded = sorted(unscheduled - left_of(mod))
        mod = matrices(mod)  # what was measured goes before what is predicted
        if records is not None and database is not None and not recorded and (left := left_of(mod)):
            warn_of_no_record(len(left), records, database)
        recurrences = PlanRecurrences(target, device)
        mod = recurrences(mod)
        merge = MergeAxes(target, device)
        if target.kind.name == "llvm":
            scheduler.plan_ahead(mod, also=merge.pays)
        mod = merge(connect(mod))
        if records is not None:  # those of merged axes
            unscheduled, mod = left_of(mod), relax.transform.MetaScheduleApplyDatabase()(mod)
            recorded += sorted(unscheduled - left_of(mod))
        mod = scheduler(mod)
        scheduler.report.notes += [*matrices.notes, *connect.notes, *recurrences.notes]
        scheduler.report.recorded, scheduler.report.choices = recorded, connect.explored
        if target.kind.name != "llvm":  # a kernel needs its threads bound, whatever it is
            from tvm.s_tir import dlight

            mod = dlight.ApplyDefaultSchedule(*gpu_rules())(mod)
        if prove:
            from .proving import prove_module

            scheduler.report.proofs = prove_module(given, mod, target, device_of(device, target))
        if target.kind.name == "llvm":  # weights packed for their schedules, now
            mod = pack_constants(mod)
            packed = (str(var.name_hint) for var in mod.get_global_vars())
            scheduler.report.renamed = {n.removesuffix(PACKED): n for n in packed if n.endswith(PACKED)}
            if fuse:
                known = {note.name: note.predicted_us * 1e-6 for note in scheduler.report.scheduled}
                mod = fuse.merged(mod, predicted_seconds(before, device_of(device, target), known))
            mod = for_llvm(fast_math)(mod)
    return mod, scheduler.report


def for_llvm(fast_math: bool = False) -> Any:
    """The pass that makes scheduled functions with packed constants what TVM's LLVM back end computes as planned."""
    return tvm.transform.Sequential([InitialValuesFirst(), SeparableSums(), UnalignedInputs(), cpu_code(fast_math)])


def lower(target: Any = None, overwrites: bool = True) -> Any:
    """The pass from scheduled PrimFuncs to what the virtual machine is built from."""
    return tvm.transform.Sequential([with_memory(target, overwrites), to_machine(target)], name="RollerLower")


def with_memory(target: Any = None, overwrites: bool = True) -> Any:
    """The first half of `lower`: kernels are called with the memory of their results.

    Parameters
    ----------
    overwrites : bool
        Whether kernels may leave results where operands were.
    """
    passes = relax.transform
    in_place = [ConcatInPlace(), *([ResultsInPlace()] if overwrites else [])]
    in_place = in_place if _target(target).kind.name == "llvm" else []
    steps = [
        passes.ToNonDataflow(), CallsOfCallbacks(), passes.RemovePurityChecking(), CheckSizes(),
        passes.CallTIRRewrite(), *in_place, passes.StaticPlanBlockMemory(),
    ]  # fmt: skip
    return tvm.transform.Sequential(steps, name="RollerMemory")


def to_machine(target: Any = None) -> Any:
    """The second half of `lower`."""
    passes = relax.transform
    graphs = [passes.RewriteCUDAGraph()] if _target(target).kind.name == "cuda" else []
    steps = [
        *graphs, passes.LowerAllocTensor(), passes.KillAfterLastUse(), passes.LowerRuntimeBuiltin(),
        passes.ComputePrimValue(), passes.VMShapeLower(), passes.AttachGlobalSymbol(),
    ]  # fmt: skip
    return tvm.transform.Sequential(steps, name="RollerMachine")


def roller_pipeline(
    target: Any = None,
    database: Any = None,
    device: DeviceSpec | str | None = None,
    buckets: Sizes | Sequence[int] | None = None,
    top: int = 4,
    tf32: bool = False,
    fuse_rtasks: bool | Fuses = False,
    told: Callable[[Report], None] | None = None,
    progress: Callable[[str], None] | None = None,
    winograd: bool = True,
    fast_math: bool = False,
    prove: bool = False,
    arranged: str | None = None,
    connected: bool = False,
) -> Any:
    """Return the whole pipeline as one pass, for ``tvm.compile(mod, target, relax_pipeline=...)``.

    Parameters
    ----------
    target, device, buckets, winograd, arranged
        See `prepare`.
    database, tf32, fuse_rtasks, progress, fast_math, prove, connected
        See `schedule`.
    top : int
        Plans tried where the first ones cannot be applied.
    told : function of Report, optional
        Receives the report of the schedules.

    Examples
    --------
    >>> import roller_tvm.relax.pipeline
    >>> executable = tvm.compile(mod, target, relax_pipeline=relax.get_pipeline("roller"))
    """

    @tvm.transform.module_pass(opt_level=0, name="RollerPipeline")
    def pipeline(mod: Any, _context: Any) -> Any:
        full = _target(target)
        prepared = prepare(mod, full, buckets, device, winograd, arranged)
        scheduled, report = schedule(
            prepared, full, database, device, top, tf32, fuse_rtasks, progress, fast_math, prove, connected
        )
        if told is not None:
            told(report)
        with full:
            return lower(full)(scheduled)

    return pipeline


def build(
    mod: Any,
    target: Any = None,
    params: Mapping[str, Any] | None = None,
    database: Any = None,
    device: DeviceSpec | str | None = None,
    buckets: Sizes | Sequence[int] | None = None,
    tf32: bool = False,
    fuse_rtasks: bool | Fuses = False,
    schedules: str = "roller",
    threads: int | None = None,
    progress: Callable[[str], None] | None = None,
    winograd: bool = True,
    fast_math: bool = False,
    prove: bool = False,
    cuda_graph: bool = False,
    connected: bool = False,
) -> Any:
    """Build a Relax module for ``relax.VirtualMachine`` with Roller's schedules.

    Parameters
    ----------
    mod : tvm.IRModule
        As an importer gives it, or prepared by `prepare`.
    target : Target, dict or str, optional
        By default this machine's CPU.
    params : mapping of name to array, optional
        Weights to bind to parameters of ``main``.
    database, device, buckets, tf32, fuse_rtasks, winograd, fast_math, prove
        See `roller_pipeline`.
    schedules : {'roller', 'tvm'}
        'tvm' builds with TVM's default pipeline; the parameters of `roller_pipeline` have no use then.
    threads : int, optional
        Threads of TVM's pool in this process; by default TVM_NUM_THREADS, else what a CPU target says, else all
        physical cores.
    progress : function of str, optional
        See `schedule`.
    connected : bool
        See `schedule`.
    cuda_graph : bool
        NVIDIA GPUs: kernels of fixed shapes are captured in CUDA graphs in the first run.

    Returns
    -------
    tvm.relax.VMExecutable
        ``export_library(path)`` writes it; `REPORT` is an attribute of it.

    Examples
    --------
    >>> executable = build(mod, {"kind": "llvm", "num-cores": 2})
    >>> machine = relax.VirtualMachine(executable, tvm.cpu())
    >>> y = machine["main"](x)  # a numpy array, or a tensor
    """
    if schedules not in SCHEDULES:
        raise BadInput(must_be("schedules", f"one of {', '.join(SCHEDULES)}", schedules), "build", "leave it out")
    _require_relax(mod)  # TVM would build PrimFuncs as they are, without a word
    if params:
        mod = bound(mod, params)
    device = load_device(device) if isinstance(device, str) else device
    full, take, reports = make_target(target, device), TakeHost(), list[Report]()
    chosen = choices_beside(database if schedules != "tvm" else None, full)
    threads, winograd = threads or chosen.forms.get("threads"), winograd and chosen.forms.get("winograd", True)
    fuse_rtasks = fuse_rtasks or bool(chosen.forms.get("fuse"))
    cuda_graph = cuda_graph or bool(chosen.forms.get("cuda_graph"))
    use_threads(threads, device_of(device, full).units if full.kind.name == "llvm" else None)
    if schedules == "tvm":
        pipeline: Any = "default"
    else:
        pipeline = roller_pipeline(
            full, database, device, buckets, tf32=tf32, fuse_rtasks=fuse_rtasks, told=reports.append,
            progress=progress, winograd=winograd, fast_math=fast_math, prove=prove,
            arranged=chosen.forms.get("arranged"), connected=connected or bool(chosen.forms.get("connected")),
        )
    if full.kind.name == "llvm" and schedules != "tvm":
        executable = compile_model(mod, full, pipeline, progress)
    else:
        with contextlib.ExitStack() as scope:
            if full.kind.name == "cuda":
                scope.enter_context(_taking(take, **({CAPTURE: True} if cuda_graph else {})))
                cubins = Cubins(str(full.attrs["arch"]))
                scope.enter_context(cubins.used())
                if schedules != "tvm":
                    with full:
                        mod, pipeline = pipeline(mod), None
                scope.enter_context(cubins.apart())
            executable = tvm.compile(mod, full, relax_pipeline=pipeline)
    setattr(executable, KERNELS, take.kernels(executable))
    setattr(executable, REPORT, _told(full, reports, chosen))
    return executable


def _told(target: Any, reports: Sequence[Report], chosen: Choices) -> ModelReport:
    """Return the report of a model."""
    if not reports:
        return ModelReport(str(target))
    return ModelReport(str(target), reports[-1].kernels(), choices=(*chosen.words(), *reports[-1].choices))


def _require_relax(mod: Any) -> None:
    """Raise ``BadInput`` unless this is a module with a Relax function."""
    if not isinstance(mod, tvm.IRModule) or not any(isinstance(f, relax.Function) for _, f in mod.functions_items()):
        remedy = "give a module as the importer made it; PrimFuncs: ScheduleWithRoller and tvm.compile, or tune_tir"
        raise BadInput("has no Relax function", "module", remedy)


def _taking(take: TakeHost, **config: Any) -> Any:
    """Return the current PassContext plus an instrument that captures host code; enables cp.async, and what is given.

    A context of its own: what instruments of the outer one gather, they are told to finish when it ends.
    """
    outer = tvm.transform.PassContext.current()
    instruments = [*(outer.instruments or []), take.instrument]
    return context_like(outer, instruments, **{"tirx.use_async_copy": True, **config})


def _target(target: Any) -> Any:
    found = find_target(target)
    # TVM's passes need a host beside a GPU, and the limits that a bare tag leaves out.
    return found if found.kind.name == "llvm" or found.host is not None else make_target(found)


def _is_prepared(mod: Any) -> bool:
    return bool(mod.attrs) and PREPARED in mod.attrs
