"""The share of real models that can be planned (Relay line)."""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from roller_bench.figures import append_lines, read_lines
from roller_bench.relay_models import testing_model
from roller_bench.running import relative_error
from roller_bench.zoo import LIGHT, OCR, TESTING_NETWORKS, Prepared, find_model
from roller_tvm.children import environment, python
from roller_tvm.errors import BadInput
from roller_tvm.planner.explain.words import table as aligned


@dataclass(frozen=True)
class Subject:
    """A model as it is tuned, with random inputs; ``onnx`` is the file that onnxruntime can run too."""

    mod: Any
    params: Any
    inputs: dict[str, np.ndarray]
    onnx: Path | None = None


def subjects() -> dict[str, Callable[[Path], Subject]]:
    """Return the functions that make each model, by name; the folder is for files."""
    makers: dict[str, Callable[[Path], Subject]] = {}
    for name in TESTING_NETWORKS:
        makers[name] = partial(lambda name, _folder: _testing(name), name)
    makers["resnet-18 float16"] = lambda _folder: _half(_testing("resnet-18"))
    makers["mobilenet float16"] = lambda _folder: _half(_testing("mobilenet"))
    makers["resnet-18 int8"] = lambda _folder: _quantized(_testing("resnet-18"))
    files = {f"light {name}": name for name in LIGHT} | {f"PP-OCR {part}": part for part in OCR}
    for title, name in (files | {"MobileNet v2": "mobilenet_v2", "BERT-base": "bert_base"}).items():
        makers[title] = partial(lambda name, folder: _onnx(find_model(name, folder)), name)
    return makers


def _testing(name: str) -> Subject:
    return Subject(*testing_model(name))


def _half(subject: Subject) -> Subject:
    """Return the same network in float16, as far as Relay's mixed precision converts it."""
    import tvm
    from tvm import relay
    from tvm.relay.build_module import bind_params_by_name

    mod = tvm.IRModule.from_expr(bind_params_by_name(subject.mod["main"], subject.params))
    passes = tvm.transform.Sequential([
        relay.transform.InferType(), relay.transform.FoldConstant(), relay.transform.ToMixedPrecision("float16"),
        relay.transform.EliminateCommonSubexpr(), relay.transform.FoldConstant(),
    ])  # fmt: skip
    with tvm.transform.PassContext(opt_level=3):
        return Subject(passes(mod), None, subject.inputs)


def _quantized(subject: Subject) -> Subject:
    """Return the same network in int8 with int32 accumulation, by Relay's own quantization."""
    from tvm import relay

    with relay.quantize.qconfig(calibrate_mode="global_scale", global_scale=8.0):
        mod = relay.quantize.quantize(subject.mod, params=subject.params)
    return Subject(mod, None, subject.inputs)


def _onnx(model: Prepared) -> Subject:
    from roller_tvm.relay.importers import load_model

    loaded = load_model(model.path, shapes=model.shapes)
    return Subject(loaded.mod, loaded.params, model.inputs, model.path)


#: Plans made of each task; the States of all of them are applied.
TOP = 2
#: Largest error of a whole model, as a share of its largest output, by the narrowest type that it computes in.
TOLERANCE = {"float32": 1e-3, "float16": 3e-2}
#: What --table claims (issue 3).
LEAST_FLOPS, LEAST_TASKS = 0.98, 0.90


def planned(subject: Subject, target: str) -> dict[str, Any]:
    """Plan every task, building nothing; return the row."""
    from roller_tvm.relay.candidates import make_candidates
    from roller_tvm.relay.tasks import extract_tasks, find_device, make_target

    made = make_target(target)
    device = find_device(made, True)
    tasks = extract_tasks(subject.mod, subject.params, made, device)
    rows, started = [], time.perf_counter()
    for task in tasks:
        found = make_candidates(task, device, TOP)
        found.applied()
        found.applied()
        found.applied()
        failed = f"{len(found.failures)} plans not applied: {found.failures[0]}" if found.failures else ""
        rows.append((task.name, task.weight, max(found.flops, 0.0), found.reason or failed))
    return summarised(rows, list(tasks.left)) | {"plan_s": round(time.perf_counter() - started, 2)}


