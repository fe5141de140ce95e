"""``roller-tvm compare`` on both of TVM's lines, operator by operator or model by model, for hours, resumable."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import subprocess
import time
from collections.abc import Sequence, Set
from pathlib import Path

from roller_bench.cases import Case, choose, load_suite
from roller_bench.comparison import make_report
from roller_bench.figures import LEFT, ROOT, names
from roller_bench.machine import commit
from roller_bench.results import Results
from roller_bench.run import TIMES
from roller_bench.tables import table_of_lines
from roller_bench.tuners import Tuner
from roller_tvm.errors import BadInput, MeasureError
from roller_tvm.tuning.lifeline import tie_to_parent

#: Tuners of each line, the cheap ones first; {peers} and {searches} are trials.
TUNERS = {
    "relay": "roller:1,roller:10,untuned,xgboost:{searches},autotvm:{searches},ansor:{peers}",
    "relax": "roller:1,roller:10,untuned,xgboost:{searches},metaschedule:{peers}",
}
#: Import that every searching tuner needs; without it each would fail on each operator, hours later.
LEARNS = "import xgboost"


def compare_lines(parser: argparse.ArgumentParser) -> None:
    """Run the comparison on both of TVM's lines, one operator after the other: all tuners of both lines, then the next.

        python -m roller_bench compare-lines comparison                   # hours; stop it at any time, start it again
        python -m roller_bench compare-lines comparison --seconds 3600    # start nothing after an hour
        python -m roller_bench compare-lines comparison --only softmax,norm --peers 64 --searches 16
        python -m roller_bench compare-lines comparison --status          # print the progress
        python -m roller_bench compare-lines benchmarks/compare           # the folder kept in the repository

    Runs ``roller-tvm compare`` in each line's environment (by default those of ``make venv``), with one folder per
    line. The same command resumes a stopped run; an interrupted tuner resumes with its own records and the seconds
    already spent. After each operator the reports are written again: both lines' tables to ``summary.txt`` and
    ``summary.md``, the searching tuners beside Roller to ``lines.md``. A line's ``results.jsonl`` alone is enough to
    resume elsewhere. Finished operators stay, and kernels of an unfinished one are rebuilt from their schedules; only a
    search under way is lost without ``work/``. Exit code 1 if something is left to do.
    """
    add_common(parser, peers=1000)
    parser.add_argument("--suite", default="cpu", metavar="NAME|FILE.csv", help="suite of operators; default cpu")
    parser.add_argument("--only", default="", metavar="WORDS", help="choose cases by id, or by words of their titles")
    parser.add_argument("--searches", type=int, default=200,
                        help="trials of AutoTVM and the XGBoost baseline; default 200")
    told = "repeat the work of these tuners, or 'times', except results of the commit checked out now"
    parser.add_argument("--again", default="", metavar="TUNERS", help=told)
    parser.add_argument("--status", action="store_true", help="run nothing; print the progress")
    parser.set_defaults(run=lambda args: _status(args) if args.status else _lines(args))


def add_common(parser: argparse.ArgumentParser, peers: int) -> None:
    """Add the arguments of a comparison on both lines, of operators or of whole models."""
    parser.add_argument("folder", type=Path, help="folder of the comparison, with a folder for each line")
    parser.add_argument("--lines", default="relay,relax", help="lines of TVM, with commas; default both")
    parser.add_argument("--peers", type=int, default=peers,
                        help="trials of Ansor and MetaSchedule; default %(default)s")
    told = "Python of the {line} line; default .venv/{line}/bin/python"
    for line in ("relay", "relax"):
        python = ROOT / f".venv/{line}/bin/python"
        parser.add_argument(f"--{line}", type=Path, default=python, help=told.format(line=line))
    parser.add_argument("--seconds", type=float, default=math.inf, help="start no job after this many seconds")
    parser.add_argument("--retry", action="store_true", help="repeat jobs that crashed, failed or timed out")
    told = "allow results of other machines, each operator or model from one; the report names them"
    parser.add_argument("--mix-machines", action="store_true", help=told)
    told = "longest wait for an idle machine, and before timing for the CPU's full pace; default 120"
    parser.add_argument("--quiet", type=float, default=120.0, metavar="SECONDS", help=told)


def common_words(args: argparse.Namespace, again: str, seconds: float) -> list[str]:
    """Return the arguments that ``roller-tvm compare`` takes from either figure."""
    words = ["--quiet", f"{args.quiet:g}", *(["--retry"] if args.retry else []), *(["--again", again] if again else [])]
    words += ["--mix-machines"] if args.mix_machines else []
    return [*words, *(["--seconds", f"{seconds:.0f}"] if math.isfinite(seconds) else [])]


def _lines(args: argparse.Namespace) -> int:
    """Compare operator by operator, line by line; return the exit code.

    Raises
    ------
    MeasureError
        A line's environment lacks a package that its tuners need.
    BadInput
        A tuner in `--again` is unknown.
    """
    words = {word.strip() for word in args.again.split(",") if word.strip()}
    known = {label for line in args.lines.split(",") for label in (*labels(args, line), *kept(args, line))} | {TIMES}
    if unknown := words - known - {label.split(":")[0] for label in known}:
        raise BadInput(f"no tuner {', '.join(sorted(unknown))}", "--again", f"choose from {', '.join(sorted(known))}")
    for line in args.lines.split(","):
        can_learn(str(getattr(args, line)))
    until, left, lines = time.monotonic() + args.seconds, False, args.lines.split(",")
    for number, case in enumerate(cases := choose(load_suite(args.suite), args.only), 1):
        anew = {line: again(args, line, words, case) for line in lines}
        todo = [ln for ln in lines if args.retry or anew[ln] or not finished(args, ln, case)]
        print(f"-- {number}/{len(cases)} {case.id}: {case.title}{'' if todo else ' (done)'}", flush=True)
        if not todo:
            continue
        for line in todo:
            seconds = until - time.monotonic()
            if seconds <= 0:
                return LEFT
            asked = ["--only", case.id, *common_words(args, anew[line], seconds)]
            left |= _call_lines(args, line, asked) != 0
        for line in lines:
            _call_lines(args, line, ["--report"], quiet=True)
        write_summary(args.folder)
        write_both(args)
    return LEFT if left else 0


def write_both(args: argparse.Namespace) -> None:
    """Write both lines in one table, for a README."""
    cases, reports = load_suite(args.suite), {}
    for line in TUNERS:
        results = Results(args.folder / line / "results.jsonl")
        reports[line] = make_report(results, cases, tuple(map(Tuner.parse, labels(args, line))), "")
    if table := table_of_lines(reports):
        (args.folder / "lines.md").write_text(table)


def write_summary(folder: Path) -> None:
    """Write both lines' tables to one file, including a line that was not asked for."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("table.txt", "table.md"):
        tables = [table.read_text() for ln in TUNERS if (table := folder / ln / name).exists()]
        (folder / name.replace("table", "summary")).write_text("\n".join(tables))


