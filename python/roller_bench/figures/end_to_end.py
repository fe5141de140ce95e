"""Whole models on this CPU beside onnxruntime, on either line, and built libraries beside it."""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roller_bench.figures import add_out, names, tell
from roller_bench.running import keep_inputs
from roller_bench.task import timed
from roller_bench.variants import compare, latencies, onnx_model, tvm_variant
from roller_bench.zoo import LIGHT, Prepared
from roller_tvm.planner.explain.words import table as aligned
from roller_tvm.tvm_env import find_tvm, line

#: Line -> its models by default: the light networks, text detection and the classifier of its direction.
FIGURE = {"relay": ("resnet50", "mobilenet_v2", "detection"), "relax": (*LIGHT, "detection", "direction")}
IMPORTED, UNTUNED, ORT = "imported", "untuned TVM", "onnxruntime"


def end_to_end(parser: argparse.ArgumentParser) -> None:
    """Run whole models on this CPU: Roller, untuned TVM and onnxruntime, side by side.

        .venv/relay/bin/python -m roller_bench end-to-end                 # ResNet-50, MobileNet v2, text detection
        .venv/relax/bin/python -m roller_bench end-to-end --trials 0      # nine light networks, two PP-OCR models
        python -m roller_bench end-to-end --models bert_base,vgg19
        python -m roller_bench end-to-end --measure --rounds 5            # only measure the existing libraries

    Each model is imported (on the Relay line also converted to NHWC, as Ansor's tutorials do), tuned (unless the
    folder's records have its operators already), built as a user builds it, compared with onnxruntime, and timed in
    turns with it, each in a process of its own. Libraries and times are kept in the folder, so an interrupted run
    resumes. `--trials 0` builds without measuring: the best plan by prediction.
    """
    here = line() or "relax"
    parser.add_argument("--models", default=",".join(FIGURE[here]),
                        help="names from 'roller-tvm compare --list', or files, with commas; default %(default)s")
    parser.add_argument("--folder", type=Path, default=Path("end-to-end"),
                        help="folder of models, records, libraries; default %(default)s")
    parser.add_argument("--trials", type=int, default=10,
                        help="plans measured per operator, 0 for prediction only; default 10")
    parser.add_argument("--rounds", type=int, default=3,
                        help="rounds of measuring, 0 to tune, build and compare only; default 3")
    parser.add_argument("--seconds", type=float, default=6.0, help="seconds of measuring per process; default 6")
    parser.add_argument("--rebuild", action="store_true", help="build existing libraries again")
    parser.add_argument("--measure", action="store_true", help="only measure the existing libraries")
    parser.add_argument("--layouts", default=f"{IMPORTED},NHWC" if here == "relay" else IMPORTED,
                        help="Roller's layouts, as imported or NHWC, with commas; default %(default)s")
    parser.add_argument("--untuned", action=argparse.BooleanOptionalAction, default=here == "relay",
                        help="also run untuned TVM; default on the Relay line (slow on the other)")
    parser.add_argument("--verbose", action="store_true", help="print every operator while tuning")
    add_out(parser)
    parser.set_defaults(run=_end_to_end)


@dataclass(frozen=True)
class Built:
    """Functions of a line: import a model in a layout, tune it, build it with records or untuned."""

    load: Callable[[Prepared, str | None], Any]
    tune: Callable[[Any, Path, int], Any]
    roller: Callable[[Any, Path | None, Path], object]
    untuned: Callable[[Any, Path], object]


def relay(threads: int) -> Built:
    from roller_bench.relay_models import plain_build, roller_build
    from roller_tvm.device import default_cpu_target
    from roller_tvm.relay import build, tune
    from roller_tvm.relay.importers import load_model

    target = default_cpu_target(threads)

    def with_records(model: Any, records: Path | None, library: Path) -> object:
        if records is None:
            return build(model.mod, model.params, target).export_library(str(library))
        return roller_build(model.mod, model.params, target, records, library)

    return Built(
        lambda model, layout: load_model(model.path, model.shapes, layout),
        lambda model, records, trials: tune(model.mod, model.params, target, records, trials=trials),
        with_records, lambda model, library: plain_build(model.mod, model.params, target, None, library),
    )  # fmt: skip


