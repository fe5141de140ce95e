"""Figures of README.md and docs/results.md: one program, a sub-command a figure, ratios measured side by side.

    .venv/relay/bin/python -m roller_bench products           # or .venv/relax/bin/python: the line of that environment
    .venv/relay/bin/python -m roller_bench FIGURE --help
"""

from __future__ import annotations

import argparse
import importlib
import json
import signal
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from roller_tvm.errors import RollerError

#: Root of the checkout.
ROOT = Path(__file__).resolve().parents[3]
#: The 119 operators of the paper's evaluation, with the V100 times that its authors published.
OPERATORS = ROOT / "python" / "roller_osdi22_operators.csv"
#: Where the figures keep networks.
NETWORKS = Path("demo-out/models")
#: Sub-command -> its module and function, which adds the arguments; the function's docstring is the help.
FIGURES = {
    "products": "products:products",
    "memory-bound": "products:memory_bound",
    "models": "models:models",
    "card-models": "card_models:card_models",
    "recurrences": "recurrences:recurrences",
    "pipelines": "pipelines:pipelines",
    "plan-against": "plan_against:plan_against",
    "models-against": "models_against:models_against",
    "build-time": "build_time:build_time",
    "dynamic": "dynamic:dynamic",
    "families": "families:families",
    "draw-blur": "iteration_space:draw_blur",
    "prove-models": "model_proofs:prove_models",
    "explore": "explore:explore",
    "servers": "servers:servers",
    "explore-gpu": "explore_gpu:explore_gpu",
    "predictions": "predictions:predictions",
    "surprises": "surprises:surprises",
    "plan-costs": "plans:plan_costs",
    "compile-operators": "compiling:compile_operators",
    "resources": "resources:resources",
    "rtask-figures": "rtasks:rtask_figures",
}
LEFT = 1


def main(argv: Sequence[str] | None = None) -> int:
    """Run a figure; return its exit code, 1 if work is left or something is wrong."""
    words = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(prog="roller_bench", description=__doc__, epilog=_list(),
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    if not words or words[0] not in FIGURES:
        parser.add_argument("FIGURE", choices=FIGURES, metavar="FIGURE")
        parser.parse_args(words)
    name, *rest = words
    figure = _figure(name)
    parser = argparse.ArgumentParser(prog=f"roller_bench {name}", description=figure.__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    figure(parser)
    args = parser.parse_args(rest)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was started is to end with it
    try:
        return int(args.run(args))
    except RollerError as error:
        print(f"{name}: error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(f"{name}: stopped; the same command goes on", file=sys.stderr)
        return 130
    finally:
        signal.signal(signal.SIGTERM, before)


def _figure(name: str) -> Any:
    module, _, function = FIGURES[name].partition(":")
    return getattr(importlib.import_module(f"{__name__}.{module}"), function)


def _list() -> str:
    return f"figures: {', '.join(FIGURES)}; each tells more with --help"


def names(text: str) -> list[str]:
    """Return the names in a comma-separated list."""
    return [word.strip() for word in text.split(",") if word.strip()]


def add_out(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, help="also write the table to this file")


def tell(text: str, out: Path | None) -> None:
    """Print a table, and write it to a file if one is given."""
    print(f"\n{text}")
    if out:
        out.write_text(f"{text}\n", encoding="utf-8")


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the results in a file, one JSON value a line; [] if there is no file yet."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def append_lines(path: Path, rows: Iterable[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    """Append each result to a file as it comes, so that an interrupted run resumes; yield it."""
    with path.open("a") as file:
        for row in rows:
            file.write(json.dumps(row) + "\n")
            file.flush()
            yield row
