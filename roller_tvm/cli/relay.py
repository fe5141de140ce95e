"""The Relay line's side of ``tune`` and ``compile``."""

from __future__ import annotations

import argparse
import shlex
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from roller_tvm.cli.line import Built, Tuning, policy_of, untuned
from roller_tvm.cli.model import model_words, progress_of, read_model, say, tell_device
from roller_tvm.device import DeviceSpec
from roller_tvm.errors import BadInput, RecordError, UsageError
from roller_tvm.ir.parameters import parse_params
from roller_tvm.planner import construct
from roller_tvm.roller.features import Features

OUTPUT = Path("module.tar")


def tuning(args: argparse.Namespace) -> Tuning:
    """A model read, its target and device known; mistakes are found before the model is imported."""
    from roller_tvm.relay.importers import load_model

    if args.buckets:
        raise _no_buckets()
    if args.output is not None and args.output.is_dir():
        raise BadInput("is a folder", str(args.output), f"give a file: --output {args.output}/records.json")
    target = _target(args)
    device = _device(args, target)
    if args.tasks != "list":
        _check_records(args.output)
    model = read_model(args, load_model)
    fuse = _fuse(args, model, target, device)

    def tasks() -> list[Any]:
        from roller_tvm.relay.tasks import extract_tasks, make_target

        made = make_target(target)
        if not fuse:
            return extract_tasks(model.mod, model.params, made, device)
        from roller_tvm.relay.tuning import left_to_tune

        return extract_tasks(left_to_tune(model.mod, model.params, made, device, fuse), None, made, device)

    def tune(progress: Any, limits: Any) -> Any:
        from roller_tvm.relay import tune

        return tune(
            model.mod, model.params, target, args.output, args.trials, device, args.tasks, progress=progress,
            limits=limits, fuse_rtasks=fuse,
        )  # fmt: skip

    if not args.fuse_rtasks:  # what is built from records has been planned
        args = argparse.Namespace(**{**vars(args), "device": None})
    words = f"roller-tvm compile {model_words(args, target)}"
    records = f"--tuning-records {shlex.quote(str(args.output))}"
    return Tuning(tasks, tune, f"{words} {records} -o model.tar", f"{words} -o model.tar")


def _device(args: argparse.Namespace, target: str) -> Any:
    """The device, before the model is imported: a mistake in it should not cost that time."""
    from roller_tvm.device import device_for_target, load_device

    if args.device:
        from roller_tvm.relay.tasks import check_device, make_target
        from roller_tvm.tvm_env import import_relay_tvm

        import_relay_tvm("tuning a Relay model")
        device = load_device(args.device)
        check_device(device, make_target(target))
    else:
        device = device_for_target(target)
    tell_device(device, bool(args.device))
    return device


def _check_records(path: Path) -> None:
    from roller_tvm.relay.records import read_records

    if not path.parent.is_dir():
        raise BadInput("no such folder", str(path.parent), f"mkdir -p {path.parent}")
    if path.exists() and not path.is_file():  # a device, a pipe
        raise BadInput("is not a regular file", str(path), "give another file")
    read_records(path)


def build(args: argparse.Namespace) -> Built:
    """Build and write a model."""
    from roller_tvm.device import device_for_target
    from roller_tvm.device.from_target import parse_target
    from roller_tvm.relay.importers import load_model
    from roller_tvm.relay.package import check_output, save_model
    from roller_tvm.relay.records import read_kept, read_records

    if args.buckets:
        raise _no_buckets()
    if args.tf32:
        remedy = "leave it out, or take the Relax line: --line relax"
        raise UsageError("the Relay line has no tensor cores", "--tf32", remedy)
    output, records = check_output(args.output or OUTPUT), args.tuning_records
    target = _target(args)
    if args.device and args.schedules == "tvm" and not args.fuse_rtasks:
        remedy = "leave it out, or leave --schedules tvm out"
        raise UsageError("TVM's own schedules are not planned for a device", "--device", remedy)
    device = _device(args, target) if args.device else device_for_target(target)
    if records is not None:
        remedy = f"roller-tvm tune {args.FILE} --output {records}"
        if not records.is_file():
            raise BadInput("no such record file", str(records), remedy)
        known = read_records(records)
        if not known and not read_kept(records):
            raise BadInput("holds no records", str(records), remedy)
        kinds = sorted({parse_target(r.target).kind for r in known})
        if kinds and (kind := parse_target(target).kind) not in kinds:
            raise RecordError(
                f"its records are for {', '.join(kinds)}, the target is {kind}",
                str(records),
                f'roller-tvm tune {args.FILE} --target "{target}" --output OTHER.json',
            )
    model = read_model(args, load_model)

    fuse = _fuse(args, model, target, device)
    fused: list[Any] = []

    def build() -> Path:
        from roller_tvm.relay import build
        from roller_tvm.relay.building import FUSION

        built = build(
            model.mod, model.params, target, records, fuse, schedules=args.schedules, device=device,
            progress=progress_of("planning"),
        )  # fmt: skip
        fused.append(getattr(built, FUSION))
        return save_model(built, output)

    def on_pocl() -> Mapping[str, Any]:
        from roller_tvm.relay.fused_on_pocl import check_fusion_on_pocl

        return check_fusion_on_pocl(model.mod, target, device, model.params, policy_of(args))

    return Built(output, target, build, untuned(args), (lambda: fused[-1]) if fuse else None, on_pocl)


