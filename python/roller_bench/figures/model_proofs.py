"""Proofs of every kernel of whole models: the share that is proven, and the time that they take."""

from __future__ import annotations

import argparse
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from roller_bench import zoo
from roller_bench.figures import NETWORKS, append_lines, names, read_lines
from roller_bench.figures.dynamic import written
from roller_tvm.errors import RollerError, last_line
from roller_tvm.models.line import Request, model_line
from roller_tvm.schedules.proofs import PROVEN, REFUTED, UNDECIDED
from roller_tvm.session import Session
from roller_tvm.tvm_env.locate import usable_line

DONE = "done"  # a model's last line
OPEN, LAYERS = "open:", 2  # models of `dynamic`; layers, or blocks a stage, which are all kernels that more have
MODELS = (*zoo.WRITTEN, *zoo.OCR, *zoo.LIGHT)
#: Name of a target -> the target, in the words of both lines.
TARGETS = {"cpu": "llvm -mcpu=skylake-avx512 -num-cores=2", "sm_80": "cuda -arch=sm_80", "sm_90": "cuda -arch=sm_90"}


def prove_models(parser: argparse.ArgumentParser) -> None:
    """Prove the first plan of every operator of models on a line's environment; no GPU is needed.

        .venv/relax/bin/python -m roller_bench prove-models --out relax.jsonl
        .venv/relay/bin/python -m roller_bench prove-models --targets cpu --out relay.jsonl
        .venv/relax/bin/python -m roller_bench prove-models --models open:bert,open:gpt2 --out open.jsonl
        python -m roller_bench prove-models --summary relax.jsonl relay.jsonl

    Models of `dynamic` (``open:NAME``, two layers) are proven for all sizes that they take.
    One JSON line a kernel is appended to the output file; an interrupted run goes on there. Equal kernels count once
    a target. Times are CPU times of a proof.

    Exit codes: 0, or 1 if a kernel is refuted.
    """
    parser.add_argument("--models", default=",".join(MODELS), help="names, with commas; default %(default)s")
    parser.add_argument("--targets", default="cpu,sm_80", help=f"some of {', '.join(TARGETS)}; default %(default)s")
    parser.add_argument("--folder", type=Path, default=NETWORKS, help="folder for networks; default %(default)s")
    parser.add_argument("--out", type=Path, default=Path("proofs.jsonl"), help="output file; default %(default)s")
    parser.add_argument("--summary", type=Path, nargs="+", help="prove nothing; print the totals of these files")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    rows = [row for path in args.summary or [args.out] for row in read_lines(path)]
    if not args.summary:
        rows += append_lines(args.out, _told(args, rows))
    print(summary(rows))
    return int(any(row["answer"] == REFUTED for row in rows))