def relax(threads: int) -> Built:
    from roller_bench.relax_models import roller_build, untuned_build
    from roller_tvm.relax import load_model, prepare
    from roller_tvm.relax.targets import local_target
    from roller_tvm.relax.tuning import tune

    target = local_target()
    return Built(
        lambda model, layout: load_model(model.path, model.shapes, layout),
        lambda model, records, trials: tune(
            prepare(model.mod, target), None, target, records, max_trials_per_task=trials)[1],
        lambda model, records, library: roller_build(model, target, library, records),
        lambda model, library: untuned_build(model, target, library),
    )  # fmt: skip


def made(model: Prepared, layout: str, built: Built, args: argparse.Namespace) -> tuple[Path, dict[str, float]]:
    """Return Roller's library in one layout and the seconds spent on it; tuned and built unless the folder has it."""
    stem = args.folder / f"{model.path.stem}.{line()}.{layout.lower()}"
    library, records = Path(f"{stem}.top{args.trials}.so"), Path(f"{stem}.records.json")
    spent: dict[str, float] = {}
    if args.measure or (library.is_file() and not args.rebuild):
        return library, spent
    imported, spent["import"] = timed(lambda: built.load(model, None if layout == IMPORTED else layout))
    if args.trials:
        result, spent["tune"] = timed(lambda: built.tune(imported, records, args.trials))
        now = sum(bool(t.outcomes) for t in result.tasks)
        brief = (f"{model.title}, {layout}: {len(result.tasks)} operators, {now} of them tuned now in "
                 f"{spent['tune']:.1f} s")  # fmt: skip
        print(result if args.verbose else brief, flush=True)
    _, spent["build"] = timed(lambda: built.roller(imported, records if args.trials else None, library))
    return library, spent


def table(results: Sequence[dict[str, Any]], threads: int) -> str:
    """Return medians over the rounds with their ranges; ratios are taken round by round."""
    others = [n for n in (UNTUNED, ORT) if any(n in r["rounds"][0] for r in results)]
    head = ["model", "layout", "import s", "tune s", "build s", "ours ms", *(f"{n} ms" for n in others),
            *(f"{n}/ours" for n in others), "error"]  # fmt: skip
    rows, ratios = [head], dict[tuple[str, str], list[float]]()
    for r in results:
        middle = {name: statistics.median(one[name] for one in r["rounds"]) * 1e3 for name in r["rounds"][0]}
        for layout, own in r["layouts"].items():
            spent = [f"{own['spent'][k]:.1f}" if k in own["spent"] else "-" for k in ("import", "tune", "build")]
            cells = [r["title"][:30], layout, *spent, f"{middle[layout]:.2f}",
                     *(f"{middle[n]:.2f}" if n in middle else "-" for n in others)]  # fmt: skip
            for other in others:
                values = [one[other] / one[layout] for one in r["rounds"] if other in one]
                ratios.setdefault((layout, other), []).extend([statistics.median(values)] if values else [])
                cells.append(f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"
                             if values else "-")  # fmt: skip
            rows.append([*cells, f"{own['error']:.1e}"])
    lines = [f"latency: medians, {threads} threads each; ratios above 1: ours is faster (range over processes)", ""]
    lines += [*aligned(rows, left=2, indent=""), ""]
    lines += [f"geomean {other}/ours over {len(values)} models, {layout}: {statistics.geometric_mean(values):.3f}"
              for (layout, other), values in ratios.items() if values]  # fmt: skip
    return "\n".join(lines)


