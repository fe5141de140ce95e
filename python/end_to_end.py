#!/usr/bin/env python3
"""Run whole models on this CPU: tuned by Roller, untuned TVM and onnxruntime, side by side.

    python python/end_to_end.py                            # light ResNet-50, MobileNet v2, PP-OCR text detection
    python python/end_to_end.py --models bert_base,squeezenet,vgg19 --out ""
    python python/end_to_end.py --rounds 5                 # another five processes of measuring

Each model is imported (and converted to NHWC, as Ansor's tutorials do), tuned (unless the folder's record file has its
operators already), built through ``roller_tvm.relay.build`` as a user builds it, compared with onnxruntime, and timed
in turns with it. A built library is used again while it is newer than the records.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from side_by_side import Variant, compare, measure, onnx_model, onnxruntime_variant, timed, tvm_variant  # noqa: E402

from roller_tvm.compare.relay.whole import plain_build, roller_build  # noqa: E402
from roller_tvm.compare.whole.zoo import Prepared  # noqa: E402
from roller_tvm.errors import RollerError  # noqa: E402

FIGURE = ("resnet50", "mobilenet_v2", "detection")
IMPORTED, UNTUNED, ORT = "imported", "untuned TVM", "ort"


def variants_of(model: Prepared, args: argparse.Namespace, threads: int) -> list[Variant]:
    """Return untuned TVM, and Roller in each layout; tuned and built unless the folder has them."""
    from roller_tvm.device import default_cpu_target
    from roller_tvm.relay.importers import load_model

    target, plain = default_cpu_target(threads), args.folder / f"{model.path.stem}.untuned.so"
    untuned_s = None
    if not args.measure and (args.rebuild or not plain.is_file()):
        imported = load_model(model.path, model.shapes)
        _, untuned_s = timed(lambda: plain_build(imported.mod, imported.params, target, None, plain))
    ours = [tuned(model, layout, target, args) for layout in args.layouts.split(",")]
    return [tvm_variant(UNTUNED, plain, model, None, untuned_s), *ours]


def tuned(model: Prepared, layout: str, target: str, args: argparse.Namespace) -> Variant:
    """Return Roller's variant in one layout."""
    from roller_tvm.relay import tune
    from roller_tvm.relay.importers import load_model

    stem = f"{model.path.stem}.{layout.lower()}"
    records, library = args.folder / f"{stem}.records.json", args.folder / f"{stem}.roller.so"
    tune_s = build_s = None
    if not args.measure:
        imported = load_model(model.path, model.shapes, None if layout == IMPORTED else layout)
        result, tune_s = timed(lambda: tune(imported.mod, imported.params, target, records, trials=args.trials))
        now = sum(bool(t.outcomes) for t in result.tasks)
        spent = ", ".join(f"{phase} {seconds:.1f}" for phase, seconds in result.seconds.items())
        brief = f"{model.title}, {layout}: {len(result.tasks)} operators, {now} of them tuned now: {spent}"
        print(result if args.verbose else brief, flush=True)
        tune_s = tune_s if now else None
        if args.rebuild or not library.is_file() or library.stat().st_mtime < records.stat().st_mtime:
            _, build_s = timed(lambda: roller_build(imported.mod, imported.params, target, records, library))
    return tvm_variant(layout, library, model, tune_s, build_s)


Rounds = list[dict[str, float]]


def table(results: Sequence[tuple[Prepared, Sequence[Variant], Rounds]], threads: int) -> str:
    """Return medians over the rounds with their ranges; ratios are taken round by round."""
    head = (f"{'model':<30} {'layout':<9} {'tune s':>7} {'build s':>7} {'ours ms':>8} {'untuned ms':>10} {'ort ms':>8} "
            f"{'untuned/ours':>20} {'ort/ours':>20} {'error':>8}")  # fmt: skip
    lines = [f"latency: medians, {threads} threads each; ratios above 1: ours is faster (range over processes)",
             "", head, "-" * len(head)]  # fmt: skip
    ratios: dict[tuple[str, str], list[float]] = {}

    for model, variants, rounds in results:
        middle = {name: statistics.median(r[name] for r in rounds) * 1e3 for name in rounds[0]}
        for own in variants[1:]:
            tune_s, build_s = (f"{s:.1f}" if s else "-" for s in (own.tune_s, own.build_s))
            told = []
            for other in (UNTUNED, ORT):
                values = [r[other] / r[own.name] for r in rounds]
                ratios.setdefault((own.name, other), []).append(statistics.median(values))
                told.append(f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})")
            lines.append(f"{model.title[:30]:<30} {own.name:<9} {tune_s:>7} {build_s:>7} {middle[own.name]:>8.2f} "
                         f"{middle[UNTUNED]:>10.2f} {middle[ORT]:>8.2f} {told[0]:>20} {told[1]:>20} "
                         f"{own.error:>8.1e}")  # fmt: skip
    lines.append("")
    for (own, other), values in ratios.items():
        lines.append(f"geomean {other}/ours, {own}: {statistics.geometric_mean(values):.3f}")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the script; return 0 if every output is right."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--models", default=",".join(FIGURE),
                        help="names from 'roller-tvm compare --list', with commas; default %(default)s")
    parser.add_argument("--folder", type=Path, default=Path("end-to-end"),
                        help="folder of models, records, libraries; default %(default)s")
    parser.add_argument("--trials", type=int, default=10, help="plans measured per operator; default 10")
    parser.add_argument("--rounds", type=int, default=3,
                        help="rounds of measuring, 0 to tune, build and compare only; default 3")
    parser.add_argument("--seconds", type=float, default=8.0, help="seconds of measuring per process; default 8")
    parser.add_argument("--rebuild", action="store_true", help="build even if nothing changed")
    parser.add_argument("--measure", action="store_true", help="only measure the existing libraries")
    parser.add_argument("--layouts", default=f"{IMPORTED},NHWC",
                        help="Roller's layouts, as imported or NHWC, with commas; default both")
    parser.add_argument("--verbose", action="store_true", help="print every operator while tuning")
    parser.add_argument("--out", default="",
                        help="also write the table to this file, such as benchmarks/end_to_end.txt")
    args = parser.parse_args(argv)
    try:
        return end_to_end(args)
    except RollerError as error:
        print(f"end_to_end: error: {error}", file=sys.stderr)
        return error.exit_code


def end_to_end(args: argparse.Namespace) -> int:
    from roller_tvm.device import cpu_device
    from roller_tvm.tvm_env import find_tvm, set_threads

    device = cpu_device()
    threads, found = set_threads(device.units), find_tvm()
    args.folder.mkdir(parents=True, exist_ok=True)
    results = []
    for name in args.models.split(","):
        model = onnx_model(name, args.folder)
        reference = onnxruntime_variant(model, threads)
        variants = variants_of(model, args, threads)
        compare(model, variants, reference.run())
        rounds: list[dict[str, float]] = []
        for _ in range(args.rounds):
            measure(model, [*variants, reference], threads, args.folder, args.seconds)
            rounds.append({ORT if v is reference else v.name: v.latency for v in (*variants, reference)})
        if rounds:
            results.append((model, variants, rounds))
            print(table(results[-1:], threads), flush=True)
    if not results:
        return 0
    head = f"{device}; TVM {found.version if found else '?'}; {reference.name}; python/end_to_end.py"
    text = f"{head}\n{table(results, threads)}\n"
    print(f"\n{text}")
    if args.out:
        Path(args.out).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