def verified(subject: Subject, target: str) -> dict[str, Any]:
    """Plan every task and compare its kernel, then compare the whole model; return the row."""
    from roller_tvm.relay import build, tune

    with tempfile.TemporaryDirectory() as folder:
        records = Path(folder) / "records.json"
        result = tune(subject.mod, subject.params, target, records, trials=0)
        rows = [(t.task.name, t.task.weight, t.candidates.flops or t.task.flops, t.reason) for t in result.tasks]
        left = [n for note in result.notes for n in _left(note)]
        row = summarised(rows, left) | {"failures": result.failures, "tune_s": round(result.seconds["total"], 1)}
        ours = run(build(subject.mod, subject.params, target, records), subject)
    own = run(build(subject.mod, subject.params, target, schedules="tvm"), subject)
    kinds = str(subject.mod)
    allowed = TOLERANCE["float16" if "float16" in kinds else "float32"]
    row |= {"difference": difference(ours, own), "allowed": allowed, "spread": min(map(_spread, own))}
    if subject.onnx is not None:
        import onnxruntime

        session = onnxruntime.InferenceSession(str(subject.onnx), providers=["CPUExecutionProvider"])
        row["onnxruntime"] = difference(ours, session.run(None, subject.inputs))
    row["right"] = max(row["difference"], row.get("onnxruntime", 0.0)) <= allowed
    return row


def _left(note: str) -> list[str]:
    head, tail = "TVM makes no task of ", ": TVM's own schedule"
    return note.removeprefix(head).removesuffix(tail).split(", ") if note.startswith(head) else []


def summarised(tasks: list[tuple[str, int, float, str]], left: list[str]) -> dict[str, Any]:
    """Return counts and reasons from (name, weight, FLOPs, reason or '') of each task."""
    reasons: dict[str, list[str]] = {}
    for name, _, _, reason in tasks:
        if reason:
            reasons.setdefault(reason, []).append(name)
    if left:
        reasons["TVM makes no task of it (not TE: a library call, an extern operation, or a dynamic shape)"] = left
    return {
        "tasks": len(tasks) + len(left),
        "planned": sum(not reason for *_, reason in tasks),
        "flops": sum(w * f for _, w, f, _ in tasks),
        "flops_planned": sum(w * f for _, w, f, reason in tasks if not reason),
        "reasons": reasons,
    }


def run(library: Any, subject: Subject) -> list[np.ndarray]:
    """Return all outputs of a built model."""
    import tvm
    from tvm.contrib import graph_executor

    from roller_tvm.relay.package import set_inputs

    module = graph_executor.GraphModule(library["default"](tvm.cpu()))
    set_inputs(module, subject.inputs)
    module.run()
    return [module.get_output(n).numpy() for n in range(module.get_num_outputs())]


def difference(got: list[np.ndarray], expected: list[np.ndarray]) -> float:
    """Return the largest error over all outputs, relative to the output's largest value; inf if not finite."""
    finite = all(np.isfinite(array).all() for array in (*got, *expected))
    return relative_error(*([a.astype(np.float64) for a in side] for side in (got, expected))) if finite else math.inf


def _spread(output: np.ndarray) -> float:
    """Return the spread of an output's values; if they are all alike, a comparison says little."""
    values = output.astype(np.float64)
    return float(values.std() / max(np.abs(values).max(initial=0.0), 1e-30)) if values.size > 1 else 1.0


def one(name: str, target: str, verify: bool) -> dict[str, Any]:
    """Return the row of one model; an error is a part of the row."""
    base = {"model": name, "target": target, "verify": verify}
    folder = Path(tempfile.gettempdir()) / "roller-tvm-coverage"
    folder.mkdir(exist_ok=True)
    try:
        subject = subjects()[name](folder)
        return base | (verified if verify else planned)(subject, target)
    except Exception as error:  # of TVM, onnx or us: the table counts it
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
        return base | {"error": f"{type(error).__name__}: {lines[0][:300]}"}