def _end_to_end(args: argparse.Namespace) -> int:
    import onnxruntime

    from roller_bench.peers_graph import open_onnxruntime
    from roller_tvm.device import cpu_device
    from roller_tvm.tvm_env import set_threads

    device = cpu_device()
    threads, found = set_threads(device.units), find_tvm()
    args.folder.mkdir(parents=True, exist_ok=True)
    results = []
    for name in names(args.models):
        model = onnx_model(name, args.folder)
        notes = args.folder / f"{model.path.stem}.{line()}.top{args.trials}.json"
        kept = json.loads(notes.read_text()) if notes.is_file() and not args.rebuild else {"layouts": {}}
        expected = open_onnxruntime(model.path, model.inputs, threads).outputs()  # before any thread is pinned
        built, libraries = (relay if line() == "relay" else relax)(threads), {}
        for layout in names(args.layouts):
            libraries[layout], spent = made(model, layout, built, args)
            known = kept["layouts"].setdefault(layout, {"spent": {}})
            known["spent"] |= spent
        if args.untuned:
            libraries[UNTUNED] = args.folder / f"{model.path.stem}.{line()}.untuned.so"
            if not args.measure and (args.rebuild or not libraries[UNTUNED].is_file()):
                built.untuned(built.load(model, None), libraries[UNTUNED])
        for title, library in libraries.items():
            variant = tvm_variant(title, library, model)
            compare(model, [variant], expected)
            kept["layouts"].get(title, {})["error"] = variant.error
        kept |= {"title": model.title, "layouts": {n: kept["layouts"][n] for n in names(args.layouts)}}
        inputs = args.folder / f"{model.path.stem}.inputs.npz"
        keep_inputs(model.inputs, inputs)
        rounds = []
        for _ in range(args.rounds):
            times = latencies(model.path, list(libraries.values()), inputs, threads, args.seconds)
            rounds.append(dict(zip((ORT, *libraries), map(statistics.median, times), strict=True)))
        kept |= {"rounds": rounds} if rounds else {}
        notes.write_text(json.dumps(kept), encoding="utf-8")
        if kept.get("rounds"):
            results.append(kept)
            print(table([kept], threads), flush=True)
    if results:
        head = (f"{device}; TVM {found.version if found else '?'}; onnxruntime {onnxruntime.__version__}; "
                f"{args.trials} plans measured an operator; python -m roller_bench end-to-end")  # fmt: skip
        tell(f"{head}\n{table(results, threads)}", args.out)
    return 0


# -- built libraries --


def latency(parser: argparse.ArgumentParser) -> None:
    """Compare the latency of built models with onnxruntime's: same input and threads, one process each, in turns.

        python -m roller_bench latency model.onnx untuned.so tuned.so --inputs inputs.npz --threads 2

    Prints medians and ratios to onnxruntime.
    """
    parser.add_argument("model", type=Path, help="ONNX model")
    parser.add_argument("libraries", type=Path, nargs="*", help="libraries built for the installed TVM")
    parser.add_argument("--inputs", type=Path, required=True, help=".npz file with an array for each input")
    parser.add_argument("--threads", type=int, required=True, help="threads of each implementation")
    parser.add_argument("--seconds", type=float, default=10.0, help="time of measuring; default 10")
    parser.add_argument("--json", action="store_true", help="print every time in seconds, by name")
    parser.set_defaults(run=_latency)


def _latency(args: argparse.Namespace) -> int:
    times = latencies(args.model, args.libraries, args.inputs, args.threads, args.seconds)
    named = dict(zip((ORT, *(path.name for path in args.libraries)), times, strict=True))
    if args.json:
        print(json.dumps(named))
        return 0
    reference = statistics.median(named[ORT])
    for name, taken in named.items():
        median, fast = statistics.median(taken), sorted(taken)[len(taken) // 10]
        print(f"{name:<40} {median * 1e3:8.2f} ms (fastest tenth {fast * 1e3:.2f})  "
              f"{reference / median:5.2f}x onnxruntime's speed")  # fmt: skip
    return 0
