#!/usr/bin/env python3
"""Run the GPU kit: every kernel checked and timed on this machine's card; needs only Python and a driver.

    python3 gpu_kit.py [--quick] [--seconds 525] [--out DIR] [KIT]

KIT is the folder that `make gpu-kit` prepared (default: the folder of this script, if it is one, else build/gpu-kit).
Written to DIR during the run: results.json, table.md, plot.svg, device.toml (the profiled card, for --device), logs.

Exit codes: 0 all kernels that ran were right (or there is no card: the output says so), 1 a kernel failed, hung or
gave a wrong result (table.md tells which), 2 no kit, or none for this card.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
#: True in a kit's folder, where the packages lie beside this script.
ALONE = (HERE / "roller_tvm").is_dir()
ROOT = HERE if ALONE else HERE.parents[2]


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("KIT", type=Path, nargs="?", default=ROOT if ALONE else ROOT / "build" / "gpu-kit")
    parser.add_argument("--out", type=Path, default=Path("gpu-kit-results"), metavar="DIR",
                        help="folder for results; default %(default)s")
    parser.add_argument("--quick", action="store_true", help="run 100 seconds with the three best plans per operator")
    parser.add_argument("--seconds", type=float, help="time limit of the run; default 525")
    parser.add_argument("--top", type=int, help="plans per operator; default 10")
    parser.add_argument("--card", type=int, default=0, metavar="N", help="number of the card; default 0")
    parser.add_argument("--no-torch", action="store_true", help="do not time torch")
    parser.add_argument("--silence", type=float, metavar="S",
                        help="seconds after which a silent worker is killed; default 20")
    parser.add_argument("--driver", default="", help="library of the CUDA driver; default libcuda.so.1")
    parser.add_argument("--report", action="store_true",
                        help="run nothing; write table and plot from DIR's results.json")
    args = parser.parse_args(words)
    if sys.version_info < (3, 11):  # tomllib
        try:
            import tomli  # noqa: F401
        except ImportError:
            print(f"Python 3.11 or later is needed (this is {sys.version.split()[0]}), or the package tomli")
            return 2
    sys.path[:0] = [str(ROOT), *([] if ALONE else [str(ROOT / "python")])]
    from roller_bench.kit.run import QUICK, Run, Settings
    from roller_tvm.errors import RollerError

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a report is written, and the card let go
    if args.report:
        try:
            kept = json.loads((args.out / "results.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            print(f"{args.out / 'results.json'} cannot be read: {error}", file=sys.stderr)
            return 2
        return finish(kept, args.out)
    given = {"seconds": args.seconds, "top": args.top, "silence_s": args.silence}
    options = {**(QUICK if args.quick else {}), **{k: v for k, v in given.items() if v is not None}}
    try:
        args.out.mkdir(parents=True, exist_ok=True)
        keep_older(args.out)
        settings = Settings(card=args.card, driver=args.driver, torch=not args.no_torch, **options)
        run = Run(args.KIT.resolve(), args.out.resolve(), settings, lambda text: print(text, flush=True))
        results = run.all()
    except RollerError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    return finish(results, args.out)


def keep_older(out: Path) -> None:
    """Move the results of an earlier run with a card aside, because a later run may find no card."""
    path = out / "results.json"
    try:
        had_card = bool(json.loads(path.read_text(encoding="utf-8"))["card"])
    except (OSError, ValueError, KeyError, TypeError):
        return
    if had_card:
        number = next(n for n in range(1, 10_000) if not (out / f"results.{n}.json").exists())
        path.rename(out / f"results.{number}.json")
        print(f"the earlier results are now {out / f'results.{number}.json'}", flush=True)


def finish(results: dict, out: Path) -> int:
    """Write table and plot; return the exit code."""
    from roller_bench.kit.plot import plot
    from roller_bench.kit.results_text import figures, report
    from roller_bench.kit.run import NO_DEVICE
    from roller_tvm.errors import WrongAnswer

    text = report(results)
    (out / "table.md").write_text(text, encoding="utf-8")
    if not results["card"]:
        print(f"{results['status']}: {results['why']}")
        return 0 if results["status"] == NO_DEVICE else 1
    (out / "plot.svg").write_text(plot(results), encoding="utf-8")
    print(text[: text.index("## Operators")] if "## Operators" in text else text)
    print(f"written to {out}{os.sep}: results.json, table.md, plot.svg, device.toml")
    verdicts = figures(results["operators"].values())["verdicts"]
    if verdicts.get("wrong"):
        return WrongAnswer.exit_code
    return 1 if verdicts.get("failed") or results["status"] != "done" else 0


if __name__ == "__main__":
    raise SystemExit(main())