def can_learn(python: str) -> None:
    """Check that an environment has the packages that its tuners need.

    Raises
    ------
    MeasureError
        A package is missing, or the interpreter does not exist.
    """
    try:
        done = subprocess.run([python, "-c", LEARNS], capture_output=True, text=True, check=False)
    except OSError as error:
        told = f"that interpreter does not start: {error.strerror}"
        raise MeasureError(told, python, "run 'make venv', or give another with --relay, --relax", "worker") from error
    if done.returncode:
        said = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        remedy = f"where it is missing: {python} -m pip install --no-deps xgboost scipy"
        raise MeasureError(f"its tuners cannot learn: {said}", python, remedy, "worker")


def finished(args: argparse.Namespace, line: str, case: Case) -> bool:
    """Return True if a line has nothing left to do on a case, so that not even TVM need be imported."""
    return Results(args.folder / line / "results.jsonl").finished(case.digest, labels(args, line))


def kept(args: argparse.Namespace, line: str) -> set[str]:
    """Return the labels with results on a line."""
    return {label for _, label in Results(args.folder / line / "results.jsonl").tuned}


def again(args: argparse.Namespace, line: str, words: Set[str], case: Case) -> str:
    """Return the tuners, with commas, whose results of a case must be cancelled; results of this very commit stay."""
    results, here = Results(args.folder / line / "results.jsonl"), commit()
    found = [TIMES] if TIMES in words and case.digest in results.timed else []
    for tuned in results.tuned_of(case.digest):
        of = results.environments.get(tuned.environment, {}).get("commit", "")
        same = of == here != "" and not here.endswith("+")  # with '+' it may be another state of the same commit
        if words & {tuned.tuner, tuned.tuner.split(":")[0]} and not same:
            found.append(tuned.tuner)
    return ",".join(found)


def labels(args: argparse.Namespace, line: str) -> list[str]:
    """Return a line's tuners with their trials."""
    return TUNERS[line].format(peers=args.peers, searches=args.searches).split(",")


def _call_lines(args: argparse.Namespace, line: str, words: Sequence[str], quiet: bool = False) -> int:
    """Run ``roller-tvm compare`` of the suite in a line's environment."""
    asked = ["--suite", args.suite, "--tuners", ",".join(labels(args, line)), *words]
    return run_compare(getattr(args, line), line, args.folder, asked, quiet)


def run_compare(python: Path, line: str, folder: Path, words: Sequence[str], quiet: bool = False) -> int:
    """Run ``roller-tvm compare`` by an interpreter, into a line's folder; it dies with this process."""
    command = [str(python), "-m", "roller_tvm.cli", "compare", "--line", line, "--output", str(folder / line), *words]
    said = subprocess.DEVNULL
    parent = os.getpid()
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'python'}"}
    process = subprocess.Popen(
        command,
        stdout=said,
        stderr=said if quiet else None,
        env=env,
        preexec_fn=lambda: tie_to_parent(parent),  # noqa: PLW1509 - no thread is running
    )
    try:
        return process.wait()
    except KeyboardInterrupt:
        process.terminate()  # what a shell put in the background ignores SIGINT
        with contextlib.suppress(KeyboardInterrupt):
            process.wait(30)
        raise
    finally:
        process.kill()


