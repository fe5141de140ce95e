#!/usr/bin/env python3
"""Run whole models on this CPU with the TVM that pip installs: Roller, untuned TVM and onnxruntime, side by side.

    python python/end_to_end_relax.py                          # nine light networks, two PP-OCR models
    python python/end_to_end_relax.py --models resnet50,bert_base --trials 0
    python python/end_to_end_relax.py --measure --rounds 5     # only measure the existing libraries, more rounds

Each model is imported, tuned (unless the folder has records of its operators already), built with the pipeline
"roller", compared with onnxruntime, and timed in turns with it, each in a process of its own. Results are kept in the
folder, so an interrupted run resumes. `--trials 0` builds without tuning: the best plan by prediction.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from coverage_models import LIGHT  # noqa: E402
from side_by_side import Variant, compare, measure, onnx_model, onnxruntime_variant, timed, tvm_variant  # noqa: E402

from roller_tvm.compare.relax.whole import roller_build, untuned_build  # noqa: E402
from roller_tvm.compare.whole.zoo import Prepared  # noqa: E402
from roller_tvm.errors import RollerError  # noqa: E402

#: What the figure is over: the light networks, text detection and the classifier of its direction.
FIGURE = (*LIGHT, "detection", "direction")
OURS, UNTUNED, ORT = "Roller", "untuned TVM", "onnxruntime"
Rounds = list[dict[str, float]]


def variants_of(model: Prepared, args: argparse.Namespace, target: Any, spent: dict[str, float]) -> list[Variant]:
    """Return Roller, and untuned TVM if asked for; tuned and built unless the folder has them."""
    from roller_tvm.relax import load_model, prepare
    from roller_tvm.relax.tuning import tune

    stem = f"{model.path.stem}.relax"
    records, library = args.folder / f"{stem}-records", args.folder / f"{stem}-top{args.trials}.so"
    plain = args.folder / f"{stem}-untuned.so"
    missing = [p for p in (library, *([plain] if args.untuned else [])) if not p.is_file()]
    if (missing or args.rebuild) and not args.measure:
        imported, spent["import"] = timed(lambda: load_model(model.path, model.shapes))
        if args.rebuild or not library.is_file():
            if args.trials:
                fused, spent["prepare"] = timed(lambda: prepare(imported.mod, target))
                trials = args.trials
                (_, result), seconds = timed(lambda: tune(fused, None, target, records, max_trials_per_task=trials))
                spent["tune"] = spent.get("tune", 0.0) + seconds
                done = sum(bool(t.outcomes) for t in result.tasks)
                brief = f"{model.title}: {len(result.tasks)} operators, {done} of them tuned now in {seconds:.1f} s"
                print(result if args.verbose else brief, flush=True)
            used = records if args.trials else None
            _, spent["build"] = timed(lambda: roller_build(imported, target, library, used))
        if args.untuned and (args.rebuild or not plain.is_file()):
            untuned_build(imported, target, plain)
    ours = tvm_variant(OURS, library, model, spent.get("tune"), spent.get("build"))
    return [ours, *([tvm_variant(UNTUNED, plain, model)] if args.untuned else [])]


def table(results: Sequence[dict[str, Any]], threads: int) -> str:
    """Return medians over the rounds with their ranges; ratios are taken round by round."""
    names = [n for n in (UNTUNED,) if all(n in r["rounds"][0] for r in results)]
    head = f"{'model':<24} {'import s':>8} {'tune s':>7} {'build s':>7} {'ours ms':>8} {'ort ms':>8} " + "".join(
        f"{n + ' ms':>15}" for n in names
    )
    head += f" {'ort/ours':>20} {'error':>8}"
    lines = [f"latency: medians, {threads} threads each; ratios above 1: ours is faster (range over processes)",
             "", head, "-" * len(head)]  # fmt: skip
    ratios = []
    for r in results:
        rounds: Rounds = r["rounds"]
        values = [one[ORT] / one[OURS] for one in rounds]
        ratios.append(statistics.median(values))
        middle = {name: statistics.median(one[name] for one in rounds) * 1e3 for name in rounds[0]}
        told = [f"{r['spent'][k]:.1f}" if k in r["spent"] else "-" for k in ("import", "tune", "build")]
        ranged = f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"
        others = "".join(f"{middle[n]:>15.2f}" for n in names)
        lines.append(f"{r['title'][:24]:<24} {told[0]:>8} {told[1]:>7} {told[2]:>7} {middle[OURS]:>8.2f} "
                     f"{middle[ORT]:>8.2f} {others} {ranged:>20} {r['error']:>8.1e}")  # fmt: skip
    lines += ["", f"geomean ort/ours over {len(ratios)} models: {statistics.geometric_mean(ratios):.3f}"]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the script; return 0 if every output is right."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--models", default=",".join(FIGURE),
                        help="names from 'roller-tvm compare --list', with commas; default %(default)s")
    parser.add_argument("--folder", type=Path, default=Path("end-to-end-relax"),
                        help="folder of models, records, libraries; default %(default)s")
    parser.add_argument("--trials", type=int, default=10,
                        help="plans measured per operator, 0 for prediction only; default 10")
    parser.add_argument("--rounds", type=int, default=3,
                        help="rounds of measuring, 0 to tune, build and compare only; default 3")
    parser.add_argument("--seconds", type=float, default=6.0, help="seconds of measuring per process; default 6")
    parser.add_argument("--untuned", action="store_true", help="also run untuned TVM (hundreds of milliseconds a run)")
    parser.add_argument("--rebuild", action="store_true", help="build existing libraries again")
    parser.add_argument("--measure", action="store_true", help="only measure the existing libraries")
    parser.add_argument("--verbose", action="store_true", help="print every operator while tuning")
    parser.add_argument("--out", default="",
                        help="also write the table to this file, such as benchmarks/end_to_end_relax.txt")
    args = parser.parse_args(argv)
    try:
        return end_to_end(args)
    except RollerError as error:
        print(f"end_to_end_relax: error: {error}", file=sys.stderr)
        return error.exit_code


def end_to_end(args: argparse.Namespace) -> int:
    from roller_tvm.device import cpu_device
    from roller_tvm.relax.targets import local_target
    from roller_tvm.tvm_env import find_tvm, set_threads

    device = cpu_device()
    threads, found, target = set_threads(device.units), find_tvm(), local_target()
    args.folder.mkdir(parents=True, exist_ok=True)
    results, version = [], ORT
    for name in args.models.split(","):
        model = onnx_model(name, args.folder)
        notes = args.folder / f"{model.path.stem}-top{args.trials}.json"
        kept = json.loads(notes.read_text()) if notes.is_file() and not args.rebuild else {"spent": {}}
        reference = onnxruntime_variant(model, threads)
        version = reference.name
        variants = variants_of(model, args, target, kept["spent"])
        compare(model, variants, reference.run())
        rounds: Rounds = []
        for _ in range(args.rounds):
            measure(model, [*variants, reference], threads, args.folder, args.seconds)
            rounds.append({ORT if v is reference else v.name: v.latency for v in (*variants, reference)})
        kept |= {"title": model.title, "error": variants[0].error}
        kept |= {"rounds": rounds} if rounds else {}
        notes.write_text(json.dumps(kept), encoding="utf-8")
        if kept.get("rounds"):
            results.append(kept)
            print(table([kept], threads), flush=True)
    if not results:
        return 0
    head = (f"{device}; TVM {found.version if found else '?'}; {version}; {args.trials} plans measured an operator; "
            "python/end_to_end_relax.py")  # fmt: skip
    text = f"{head}\n{table(results, threads)}\n"
    print(f"\n{text}")
    if args.out:
        Path(args.out).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
