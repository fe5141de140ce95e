"""The Relax line's side of ``tune`` and ``compile``."""

from __future__ import annotations

import argparse
import json
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
from roller_tvm.tvm_env import use_threads

OUTPUT = Path("module.so")


def tuning(args: argparse.Namespace) -> Tuning:
    """A model read and prepared, its target and device known; mistakes are found before the model is imported."""
    from roller_tvm.relax.importers import load_model

    buckets = parse_buckets(args.buckets) if args.buckets else None
    target = _target(args)
    device = _device(args, target)
    if args.tasks != "list":
        _check_folder(args.output, target)
    _threads(target)
    model = read_model(args, load_model)
    from roller_tvm.relax.pipeline import prepare
    from roller_tvm.relax.targets import make_target

    made = make_target(target)
    mod = prepare(model.mod, made, buckets, device)
    fuse = _fuse(args, target, device)

    def tasks() -> list[Any]:
        from roller_tvm.relax.tasks import extract_tasks
        from roller_tvm.relax.tuning import left_to_tune

        return extract_tasks(left_to_tune(mod, made, device, fuse)[0] if fuse else mod)

    def tune(progress: Any, limits: Any) -> Any:
        from roller_tvm.relax.tuning import tune

        _, result = tune(
            mod, None, made, args.output, max_trials_per_task=args.trials, tasks=args.tasks, device=device,
            progress=progress, limits=limits, fuse_rtasks=fuse,
        )  # fmt: skip
        return result

    words = f"{model_words(args, args.target)} --tuning-records {shlex.quote(str(args.output))} -o model.so"
    return Tuning(tasks, tune, f"roller-tvm compile {words}")


def build(args: argparse.Namespace) -> Built:
    """Build and write a model."""
    from roller_tvm.relax.importers import load_model
    from roller_tvm.relax.package import check_output, save_model, with_signature

    output, records = check_output(args.output or OUTPUT), args.tuning_records
    buckets = parse_buckets(args.buckets) if args.buckets else None
    target = _target(args)
    if records is not None:
        remedy = f"roller-tvm tune {model_words(args, args.target)} --output {shlex.quote(str(records))}"
        if not records.exists():
            raise BadInput("no such folder of records", str(records), remedy)
        _check_folder(records, target, tunes=False)
    device = _device(args, target) if args.device else None
    _threads(target)
    model = read_model(args, load_model)
    fuse = _fuse(args, target, device, args.tf32)

    def build() -> Path:
        from roller_tvm.relax.pipeline import build

        mod = with_signature(model.mod, model.inputs)
        built = build(
            mod, target, model.params, records, device, buckets, args.tf32, fuse, args.schedules,
            progress=progress_of("planning"),
        )  # fmt: skip
        return save_model(built, output)

    def on_pocl() -> Mapping[str, Any]:
        from roller_tvm.relax.fused_on_pocl import check_fusion_on_pocl
        from roller_tvm.relax.pipeline import prepare
        from roller_tvm.relax.targets import make_target

        made = make_target(target)
        mod = prepare(model.mod, made, buckets, device)
        return check_fusion_on_pocl(mod, made, device, policy_of(args), tf32=args.tf32)

    return Built(output, target, build, untuned(args), (lambda: fuse.report) if fuse else None, on_pocl)


def _fuse(args: argparse.Namespace, target: dict[str, Any], device: Any, tf32: bool = False) -> Any:
    """The pass of --fuse-rtasks; False where it is not asked for."""
    from roller_tvm.relax import FuseRTasks
    from roller_tvm.relax.targets import make_target

    return FuseRTasks(make_target(target), device, policy_of(args), tf32=tf32) if args.fuse_rtasks else False


def planning(device: DeviceSpec) -> tuple[DeviceSpec, Features]:
    """Return the device to plan for and the features of this line's schedules."""
    from roller_tvm.relax.devices import with_this_llvm

    return with_this_llvm(device), Features.of_tensor_ir(device)


def check(
    words: Sequence[str], device: DeviceSpec, features: Features, top: int, on_pocl: bool
) -> Iterator[Any]:
    """The best of `top` plans of a named operator, its kernels executed on the CPU; an `emulate.Checked` a witness."""
    from tvm import te

    from roller_tvm.relax.emulated import check_plan, check_plan_on_pocl
    from roller_tvm.te import te_operator
    from roller_tvm.tir import read_prim_func

    tensors = te_operator(words[0], **parse_params(" ".join(words[1:])))
    reading = read_prim_func(te.create_prim_func(tensors))
    plan = construct(reading.expression, device, top, features).best.plan
    yield check_plan(plan, tensors, device.arch)
    if on_pocl:
        yield check_plan_on_pocl(plan, tensors)