def _status(args: argparse.Namespace) -> int:
    """Print one row per operator and line (done, or the tuners' progress), then totals; return the exit code."""
    cases, lines = choose(load_suite(args.suite), args.only), args.lines.split(",")
    known = {line: Results(args.folder / line / "results.jsonl") for line in lines}
    done = {line: [c for c in cases if known[line].finished(c.digest, labels(args, line))] for line in lines}
    for case in cases:
        for line in lines:
            told = ["done"] if case in done[line] else _so_far(args, line, case, known[line])
            print(f"{case.id if line == lines[0] else '':<18} {line:<6} {', '.join(told) or 'to do'}")
    print(", ".join(f"{line}: {len(done[line])} of {len(cases)} done" for line in lines))
    return 0 if all(len(done[line]) == len(cases) for line in lines) else LEFT


def _so_far(args: argparse.Namespace, line: str, case: Case, results: Results) -> list[str]:
    """Return each tuner's progress on a case as text: its seconds, or the trials so far of a stopped one."""
    told, todo = [], 0
    for label in labels(args, line):
        name, _, trials = label.partition(":")
        if tuned := results.tuned.get((case.digest, label)):
            told.append(f"{label} {tuned.status}{f' {tuned.seconds:.0f} s' if tuned.seconds > 0 else ''}")
            continue
        folder = args.folder / line / "work" / f"{case.digest}.{name}"
        curve = folder / trials / "curve.jsonl" if line == "relax" else folder / f"curve.{trials}.jsonl"
        if points := curve.read_text().splitlines() if curve.exists() else []:
            seconds, tried = json.loads(points[-1])[:2]
            told.append(f"{label} {tried} trials so far {seconds:.0f} s")
        else:
            todo += 1
    if todo and told:
        told.append(f"{todo} to do")
    if all((case.digest, label) in results.tuned for label in labels(args, line)):
        told.append("kernels to be timed")
    return told


# -- whole models --

MODELS = "bert_base,mobilenet_v2,detection,direction,resnet50,squeezenet"
OTHERS = "roller:1,roller:10,untuned,onnxruntime,torch,torchcompile"
SEARCH = {"relay": "ansor", "relax": "metaschedule"}


def compare_models(parser: argparse.ArgumentParser) -> None:
    """Compare whole models on both of TVM's lines: Roller, Ansor or MetaSchedule, untuned TVM, onnxruntime, PyTorch.

        python -m roller_bench compare-models whole                      # an hour a model; stop it at any time
        python -m roller_bench compare-models whole --models squeezenet,net.onnx --peers 200
        python -m roller_bench compare-models benchmarks/models          # the folder kept in the repository

    Runs ``roller-tvm compare --models`` in each line's environment (by default those of ``make venv``), model by model.
    The same command resumes: finished models stay, also in the reports if other models are asked for. PyTorch takes
    part if ``pip install torch`` and ``pip install --no-deps onnx2torch`` put it into an environment; else its rows say
    that it is missing. Exit code 1 if something is left to do.
    """
    add_common(parser, peers=500)  # for all operators of a model
    parser.add_argument("--models", default=MODELS, metavar="NAME,FILE.onnx",
                        help="models, with commas; default %(default)s")
    parser.add_argument("--again", default="", metavar="TUNERS", help="repeat the work of these tuners, or 'times'")
    parser.set_defaults(run=_models)


def _models(args: argparse.Namespace) -> int:
    """Compare model by model, line by line; return the exit code."""
    lines, models = names(args.lines), names(args.models)
    for line in lines:
        can_learn(str(getattr(args, line)))
    every = ",".join(dict.fromkeys([*names(MODELS), *models]))  # reports leave out those of which there is nothing
    until, left = time.monotonic() + args.seconds, False
    for number, model in enumerate(models, 1):
        print(f"-- {number}/{len(models)} {model}", flush=True)
        for line in lines:
            if (seconds := until - time.monotonic()) <= 0:
                return LEFT
            left |= _call_models(args, line, model, common_words(args, args.again, seconds)) != 0
        for line in lines:
            _call_models(args, line, every, ["--report"], quiet=True)
        write_summary(args.folder)
    return LEFT if left else 0


def _call_models(args: argparse.Namespace, line: str, models: str, words: Sequence[str], quiet: bool = False) -> int:
    """Run ``roller-tvm compare --models`` in a line's environment."""
    tuners = f"{OTHERS},{SEARCH[line]}:{args.peers}"
    return run_compare(getattr(args, line), line, args.folder, ["--models", models, "--tuners", tuners, *words], quiet)
