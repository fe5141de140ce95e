"""Models on the Relay line: `models.line.ModelLine` over TVM 0.13 to 0.19."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import ceil, sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roller_tvm.device import DeviceSpec, cpu_device, default_cpu_target, device_for_target, load_device
from roller_tvm.device.from_target import parse_target
from roller_tvm.errors import BadInput, RecordError, UsageError
from roller_tvm.models.choices import Choices, Form, prepares
from roller_tvm.models.line import Aim, Job, ModelLine, Request, Retune
from roller_tvm.models.package import REPORT
from roller_tvm.tools import tool
from roller_tvm.tvm_env import import_relay_tvm

if TYPE_CHECKING:
    from roller_tvm.models.arguments import Signature
    from roller_tvm.models.package import LoadedModel
    from roller_tvm.roller.rprogram import Plan
    from roller_tvm.session import Session
    from roller_tvm.tuning.explorable import Explorable
    from roller_tvm.tuning.remote_run import Server


class RelayModels(ModelLine):
    """Models of the Relay line."""

    folder, output, example, place, lays_out = "relay", "module.tar", "model.tar", "records.json", False

    def check_options(self, request: Request) -> None:
        if request.buckets:
            told = "open extents are fixed at import on the Relay line"
            raise UsageError(told, "--buckets", "use --input-shapes")
        if request.tf32:
            remedy = "leave it out, or take the Relax line: --line relax"
            raise UsageError("the Relay line has no tensor cores", "--tf32", remedy)
        if request.device and request.schedules == "tvm" and not request.fuse_rtasks:
            remedy = "leave it out, or leave --schedules tvm out"
            raise UsageError("TVM's own schedules are not planned for a device", "--device", remedy)

    def aim(self, target: Any, device: DeviceSpec | str | None, where: str) -> Aim:
        from roller_tvm.relay.tasks import check_device, make_target

        import_relay_tvm("compiling a model")
        words = default_cpu_target(cpu_device().units) if target is None else target
        spec = device_for_target(words) if device is None else device
        spec = spec if isinstance(spec, DeviceSpec) else load_device(spec)
        made = make_target(words)
        check_device(spec, made)
        return Aim(words, made, spec)

    def check_place(self, place: Path, aim: Aim) -> None:
        from roller_tvm.relay.records import read_records

        if place.is_dir():
            raise BadInput("is a folder", str(place), f"give a file: --output {place}/records.json")
        if not place.parent.is_dir():
            raise BadInput("no such folder", str(place.parent), f"mkdir -p {place.parent}")
        if place.exists() and not place.is_file():  # a device, a pipe
            raise BadInput("is not a regular file", str(place), "give another file")
        read_records(place)

    def check_records(self, place: Path, aim: Aim, retune: Retune) -> None:
        from roller_tvm.relay.records import read_records

        if not place.is_file() or self.is_empty(place):
            what = "holds no records" if place.is_file() else "no such record file"
            raise BadInput(what, str(place), retune(None, str(place)))
        kinds = sorted({parse_target(r.target).kind for r in read_records(place)})
        if kinds and (kind := aim.target.kind.name) not in kinds:
            told = f"its records are for {', '.join(kinds)}, the target is {kind}"
            raise RecordError(told, str(place), retune(str(aim.words), "OTHER.json"))

    def is_empty(self, place: Path) -> bool:
        from roller_tvm.relay.records import read_kept, read_records

        empty = place.is_file() and not read_records(place) and not read_kept(place)
        return empty and not self._choices_of(place).exists()

    def holds_records(self, place: Path) -> bool:
        return place.is_file() and not self.is_empty(place)

    def fusion(self, job: Job, policy: str) -> Any:
        from roller_tvm.relay.fuse_rtasks import FuseRTasks

        return FuseRTasks(job.aim.target, job.aim.device, job.model.params, policy)

    def tasks(self, job: Job) -> list[Any]:
        from roller_tvm.relay.line import LINE
        from roller_tvm.relay.tasks import extract_tasks
        from roller_tvm.tuning.line import Model

        mod, params, aim = job.model.mod, job.model.params, job.aim
        if job.fuse:
            mod, params = LINE.without_fused(Model(mod, params), aim.target, aim.device, job.fuse)[0].mod, None
        return extract_tasks(mod, params, aim.target, aim.device)

    def tune(self, job: Job, place: Any, trials: int, tasks: Any, **options: Any) -> Any:
        from roller_tvm.relay.tuning import tune

        return tune(
            job.model.mod, job.model.params, job.aim.target, place, trials, job.aim.device, tasks,
            fuse_rtasks=job.fuse, **options,
        )  # fmt: skip

    def build(self, job: Job, records: Any, schedules: str, threads: int | None, progress: Any) -> Any:
        from roller_tvm.relay.building import build

        chosen = self.choices(Path(records), job.aim).words() if records is not None else ()
        return build(
            job.model.mod, job.model.params, job.aim.target, records, job.fuse, schedules=schedules,
            device=job.aim.device, threads=threads, progress=progress, fast_math=job.fast_math, prove=job.prove,
            packed=job.packed, chosen=chosen,
        )  # fmt: skip

    def sent(self, built: Any, inputs: Signature, server: Server) -> LoadedModel:
        from tvm.contrib.graph_executor import GraphModule

        from roller_tvm.relay.remote_model import RemoteModel
        from roller_tvm.tuning.remote_run import written_for

        held = written_for(server, lambda path: self.save(built, path))
        return RemoteModel(held, lambda library, device: GraphModule(library["default"](device)), inputs,
                           getattr(built, REPORT))  # fmt: skip

    def state_of(self, place: Path) -> Path:
        return place.with_name(f"{place.name}.explore")

    def operator_seconds(
        self, built: Any, loaded: LoadedModel, inputs: Mapping[str, Any], folder: Path
    ) -> dict[str, float]:
        from roller_tvm.relay.exploring import operator_seconds

        return operator_seconds(built, loaded, inputs, folder)

    def explorable(
        self, job: Job, built: Any, records: Any, top: int, share: Callable[[str], float], least: float, folder: Path,
        threads: int, memory_bytes: int, tell: Callable[[str], None], server: Server | None,
    ) -> Explorable:  # fmt: skip
        from roller_tvm.relay.exploring import explorable

        return explorable(job, built, top, share, least, folder, threads, memory_bytes, tell, server)

    def _choices_of(self, place: Path) -> Path:
        return place.with_name(f"{place.name}.choices")

    def choices(self, place: Path, aim: Aim) -> Choices:
        return Choices.read(self._choices_of(place), str(aim.target), lambda kept, wanted: kept != wanted)

    def choose(self, place: Path, aim: Aim, choices: Choices) -> None:
        choices.write(self._choices_of(place), str(aim.target))
        place.touch()  # a build with these records takes them

    def forms(self, job: Job, threads: int) -> Sequence[Form]:
        beside = Form("kernels side by side", {"fuse": True}, "they are already" if job.fuse else "")
        if job.aim.device.kind != "cpu":
            return (beside,)
        layouts = _layouts(job.model.mod)
        none = "" if layouts else "there is no convolution"
        nhwc, nchw = (none or ("they are already" if layouts == {name} else "") for name in ("NHWC", "NCHW"))
        fewer = max(1, threads // 2)
        return (
            Form("activations as NHWC", {"arranged": "NHWC"}, nhwc),
            Form("Winograd's algorithm", {"arranged": "NHWC", "winograd": True}, none),
            Form("activations as NCHW", {"arranged": "NCHW"}, nchw),
            Form("weights as they are", {"packed": False}),
            beside,
            Form(f"threads: {fewer}", {"threads": fewer}, "there is one already" if threads == 1 else ""),
        )

    def formed(self, job: Job, values: Mapping[str, Any]) -> Job:
        from roller_tvm.relay.importers import arranged
        from roller_tvm.relay.winograd import use_winograd

        if layout := values.get("arranged"):
            job = replace(job, model=arranged(job.model, layout))
        if values.get("winograd"):
            mod, _ = use_winograd(job.model.mod, job.model.params, job.aim.device, job.aim.target)
            job = replace(job, model=replace(job.model, mod=mod))
        return super().formed(job, values)

    def changes(self, session: Session, made: Session, form: Form) -> str:
        import tvm

        if prepares(form.values):
            same = tvm.ir.structural_equal(session.job.model.mod, made.job.model.mod)
            if same or (form.values.get("winograd") and "winograd" not in str(made.job.model.mod["main"])):
                return "it changes nothing in this model"
        if form.values.get("fuse"):
            made.load()
            return "" if made.fused().functions else "no kernels are predicted to gain"
        return ""

    def terms(self, job: Job) -> int:
        from roller_tvm.relay.reference import reduction_terms

        each = [(reduction_terms(task.search_task.compute_dag.ops), task.weight) for task in self.tasks(job)]
        return ceil(sum(weight * sqrt(terms) for terms, weight in each) ** 2)

    def fused(self, job: Job, built: Any) -> Any:
        from roller_tvm.relay.building import FUSION

        return getattr(built, FUSION)

    def on_pocl(self, job: Job, policy: str) -> Mapping[str, Any]:
        check_fusion_on_pocl = tool("roller_check.relay_fused").check_fusion_on_pocl
        return check_fusion_on_pocl(job.model.mod, job.aim.target, job.aim.device, job.model.params, policy)

    def emulate(self, path: Path, checked: bool, told: Any) -> Any:
        return tool("roller_check.relay_model").EmulatedModel(path, checked, told)

    def read(self, tensors: Sequence[Any]) -> Any:
        from roller_tvm.te import read_te

        return read_te(tensors).expression

    def check_plan(self, plan: Plan, tensors: Sequence[Any], arch: str, on_pocl: bool) -> Iterator[Any]:
        checker = tool("roller_check.relay_plans")
        yield checker.check_plan(plan, tensors, arch)
        if on_pocl:
            yield checker.check_plan_on_pocl(plan, tensors)

    def prove(self, tensors: Sequence[Any], steps: Sequence[Any], device: DeviceSpec) -> Any:
        from roller_tvm.relay.proving import prove
        from roller_tvm.te import read_te

        return prove(*_scheduled(tensors, steps), device, read_te(tensors).expression.name)

    def levels(self, tensors: Sequence[Any], steps: Sequence[Any], device: DeviceSpec) -> Any:
        from roller_tvm.relay.proving import levels

        return levels(*_scheduled(tensors, steps))

    def resources(self, ranked: Any, tensors: Sequence[Any], device: DeviceSpec) -> Any:
        from roller_tvm.codegen.apply_te import TeProgram
        from roller_tvm.relay.cuda import check_resources
        from roller_tvm.te import read_te

        program = TeProgram.of_reading(read_te(tensors), tensors)
        return check_resources(ranked.plan, ranked.estimate, program, (device.arch,))


def _layouts(mod: Any) -> set[str]:
    """Return how the convolutions of a model have their activations."""
    from tvm import relay

    found: set[str] = set()

    def note(expr: Any) -> None:
        if isinstance(expr, relay.Call) and "conv2d" in getattr(expr.op, "name", ""):
            found.add(str(getattr(expr.attrs, "data_layout", "")))

    relay.analysis.post_order_visit(mod["main"], note)
    return found - {""}


def _scheduled(tensors: Sequence[Any], steps: Sequence[Any]) -> tuple[Any, list[Any]]:
    """Return a te.Schedule of a program, and its arguments."""
    from roller_tvm.codegen.apply_te import TeProgram, apply_steps_te
    from roller_tvm.te import read_te

    return apply_steps_te(TeProgram.of_reading(read_te(tensors), tensors), steps)


LINE = RelayModels()