def _told(args: argparse.Namespace, rows: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield what is not among the rows yet; print what is not proven."""
    here = usable_line("proving").value
    done = {(row["model"], row["target"]) for row in rows if row["line"] == here and row["answer"] == DONE}
    known = {(row["target"], row["key"]) for row in rows if row["line"] == here}
    for target in names(args.targets):
        for model in names(args.models):
            if (model, target) in done:
                continue
            base = {"line": here, "model": model, "target": target}
            try:
                for row in _kernels(model, target, args.folder, known):
                    if row["answer"] != PROVEN:
                        print(f"{model} {target} {row['kernel']}: {row['answer']}: {row['why'][:200]}", flush=True)
                    yield {**base, **row}
            except RollerError as error:
                print(f"{model} for {target}: {error.one_line()}", flush=True)
                continue
            yield {**base, "answer": DONE, "key": ""}


def _kernels(model: str, target: str, folder: Path, known: set[tuple[str, str]]) -> Iterator[dict[str, Any]]:
    line = model_line(usable_line("proving"))
    path, shapes = _model(model, folder)
    session = Session(line, Request(TARGETS[target], shapes=shapes)).read(str(path))
    proofs = _relay if line.folder == "relay" else partial(_relax, checks=cache(partial(_checks, session)))
    for task in session.tasks():
        # A kernel of open extents is proven for the sizes that its model takes.
        key = f"{task.key} {model}" if model.startswith(OPEN) else str(task.key)
        if (target, key) in known:
            continue
        known.add((target, key))
        row = {"kernel": task.name, "key": key}
        try:
            proof = proofs(task, session)
        except Exception as error:  # of TVM, whose errors have no common base
            yield {**row, "answer": "no proof", "why": last_line(error)}
            continue
        if proof is None:
            yield {**row, "answer": "no plan", "why": ""}
            continue
        told = {"answer": proof.answer, "why": "; ".join(map(str, proof.open))}
        yield {**row, **told, "seconds": proof.seconds}


def _model(name: str, folder: Path) -> tuple[Path, Mapping[str, Any]]:
    if not name.startswith(OPEN):
        prepared = zoo.find_model(name, folder)
        return prepared.path, prepared.shapes
    folder.mkdir(parents=True, exist_ok=True)
    return written(name.removeprefix(OPEN), folder, LAYERS).path, {}


def _relay(task: Any, session: Any) -> Any:
    from roller_tvm.relay.candidates import make_candidates
    from roller_tvm.relay.proving import prove

    aim = session.aim
    found = next(make_candidates(task, aim.device, 4).schedules(), None)
    if found is None:
        return None
    schedule, args = task.search_task.compute_dag.apply_steps_from_state(found[1])
    return prove(schedule, args, aim.device, task.name)


def _checks(session: Any) -> Mapping[str, Sequence[str]]:
    from roller_tvm.relax.size_checks import kernel_checks

    return kernel_checks(session.job.model.mod)


def _relax(task: Any, session: Any, checks: Callable[[], Mapping[str, Sequence[str]]]) -> Any:
    from roller_tvm.codegen.tensorir_packing import constant_parameters
    from roller_tvm.relax.candidates import make_candidates
    from roller_tvm.relax.proving import prove
    from roller_tvm.tir.open_axes import is_open

    aim = session.aim
    if is_open(task.func):
        return _opened(task, session, checks())
    found = next(make_candidates(task.func, aim.device, 4, constant_parameters(task.func)).schedules(), None)
    return None if found is None else prove(found[1].mod["main"], task.func, aim.target, aim.device, task.name)


def _opened(task: Any, session: Any, checks: Mapping[str, Sequence[str]]) -> Any:
    """Return the proof of a function of open extents for the sizes that the model takes."""
    from roller_tvm.relax.open_schedule import OpenFunction
    from roller_tvm.relax.proving import prove
    from roller_tvm.relax.size_checks import likely_sizes

    aim, mod = session.aim, session.job.model.mod
    try:
        found, _ = next(OpenFunction(task.func, aim.device, task.name, likely=likely_sizes(mod)).schedules())
    except RollerError:
        return None
    return prove(found, task.func, aim.target, aim.device, task.name, checks.get(task.name, ()))


def summary(rows: Sequence[dict[str, Any]]) -> str:
    """Return shares and times, a line a TVM line and target.

    Examples
    --------
    >>> row = {"line": "relax", "target": "cpu", "model": "m", "key": "k", "answer": "proven", "seconds": 0.1}
    >>> print(summary([row]))
    relax cpu: 1 kernel of 1 model: 1 proven (100%); median 100 ms, most 0.10 s
    """
    lines = []
    for key in dict.fromkeys((row["line"], row["target"]) for row in rows):
        own = [row for row in rows if (row["line"], row["target"]) == key and row["answer"] != DONE]
        asked = [row for row in own if row["answer"] in (PROVEN, REFUTED, UNDECIDED)]
        if not asked:
            continue
        counts, models = Counter(row["answer"] for row in own), len({row["model"] for row in own})
        told = ", ".join(f"{count} {answer}" for answer, count in counts.most_common() if answer != PROVEN)
        times = [row["seconds"] for row in asked]
        share = f"{counts[PROVEN]} proven ({counts[PROVEN] / len(asked):.0%})"
        lines.append(
            f"{' '.join(key)}: {len(own)} kernel{'s' * (len(own) != 1)} of {models} model{'s' * (models != 1)}: "
            f"{', '.join(filter(None, (share, told)))}; "
            f"median {statistics.median(times) * 1e3:.0f} ms, most {max(times):.2f} s"
        )
    return "\n".join(lines)
