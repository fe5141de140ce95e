"""Models on the Relax line: `models.line.ModelLine` over TVM 0.25 and later."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import ceil, sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..device import DeviceSpec, device_for_target, load_device
from ..errors import BadInput, RecordError
from ..models.choices import Choices, Form, prepares
from ..models.line import Aim, Job, ModelLine, Retune
from ..models.package import REPORT
from ..models.planning import with_relax_llvm
from ..tools import tool

if TYPE_CHECKING:
    from ..models.arguments import Signature
    from ..models.package import LoadedModel
    from ..roller.rprogram import Plan
    from ..session import Session
    from ..tuning.explorable import Explorable
    from ..tuning.model_report import KernelPlan
    from ..tuning.remote_run import Server


class RelaxModels(ModelLine):
    """Models of the Relax line."""

    folder, output, example, place, lays_out = "relax", "module.so", "model.so", "records", True

    def aim(self, target: Any, device: DeviceSpec | str | None, where: str) -> Aim:
        from roller_tvm.tuning.machine import require_kind

        from .targets import target_dict, tvm_target

        given = load_device(device) if device is not None and not isinstance(device, DeviceSpec) else device
        words = target_dict(target, given)
        spec = given or device_for_target(words)
        require_kind(spec, words["kind"], where)
        return Aim(words, tvm_target(words), with_relax_llvm(spec))

    def check_place(self, place: Path, aim: Aim) -> None:
        self._check_folder(place, aim, tunes=True)

    def check_records(self, place: Path, aim: Aim, retune: Retune) -> None:
        if not place.exists():
            raise BadInput("no such folder of records", str(place), retune(None, str(place)))
        self._check_folder(place, aim, tunes=False)

    def holds_records(self, place: Path) -> bool:
        return (place / "database_tuning_record.json").exists()

    def _check_folder(self, folder: Path, aim: Aim, tunes: bool) -> None:
        """Refuse what is no folder of records, or one of another target."""
        from .record_files import NOTES
        from .targets import for_other_kernels, kernels_of

        if folder.exists() and not folder.is_dir():
            what = "is no folder: records of the Relax line are MetaSchedule's files in a folder"
            raise BadInput(what, str(folder), "give a folder: --output records")
        if not folder.resolve().parent.is_dir():
            raise BadInput("no such folder", str(folder.parent), f"mkdir -p {folder.parent}")
        try:
            first = (folder / NOTES).read_text(encoding="utf-8").partition("\n")[0]
            other = json.loads(first).get("target", "")
        except (OSError, ValueError, AttributeError):  # none yet, or MetaSchedule's own; what is broken is told later
            return
        made = str(aim.target)
        contradict = bool(other) and for_other_kernels(other, made)
        if other and (kernels_of(other) != kernels_of(made) if tunes else contradict):
            # Unless they contradict, the records' target says less than a command line makes of it.
            remedy = "give that target, or tune into another folder" if contradict else "tune into another folder"
            raise RecordError(f"its records are for the target {other}, not for {made}", str(folder), remedy)

    def fusion(self, job: Job, policy: str) -> Any:
        from .fuse_rtasks import FuseRTasks

        return FuseRTasks(job.aim.target, job.aim.device, policy, tf32=job.tf32)

    def prepared(self, job: Job) -> Job:
        """Return the job with its module legalized, laid out and fused."""
        from .pipeline import prepare

        if job.prepared:
            return job
        mod = prepare(self._telling(job), job.aim.target, job.buckets, job.aim.device, job.winograd, job.arranged)
        return replace(job, model=replace(job.model, mod=mod), buckets=None, prepared=True)

    def _telling(self, job: Job) -> Any:
        """Return the job's module, which tells its inputs."""
        from .size_checks import with_bounds

        return self.package.with_signature(with_bounds(job.model.mod, job.bounds, job.likely), job.model.inputs)

    def tasks(self, job: Job) -> list[Any]:
        from ..tuning.line import Model
        from .line import LINE
        from .tasks import extract_tasks

        mod, aim = self._without_matrices(job), job.aim
        if job.fuse:
            mod = LINE.without_fused(Model(mod), aim.target, aim.device, job.fuse)[0].mod
        return extract_tasks(mod)

    def _without_matrices(self, job: Job) -> Any:
        """Return the prepared module without the products that a build puts on the matrix unit."""
        from .matrix_products import MatrixProducts
        from .targets import make_target

        return MatrixProducts(make_target(job.aim.target), job.aim.device)(self.prepared(job).model.mod)

    def tune(self, job: Job, place: Any, trials: int, tasks: Any, **options: Any) -> Any:
        from .tuning import tune

        return tune(
            self._without_matrices(job), None, job.aim.target, place, max_trials_per_task=trials, tasks=tasks,
            device=job.aim.device, fuse_rtasks=job.fuse, **options,
        )[1]  # fmt: skip

    def build(self, job: Job, records: Any, schedules: str, threads: int | None, progress: Any) -> Any:
        from .pipeline import build

        mod = self._telling(job) if schedules == "tvm" else self.prepared(job).model.mod
        return build(
            mod, job.aim.target, None, records, job.aim.device, None, job.tf32, job.fuse, schedules,
            threads=threads, progress=progress, fast_math=job.fast_math, prove=job.prove,
            cuda_graph=job.cuda_graph, connected=job.connected,
        )  # fmt: skip

    def operator_seconds(
        self, built: Any, loaded: LoadedModel, inputs: Mapping[str, Any], folder: Path
    ) -> dict[str, float]:
        from .exploring import operator_seconds

        return operator_seconds(loaded, inputs)

    def operator_of(self, kernel: str) -> str:
        from .exploring import operator_of

        return operator_of(kernel)

    def sent(self, built: Any, inputs: Signature, server: Server) -> LoadedModel:
        from ..tuning.remote_run import written_for
        from .remote_model import RemoteModel

        return RemoteModel(written_for(server, lambda path: self.save(built, path)), inputs, getattr(built, REPORT))

    def state_of(self, place: Path) -> Path:
        return place / "roller_tvm_explore.json"

    def explorable(
        self, job: Job, built: Any, records: Any, top: int, share: Callable[[str], float], least: float, folder: Path,
        threads: int, memory_bytes: int, tell: Callable[[str], None], server: Server | None,
    ) -> Explorable:  # fmt: skip
        from .exploring import explorable

        return explorable(self.prepared(job), records, top, share, least, folder, threads, memory_bytes, tell, server)

    def forms(self, job: Job, threads: int) -> Sequence[Form]:
        beside = Form("kernels side by side", {"fuse": True}, "they are already" if job.fuse else "")
        if job.aim.device.kind != "cpu":
            graphs = Form("CUDA graphs", {"cuda_graph": True}, "it has them" if job.cuda_graph else "", cheap=True)
            return graphs, beside  # one is tried on the variants' library, the other is built
        names = " ".join(str(var.name_hint) for var in job.model.mod.get_global_vars())
        none = "" if "conv2d" in names else "there is no convolution"
        direct = "" if "winograd" in names else "no convolution is computed by Winograd's algorithm"
        fewer = max(1, threads // 2)
        return (
            Form("direct convolutions", {"winograd": False}, direct),
            Form("activations as NCHW", {"arranged": "NCHW"}, none),
            Form("activations in blocks of channels", {"arranged": "blocked"}, none),
            Form("more calls connected", {"connected": True}, "they are already" if job.connected else ""),
            beside,
            Form(f"threads: {fewer}", {"threads": fewer}, "there is one already" if threads == 1 else ""),
        )

    def predicted(self, job: Job) -> Counter[tuple[float, str]]:
        found: Counter[tuple[float, str]] = Counter()
        for one in self._kernels(job, None):
            found[one.predicted_s or 0.0, one.plan] += one.calls
        return found

    def _kernels(self, job: Job, records: Any) -> Sequence[KernelPlan]:
        """Return the kernels that a build would compile."""
        from .pipeline import schedule

        mod, aim = self.prepared(job).model.mod, job.aim
        return schedule(
            mod, aim.target, records, aim.device, tf32=job.tf32, fuse_rtasks=job.fuse, connected=job.connected
        )[1].kernels()

    def changes(self, session: Session, made: Session, form: Form) -> str:
        from ..tir.nodes import structurally_equal

        if prepares(form.values):
            same = structurally_equal(session.job.model.mod, made.job.model.mod)
            return "it changes nothing in this model" if same else ""
        if form.values.get("connected"):
            told = [getattr(session.built(), REPORT).plans, self._kernels(made.job, made.records)]
            kernels = [[(plan.kernel, plan.how) for plan in plans] for plans in told]
            return "no further calls can be" if kernels[0] == kernels[1] else ""
        if form.values.get("fuse"):
            self._kernels(made.job, made.records)
            return "" if made.job.fuse.report.functions else "no kernels are predicted to gain"
        return ""

    def choices(self, place: Path, aim: Aim) -> Choices:
        from .choices import read_choices

        return read_choices(place, aim.target)

    def choose(self, place: Path, aim: Aim, choices: Choices) -> None:
        from .choices import write_choices

        write_choices(choices, place, aim.target)

    def terms(self, job: Job) -> int:
        from .tasks import extract_tasks, reduction_terms

        each = [(reduction_terms(task.func), task.weight) for task in extract_tasks(job.model.mod)]
        return ceil(sum(weight * sqrt(terms) for terms, weight in each) ** 2)

    def fused(self, job: Job, built: Any) -> Any:
        return job.fuse.report

    def on_pocl(self, job: Job, policy: str) -> Mapping[str, Any]:
        check_fusion_on_pocl = tool("roller_check.relax_fused").check_fusion_on_pocl
        mod = self.prepared(job).model.mod
        return check_fusion_on_pocl(mod, job.aim.target, job.aim.device, policy, tf32=job.tf32)

    def emulate(self, path: Path, checked: bool, told: Any) -> Any:
        return tool("roller_check.relax_model").EmulatedModel(path, checked, told)

    def read(self, tensors: Sequence[Any]) -> Any:
        return _prim_func(tensors)[1].expression

    def check_plan(self, plan: Plan, tensors: Sequence[Any], arch: str, on_pocl: bool) -> Iterator[Any]:
        checker = tool("roller_check.relax_plans")
        yield checker.check_plan(plan, tensors, arch)
        if on_pocl:
            yield checker.check_plan_on_pocl(plan, tensors)

    def prove(self, tensors: Sequence[Any], steps: Sequence[Any], device: DeviceSpec) -> Any:
        from ..codegen.apply_tensorir import apply_steps_tir
        from .proving import prove

        func, reading = _prim_func(tensors)
        scheduled = apply_steps_tir(func, reading, steps).mod["main"]
        return prove(scheduled, func, _target(device), device, reading.expression.name)

    def levels(self, tensors: Sequence[Any], steps: Sequence[Any], device: DeviceSpec) -> Any:
        from ..codegen.apply_tensorir import apply_steps_tir
        from .proving import levels

        func, reading = _prim_func(tensors)
        return levels(apply_steps_tir(func, reading, steps).mod["main"], _target(device))

    def resources(self, ranked: Any, tensors: Sequence[Any], device: DeviceSpec) -> Any:
        from .cuda import check_resources

        func, reading = _prim_func(tensors)
        return check_resources(ranked.plan, ranked.estimate, func, reading, (device.arch,), device=device)


def _target(device: DeviceSpec) -> Any:
    """Return a target of the device's kind."""
    import tvm

    words = {"kind": "cuda", "arch": device.arch} if device.arch.startswith("sm_") else {"kind": "llvm"}
    return tvm.target.Target(words)


def _prim_func(tensors: Sequence[Any]) -> tuple[Any, Any]:
    """Return the PrimFunc of a TE program, and its reading."""
    from tvm import te

    from ..tir import read_prim_func

    func = te.create_prim_func(tensors)
    return func, read_prim_func(func)


LINE = RelaxModels()
