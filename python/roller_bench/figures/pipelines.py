"""Image pipelines beside the schedules of Halide's autoschedulers and a plain build of TVM's."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from roller_bench.figures import LEFT, append_lines, names, read_lines
from roller_bench.image_pipelines import PIPELINES, Numpy, Te
from roller_bench.latency import OWN, medians_in_turns
from roller_bench.machine import cpu_kind
from roller_bench.peers_halide import AUTOSCHEDULERS
from roller_bench.running import Arrays, Runnable, Running, keep_inputs, relative_error
from roller_tvm.children import environment
from roller_tvm.device import cpu_device, default_cpu_target
from roller_tvm.errors import UsageError, WrongAnswer
from roller_tvm.stats import geomean
from roller_tvm.tvm_env import line
from roller_tvm.tvm_env.pin import pin_calling_thread
from roller_tvm.tvm_env.threads import set_threads

#: Seconds in which the implementations of a pipeline take turns.
SECONDS = 3.0
OURS, PLAIN = "ours", "TVM"
INPUTS = "inputs.npz"
#: Of the reference's largest magnitude.
TOLERANCE = 1e-4


def pipelines(parser: argparse.ArgumentParser) -> None:
    """Time five image pipelines, each written once: ours, TVM's plain build, Halide's autoschedulers.

        pip install halide                              # into an environment of its own
        python -m roller_bench pipelines --halide OTHER/bin/python
        python -m roller_bench pipelines --only blur,harris --size 480x640 --again

    Either line. Each implementation runs in a process of its own, in turns; medians of the rounds. Answers are compared
    with numpy's. An autoscheduler that fails is named and left out.
    Prints each pipeline, with the kind of CPU, then geometric means and extremes; the same command goes on.
    """
    parser.add_argument("--halide", metavar="PYTHON", help="a Python with the package halide")
    parser.add_argument("--folder", type=Path, default=Path("build/pipelines"), help="folder; default %(default)s")
    parser.add_argument("--only", type=names, default=list(PIPELINES), help="only these, with commas")
    parser.add_argument("--size", default="1500x2000", help="rows and columns of a result; default %(default)s")
    parser.add_argument("--threads", type=int, help="threads of each; default: the cores")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no new pipeline after this time")
    parser.add_argument("--again", action="store_true", help="forget earlier times of these pipelines")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    begun, size = time.monotonic(), _size(args.size)
    if stray := [name for name in args.only if name not in PIPELINES]:
        raise UsageError(f"no pipeline '{stray[0]}'", "--only", f"give some of {', '.join(PIPELINES)}")
    if args.halide is None:
        print("Halide is left out: pip install halide into an environment, then give --halide ITS-PYTHON",
              file=sys.stderr)  # fmt: skip
    elif not _has_halide(args.halide):
        raise UsageError(f"{args.halide} cannot import halide", "--halide", "pip install halide there")
    device, file = cpu_device(), args.folder / "times.jsonl"
    threads = args.threads or device.units
    if threads < 1:
        raise UsageError(f"there is at least 1 thread (got {threads})", "--threads", "leave it out")
    args.folder.mkdir(parents=True, exist_ok=True)
    about = {"cpu": cpu_kind(device), "size": list(size),
             "line": line(), "halide": args.halide is not None, "threads": threads}  # fmt: skip
    known = {row["pipeline"]: row for row in read_lines(file) if all(row.get(key) == v for key, v in about.items())}
    left = [name for name in args.only if args.again or name not in known]

    def timed() -> Iterator[dict[str, Any]]:
        for name in left:
            if time.monotonic() - begun < args.seconds:
                yield {"pipeline": name, **about, **_times(name, size, args.folder, args.halide, threads)}

    for row in append_lines(file, timed()):
        known[row["pipeline"]] = row
    print(table([known[name] for name in args.only if name in known]))
    print(f"{about['cpu']}; {threads} threads; {about['line']} line; {args.size}")
    return LEFT if any(name not in known for name in args.only) else 0


def _has_halide(python: str) -> bool:
    try:
        return subprocess.run([python, "-c", "import halide"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def _size(text: str) -> tuple[int, int]:
    try:
        rows, columns = map(int, text.split("x"))
    except ValueError:
        raise UsageError(f"a size is ROWSxCOLUMNS (got '{text}')", "--size", "for instance 1500x2000") from None
    if min(rows, columns) < 1:
        raise UsageError(f"a size is at least 1x1 (got '{text}')", "--size", "for instance 1500x2000")
    return rows, columns


def _times(name: str, size: tuple[int, int], folder: Path, halide: str | None, threads: int) -> dict[str, Any]:
    """Build a pipeline by each way and return the median seconds, Roller's prediction, and the schedulers that fail."""
    pipeline, own = PIPELINES[name], folder / f"{name}-{size[0]}x{size[1]}-{threads}-{line()}"
    own.mkdir(parents=True, exist_ok=True)
    picture = pipeline.picture(*size)
    expected = pipeline.build(Numpy(), picture, picture.shape)
    keep_inputs({"picture": picture}, own / INPUTS)
    predicted, plan = build(name, picture.shape, own, threads)
    made = partial(Runnable, inputs=str((own / INPUTS).resolve()), threads=threads)
    asked = {way: made(f"{__name__}:open_kernel", str((own / f"{way}.so").resolve())) for way in (OURS, PLAIN)}
    (own / "result.json").write_text(json.dumps(expected.shape))
    failed: dict[str, str] = {}
    for scheduler in AUTOSCHEDULERS if halide else ():
        file = own / f"{scheduler}.json"
        told = {"pipeline": name, "autoscheduler": scheduler, "result": expected.shape}
        file.write_text(json.dumps(told))
        if why := _refusal(str(halide), file, own / INPUTS, threads):
            failed[scheduler] = why
        else:
            interpreter = shutil.which(str(halide)) or str(halide)
            asked[scheduler] = made("roller_bench.peers_halide:open_halide", str(file.resolve()), python=interpreter)
    seconds, outputs = medians_in_turns(asked, SECONDS)
    for way, found in outputs.items():
        if not (error := relative_error(found, [expected])) <= TOLERANCE:
            raise WrongAnswer(f"{way} is wrong by {error:.1e} of the largest element", name)
    return {"seconds": seconds, "predicted": predicted, "plan": plan, "failed": failed}