def table(rows: list[dict[str, Any]]) -> str:
    """Return one table per target and mode, with sums below."""
    parts = []
    kinds = dict.fromkeys((r["target"], r["verify"]) for r in rows)
    for target, verify in kinds:
        mine = [r for r in rows if (r["target"], r["verify"]) == (target, verify)]
        done = [r for r in mine if "error" not in r]
        lines = [f"{target}: tasks planned" + (", every kernel and the whole model compared" if verify else "")]
        head = ["model", "tasks", "planned", "of GFLOPs", "planned", *(["error", "to ORT"] if verify else [])]
        cells = [head]
        for r in mine:
            if "error" in r:
                lines.append(f"{r['model']}: {r['error']}")
                continue
            cells.append([r["model"], *_counts([r])])
            if verify:
                ort = f"{r['onnxruntime']:.1e}" if "onnxruntime" in r else "-"
                cells[-1] += [f"{r['difference']:.1e}", ort, *([] if r["right"] else ["WRONG"])]
        lines += aligned([*cells, *([["all", *_counts(done)]] if done else [])], indent="")
        if done:
            share = sum(r["planned"] for r in done) / sum(r["tasks"] for r in done)
            lines.append(f"{share:.1%} of the tasks (at least {LEAST_TASKS:.0%}, and {LEAST_FLOPS:.0%} of the FLOPs, "
                         "are wanted)")  # fmt: skip
        reasons: Counter[str] = Counter()
        examples: dict[str, str] = {}
        for r in done:
            for reason, names in r["reasons"].items():
                reasons[reason] += len(names)
                examples.setdefault(reason, names[0])
        lines += ["fallen back:"] if reasons else []
        lines += [f"  {n:>4} {reason} (such as {examples[reason]})" for reason, n in reasons.most_common()]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _counts(rows: list[dict[str, Any]]) -> list[str]:
    tasks, planned, flops, ours = (sum(r[key] for r in rows) for key in ("tasks", "planned", "flops", "flops_planned"))
    return [str(tasks), str(planned), f"{flops / 1e9:.3f}", f"{ours / flops if flops else 1.0:.2%}"]


def told(row: dict[str, Any]) -> str:
    text = f"{row['planned']} of {row['tasks']} planned"
    return text + (f", error {row['difference']:.1e}, {'right' if row['right'] else 'WRONG'}" if row["verify"] else "")


def in_process(name: str, target: str, verify: bool, limit: float) -> dict[str, Any]:
    """Return the row of one model from a process of its own: a crash there ends nothing here."""
    command = python("-m", "roller_bench", "coverage", name, "--child", "--out", "-", "--target", target)
    base = {"model": name, "target": target, "verify": verify}
    try:
        words = command + ["--verify"] * verify
        done = subprocess.run(words, stdout=subprocess.PIPE, text=True, timeout=limit, env=environment())
        return dict(json.loads(done.stdout.strip().splitlines()[-1]))
    except subprocess.TimeoutExpired:
        return base | {"error": f"took longer than {limit:.0f} s"}
    except (IndexError, ValueError):
        return base | {"error": f"its process ended with {done.returncode}"}


def coverage(parser: argparse.ArgumentParser) -> None:
    """Measure the share of real models that can be planned: every task of every model, planned and its State applied.

        python -m roller_bench coverage --out benchmarks/coverage.jsonl                              # plan for this CPU
        python -m roller_bench coverage --out benchmarks/coverage.jsonl --target "cuda -arch=sm_80"  # plan for a GPU
        python -m roller_bench coverage --out benchmarks/coverage.jsonl --verify                     # and compare
        python -m roller_bench coverage --out benchmarks/coverage.jsonl --table

    With --verify each kernel is compared with TVM's own schedule by the workers of ``tune(trials=0)``. The whole model,
    built with the records, is compared with TVM's default build and (ONNX) with onnxruntime on random input. One JSON
    line per model, target and mode is appended to the file and is not repeated; each model runs in a process of its
    own.
    """
    parser.add_argument("models", nargs="*", help="names of models; default all")
    parser.add_argument("--out", type=Path, required=True, help="file of results, read and appended to")
    parser.add_argument("--target", default="", help="TVM target; default this CPU")
    parser.add_argument("--verify", action="store_true", help="also build, run and compare (CPU)")
    parser.add_argument("--table", action="store_true", help="only print the table of the results in the file")
    parser.add_argument("--again", action="store_true", help="repeat models with results in the file")
    parser.add_argument("--limit", type=float, default=3600.0, help="time limit per model in seconds; default 3600")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    if args.child:
        print(json.dumps(one(args.models[0], args.target, args.verify)))
        return 0
    # The last row of each model, target and mode counts.
    rows = list({(r["target"], r["verify"], r["model"]): r for r in read_lines(args.out)}.values())
    if args.table:
        print(table(rows), end="")
        return 0
    from roller_tvm.device import default_cpu_target

    target = args.target or default_cpu_target()
    chosen = args.models or list(subjects())
    if unknown := set(chosen) - set(subjects()):
        raise BadInput("no such model", ", ".join(sorted(unknown)), f"choose from {', '.join(subjects())}")
    done = {(r["model"], r["target"], r["verify"]) for r in rows if "error" not in r}
    missing = [name for name in chosen if (name, target, args.verify) not in done or args.again]
    for row in append_lines(args.out, (in_process(name, target, args.verify, args.limit) for name in missing)):
        print(f"{row['model']}: {row.get('error') or told(row)}", flush=True)
    return 0