def compiled(words: Sequence[str], device: DeviceSpec, features: Features, top: int) -> tuple[Any, Any]:
    """(the best of `top` plans of a named operator, what its kernels take: a `CompiledPlan`, or a `Rejection`)."""
    from tvm import te

    from roller_tvm.te import te_operator
    from roller_tvm.tir import read_prim_func
    from roller_tvm.tir.cuda import check_resources

    func = te.create_prim_func(te_operator(words[0], **parse_params(" ".join(words[1:]))))
    reading = read_prim_func(func)
    best = construct(reading.expression, device, top, features).best
    return best, check_resources(best.plan, best.estimate, func, reading, (device.arch,), device=device)


def load(path: Path, device: str) -> Any:
    """A built model, ready to run."""
    from roller_tvm.relax.package import LoadedModel

    return LoadedModel(path, device)


def emulate(path: Path, checked: bool, told: Any) -> Any:
    """A model built for cuda, its kernels run on the CPU."""
    from roller_tvm.relax.emulated_model import EmulatedModel

    return EmulatedModel(path, checked, told)


def reference(path: Path, inputs: Mapping[str, Any]) -> list[Any]:
    """Return a model file's outputs on this CPU, with TVM's own schedules."""
    import tvm

    from roller_tvm.relax.importers import load_model
    from roller_tvm.relax.package import LoadedModel, save_model, with_signature

    model = load_model(path, {name: array.shape for name, array in inputs.items()})
    with tempfile.TemporaryDirectory(prefix="roller-tvm-") as folder:
        executable = tvm.compile(with_signature(model.mod, model.inputs), tvm.target.Target("llvm"))
        return LoadedModel(save_model(executable, Path(folder, OUTPUT))).run(inputs)


def _target(args: argparse.Namespace) -> dict[str, Any]:
    """The target asked for, in full, or that of this machine's CPU with the threads that it scales to."""
    from roller_tvm.relax.targets import target_dict

    full = target_dict(args.target)
    if not args.target:
        say(f"target: {json.dumps(full)}")
    return full


def _device(args: argparse.Namespace, target: dict[str, Any]) -> Any:
    from roller_tvm.device import device_for_target, load_device
    from roller_tvm.tuning.machine import require_kind

    device = load_device(args.device) if args.device else device_for_target(target)
    require_kind(device, target["kind"], "--device")
    tell_device(device, bool(args.device))
    return device


def _check_folder(folder: Path, target: dict[str, Any], tunes: bool = True) -> None:
    """Refuse what is no folder of records, or one of another target, before the model is imported."""
    if folder.exists() and not folder.is_dir():
        what = "is no folder: records of the Relax line are MetaSchedule's files in a folder"
        raise BadInput(what, str(folder), "give a folder: --output records")
    if not folder.resolve().parent.is_dir():
        raise BadInput("no such folder", str(folder.parent), f"mkdir -p {folder.parent}")
    from roller_tvm.relax.database import NOTES, for_other_kernels, kernels_of
    from roller_tvm.relax.targets import make_target

    try:
        first = (folder / NOTES).read_text(encoding="utf-8").partition("\n")[0]
        other = json.loads(first).get("target", "")
    except (OSError, ValueError, AttributeError):  # none yet, or MetaSchedule's own; what is broken is told later
        return
    made = str(make_target(target))
    if other and (kernels_of(other) != kernels_of(made) if tunes else for_other_kernels(other, made)):
        contradict = for_other_kernels(other, made)  # else it says less than a command line makes of it
        remedy = "give that target, or tune into another folder" if contradict else "tune into another folder"
        raise RecordError(f"its records are for the target {other}, not for {made}", str(folder), remedy)


def _threads(target: dict[str, Any]) -> None:
    if target["kind"] == "llvm":
        use_threads(otherwise=target["num-cores"])  # constants are folded by running kernels


def parse_buckets(text: str) -> dict[str, list[int]] | list[int]:
    """Sizes of open extents.

    Examples
    --------
    >>> parse_buckets("1,8,32")
    [1, 8, 32]
    >>> parse_buckets("n:1,8 m:128")
    {'n': [1, 8], 'm': [128]}
    """
    named: dict[str, list[int]] = {}
    for word in text.split():
        name, _, sizes = word.rpartition(":")
        numbers = [s for s in sizes.split(",") if s]
        if not numbers or not all(s.isdigit() and int(s) for s in numbers) or name in named:
            raise UsageError(f"'{text}' is not a list of sizes", "--buckets", 'write "1,8,32", or "n:1,8 m:128"')
        named[name] = [int(s) for s in numbers]
    if "" in named and len(named) > 1:
        raise UsageError(f"'{text}' names some variables only", "--buckets", 'write "n:1,8 m:128"')
    return named.get("", named)