def _refusal(python: str, file: Path, inputs: Path, threads: int) -> str:
    """Return why a pipeline cannot be run by an autoscheduler of Halide, or ''."""
    command = [python, "-m", "roller_bench.peers_halide", str(file), str(inputs), str(threads)]
    env = environment() | {"PYTHONPATH": ":".join(OWN)}
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=300)
    except subprocess.TimeoutExpired:
        return "not done after 300 s"
    lines = done.stderr.strip().splitlines()
    return "" if not done.returncode else lines[-1] if lines else f"ended by signal {-done.returncode}"


def build(name: str, shape: tuple[int, ...], folder: Path, threads: int) -> tuple[float, str]:
    """Build a pipeline with Roller's best plan, and as TVM does; return the predicted seconds and the plan."""
    lang = Te()
    given = lang.picture(shape)
    tensors = [given, PIPELINES[name].build(lang, given, shape)]
    set_threads(threads)
    ranked = (_build_relax if line() == "relax" else _build_relay)(tensors, folder, threads)
    return ranked.seconds, ranked.plan.words()


def _build_relax(tensors: Sequence[Any], folder: Path, threads: int) -> Any:
    import tvm
    from tvm import te

    from roller_tvm.relax.candidates import make_candidates
    from roller_tvm.relax.devices import device_of
    from roller_tvm.relax.rewrites import cpu_code
    from roller_tvm.relax.targets import make_target

    target = make_target(default_cpu_target(threads=threads))
    func = te.create_prim_func(tensors, index_dtype_override="int64")
    candidate, schedule = next(make_candidates(func, device_of(None, target), 1).schedules())
    tvm.compile(cpu_code()(schedule.mod), target).export_library(str(folder / f"{OURS}.so"))
    tvm.compile(tvm.IRModule({"main": func}), target).export_library(str(folder / f"{PLAIN}.so"))
    return candidate.ranked