def _fuse(args: argparse.Namespace, model: Any, target: str, device: DeviceSpec) -> Any:
    """The pass of --fuse-rtasks; False where it is not asked for."""
    from roller_tvm.relay import FuseRTasks

    return FuseRTasks(target, device, model.params, policy_of(args)) if args.fuse_rtasks else False


def planning(device: DeviceSpec) -> tuple[DeviceSpec, Features]:
    """Return the device to plan for and the features of this line's schedules."""
    return device, Features.of_te(device)


def check(
    words: Sequence[str], device: DeviceSpec, features: Features, top: int, on_pocl: bool
) -> Iterator[Any]:
    """The best of `top` plans of a named operator, its kernels executed on the CPU; an `emulate.Checked` a witness."""
    from roller_tvm.relay.emulated import check_plan, check_plan_on_pocl
    from roller_tvm.te import read_te, te_operator

    tensors = te_operator(words[0], **parse_params(" ".join(words[1:])))
    reading = read_te(tensors)
    plan = construct(reading.expression, device, top, features).best.plan
    yield check_plan(plan, tensors, device.arch)
    if on_pocl:
        yield check_plan_on_pocl(plan, tensors)


def compiled(words: Sequence[str], device: DeviceSpec, features: Features, top: int) -> tuple[Any, Any]:
    """(the best of `top` plans of a named operator, what its kernels take: a `CompiledPlan`, or a `Rejection`)."""
    from roller_tvm.codegen.apply_te import TeProgram
    from roller_tvm.relay.cuda import check_resources
    from roller_tvm.te import read_te, te_operator

    tensors = te_operator(words[0], **parse_params(" ".join(words[1:])))
    reading = read_te(tensors)
    best = construct(reading.expression, device, top, features).best
    program = TeProgram.of_reading(reading, tensors)
    return best, check_resources(best.plan, best.estimate, program, (device.arch,))


def load(path: Path, device: str) -> Any:
    """A built model, ready to run."""
    from roller_tvm.relay.package import LoadedModel

    return LoadedModel(path, device)


def emulate(path: Path, checked: bool, told: Any) -> Any:
    """A model built for cuda, its kernels run on the CPU."""
    from roller_tvm.relay.emulated_model import EmulatedModel

    return EmulatedModel(path, checked, told)


def reference(path: Path, inputs: Mapping[str, Any]) -> list[Any]:
    """Return a model file's outputs on this CPU, with TVM's own schedules."""
    from roller_tvm.relay import build
    from roller_tvm.relay.importers import load_model
    from roller_tvm.relay.package import LoadedModel, save_model

    model = load_model(path, {name: array.shape for name, array in inputs.items()})
    with tempfile.TemporaryDirectory(prefix="roller-tvm-") as folder:
        built = build(model.mod, model.params, "llvm", schedules="tvm")
        return LoadedModel(save_model(built, Path(folder, OUTPUT))).run(inputs)


def _target(args: argparse.Namespace) -> str:
    """The target asked for, or that of this machine's CPU with the threads that it scales to."""
    if args.target is not None:
        return str(args.target)
    from roller_tvm.device import cpu_device, default_cpu_target

    target = default_cpu_target(cpu_device().units)
    say(f"target: {target}")
    return target


def _no_buckets() -> UsageError:
    return UsageError("open extents are fixed at import on the Relay line", "--buckets", "use --input-shapes")
