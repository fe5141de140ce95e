"""Print how well the micro-performance model of GPUs orders recorded schedules, device by device, effect by effect.

    python -m roller_bench.replay [--data FOLDER] [--devices v100,k80,mi50] [--json FILE] [--no-xgboost] [--no-effects]

FOLDER holds a folder of record files for each device (``shared/data/recorded``). The first table has a row for each
kind of operator: our model beside a random choice and, if xgboost is installed, a learned model trained on the other
operators. The second table leaves out one effect at a time; the model's loss is that effect's contribution.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from roller_bench.learned import available
from roller_bench.replay.file_report import JUDGED, add_learned, report_file, summary
from roller_bench.replay.judge import Figures, overall
from roller_bench.replay.records import find_files
from roller_bench.replay.replay import FIRST, Predictions, Replayed, replay_file
from roller_tvm.device import load_device
from roller_tvm.micro_perf.effects import ALL, EFFECTS

DATA = Path("shared/data/recorded")
#: What is asked for: correlation at least, top-1 and top-10 regret at most, predicted over measured between.
WANTED = {
    "v100": (0.80, 1.6, 1.05, 0.7, 1.4), "k80": (0.80, 1.6, 1.05, 0.7, 1.4), "mi50": (0.70, 2.2, 1.15, 0.6, 1.6),
}  # fmt: skip
HEAD = f"{'':<48} {'files':>5} {'correlation':>11} {'top-1':>7} {'top-10':>7} {'pred/meas':>9}"


def row(name: str, files: int, f: Figures) -> str:
    ratio = f"{f.ratio:.2f}" if f.ratio is not None else "-"
    return f"{name:<48} {files:>5} {f.correlation:>11.3f} {f.top1:>7.2f} {f.top10:>7.3f} {ratio:>9}"


def judged(files: list[Replayed], predictions: Predictions) -> Figures:
    """Return the overall figures of files."""
    return overall([predictions.judge(file.first(FIRST)) for file in files])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the records; default %(default)s")
    parser.add_argument("--devices", default=",".join(WANTED), help="names, with commas; default %(default)s")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file")
    parser.add_argument("--no-xgboost", action="store_true", help="leave out the learned model")
    parser.add_argument("--no-effects", action="store_true", help="leave out the table of effects")
    args = parser.parse_args()
    if not args.data.is_dir():
        print(f"roller_bench.replay: no folder {args.data}: give --data", file=sys.stderr)
        return 1
    result: dict[str, dict[str, object]] = {}
    for name in args.devices.split(","):
        device = load_device(name)
        predictions = Predictions(device)
        files = [f for path in find_files([args.data / name]) for f in replay_file(path, FIRST)]
        reports = [report_file(file, predictions, FIRST, every=False) for file in files]
        if available() and not args.no_xgboost:
            add_learned(reports, predictions, FIRST)
        tables = summary(reports)
        counts = {kind: sum(1 for r in reports if r.first and r.file.kind in kind.split(", ")) for kind in tables}
        print(f"{device.title}: the first {FIRST} records that ran of each file\n{HEAD}")
        for kind, parts in tables.items():
            for who, figures in parts["first"].items():
                print(row(f"{kind}, {who}", counts[kind], figures))
        if name in WANTED:
            rho, top1, top10, low, high = WANTED[name]
            print(f"{'wanted':<48} {'':>5} {rho:>11.2f} {top1:>7.2f} {top10:>7.2f} {f'{low}-{high}':>9}")
        result[name] = {kind: {who: f.to_json() for who, f in p["first"].items()} for kind, p in tables.items()}
        if not args.no_effects:
            print(f"\nleaving one effect out ({', '.join(JUDGED)})\n{HEAD}")
            kept = [file for file in files if file.kind in JUDGED and file.first(FIRST)]
            whole = judged(kept, predictions)
            print(row("every effect", len(kept), whole))
            without = {}
            for effect in EFFECTS:
                without[effect] = judged(kept, Predictions(device, ALL.without(effect)))
                lost = whole.correlation - without[effect].correlation
                print(row(f"without {effect}", len(kept), without[effect]) + f"  {-lost:+.3f}")
            result[name]["effects"] = {k: f.to_json() for k, f in without.items()}
        print(flush=True)
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