def _build_relay(tensors: Sequence[Any], folder: Path, threads: int) -> Any:
    import tvm
    from tvm import te

    from roller_tvm.codegen.apply_te import TeProgram, apply_steps_te
    from roller_tvm.device.from_target import device_for_target
    from roller_tvm.planner import construct
    from roller_tvm.planner.lower import lower
    from roller_tvm.relay.rewrites import cpu_code
    from roller_tvm.roller.features import Features
    from roller_tvm.te import read_te

    target = default_cpu_target(threads=threads)
    device, reading = device_for_target(target), read_te(tensors)
    best = construct(reading.expression, device, 1, Features.of_te(device)).best
    schedule, args = apply_steps_te(TeProgram.of_reading(reading, tensors), lower(best.plan))
    with cpu_code():
        tvm.build(schedule, args, target, name="main").export_library(str(folder / f"{OURS}.so"))
    plain = te.create_schedule(tensors[-1].op)
    tvm.build(plain, tensors, target, name="main").export_library(str(folder / f"{PLAIN}.so"))
    return best


def open_kernel(file: Path, inputs: Arrays, threads: int) -> Running:
    """Open a pipeline's kernel; its picture is set once, and the calling thread is pinned."""
    import tvm

    set_threads(threads)
    (picture,) = inputs.values()
    result = np.empty(json.loads(file.with_name("result.json").read_text()), np.float32)
    module = tvm.runtime.load_module(str(file))
    kernel, array = module["main"], tvm.runtime.tensor if line() == "relax" else tvm.nd.array
    arguments = array(picture), array(result)
    kernel(*arguments)
    pin_calling_thread()

    def outputs() -> list[np.ndarray]:
        kernel(*arguments)
        return [arguments[1].numpy()]

    return Running(lambda: kernel(*arguments), outputs)


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a line a pipeline, and geometric means of how many times as long each other implementation takes.

    Examples
    --------
    >>> row = {"pipeline": "blur", "seconds": {"ours": 2e-3, "Adams2019": 3e-3}, "predicted": 4e-3, "failed": {}}
    >>> print(table([row]))
    blur: ours 2.00 ms (predicted 4.00), Adams2019 3.00 ms
    Adams2019: 1 pipelines, 1.50 of ours at the geometric mean, least 1.50
    Halide, the faster one: 1 pipelines, 1.50 of ours at the geometric mean, least 1.50
    """
    lines: list[str] = []
    ratios: dict[str, list[float]] = {}
    for row in rows:
        seconds = row["seconds"]
        told = [f"{way} {s * 1e3:.2f} ms" for way, s in seconds.items()]
        told[0] += f" (predicted {row['predicted'] * 1e3:.2f})"
        lines.append(f"{row['pipeline']}: {', '.join([*told, *(f'{k}: {v}' for k, v in row['failed'].items())])}")
        ours = seconds[OURS]
        for way, taken in seconds.items():
            if way != OURS:
                ratios.setdefault(way, []).append(taken / ours)
        if halide := [seconds[way] for way in AUTOSCHEDULERS if way in seconds]:
            ratios.setdefault("Halide, the faster one", []).append(min(halide) / ours)
    for way, found in ratios.items():
        lines.append(f"{way}: {len(found)} pipelines, {geomean(found):.2f} of ours at the geometric mean, "
                     f"least {min(found):.2f}")  # fmt: skip
    return "\n".join(lines)
