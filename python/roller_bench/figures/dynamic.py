"""Models with open extents at random sizes, beside a build for the very size and onnxruntime on the same file."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from roller_bench.figures import LEFT, NETWORKS, add_out, append_lines, names, read_lines, tell
from roller_bench.jobs import run_job
from roller_bench.latency import medians_in_turns
from roller_bench.machine import cpu_kind
from roller_bench.open_models import MODELS, OpenModel
from roller_bench.running import Runnable, keep_inputs, relative_error
from roller_tvm.device import cpu_device
from roller_tvm.errors import MeasureError
from roller_tvm.folders import work_folder
from roller_tvm.planner.explain.words import table
from roller_tvm.stats import geomean

OPEN, STATIC, ORT = "open", "static", "onnxruntime"
#: Seconds in which the implementations take turns, and seconds after which a build is given up.
SECONDS, BUILD_S = 1.0, 3600.0
#: Outputs agree to this share of the largest value.
CLOSE = 2e-4


def dynamic(parser: argparse.ArgumentParser) -> None:
    """Time models with open extents at random sizes: one build, a build for each size, onnxruntime.

        .venv/relax/bin/python -m roller_bench dynamic --models bert,llama --layers 2
        ... dynamic --models llama --decode        # one new token after 1 to 512 past ones
        ... dynamic --seconds 600                  # stop then; the same command goes on
        ... dynamic --most 1 --builds              # on a shared machine: build for the next size, now or in a queue,
        ... dynamic --most 1                       # then time it while nothing else runs

    Relax line. Each implementation runs in a process of its own, in turns; medians of the rounds, answers compared. A
    ratio above 1: the build with open extents is faster. Build times are of one build, in a process of its own.
    """
    parser.add_argument("--models", type=names, default=list(MODELS), help=f"names: {', '.join(MODELS)}; default all")
    parser.add_argument("--layers", type=int, help="layers of transformers, blocks a stage of ResNet; default whole")
    parser.add_argument("--decode", action="store_true", help="a decoder's single token after a random past")
    parser.add_argument("--count", type=int, default=10, help="random sizes of each model; default 10")
    parser.add_argument("--seed", type=int, default=1, help="seed of the random sizes; default 1")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no new size after this time")
    parser.add_argument("--most", type=int, help="at most so many new sizes; default all")
    parser.add_argument("--folder", type=Path, default=NETWORKS, help="folder; default %(default)s")
    parser.add_argument("--builds", action="store_true", help="only build: with open extents, and for each size")
    add_out(parser)
    parser.set_defaults(run=_run)


def written(name: str, folder: Path, layers: int | None) -> OpenModel:
    """Write a model, with fewer layers if so many are asked for."""
    if layers is None or name == "detector":
        return MODELS[name](folder)
    return MODELS[name](folder, **({"blocks": (layers,) * 4} if name == "resnet50" else {"layers": layers}))


def _run(args: argparse.Namespace) -> int:
    begun, units = time.monotonic(), cpu_device().units
    kept = args.folder / "dynamic.jsonl"
    args.folder.mkdir(parents=True, exist_ok=True)
    known = {_key(row): row for row in read_lines(kept)}
    wanted: list[dict[str, Any]] = []
    for name in args.models:
        model = written(name, args.folder, args.layers)
        decode = args.decode and "p" in model.bounds
        rng = np.random.default_rng(args.seed)
        drawn = [{"n": 1, "p": int(rng.integers(1, 513))} for _ in range(args.count)] if decode else model.drawn(
            args.count, rng
        )  # fmt: skip
        wanted += [{"model": model, "name": model.name, "sizes": s, "cpu": cpu_kind(cpu_device())} for s in drawn]

    def todo() -> Iterator[dict[str, Any]]:
        for want in [w for w in wanted if _key(w) not in known][: args.most]:
            if time.monotonic() - begun < args.seconds:
                yield want

    if args.builds:
        for want in todo():
            for sizes in (None, want["sizes"]):
                print(want["name"], _built(args.folder, want["model"], sizes, units), flush=True)
        return 0
    rows = ({**{k: w[k] for k in ("name", "sizes", "cpu")}, **_measured(w, args.folder, units)} for w in todo())
    for row in append_lines(kept, rows):
        known[_key(row)] = row
        print(_table([row]), flush=True)
    found = [known[_key(w)] for w in wanted if _key(w) in known]
    tell(f"{cpu_kind(cpu_device())}; python -m roller_bench dynamic\n{_table(found)}", args.out)
    return LEFT if len(found) < len(wanted) else 0


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["name"], tuple(sorted(row["sizes"].items())), row["cpu"]


def _measured(want: dict[str, Any], folder: Path, units: int) -> dict[str, Any]:
    """Build for the size, time the three in turns, and compare their answers."""
    model, sizes = want["model"], want["sizes"]
    built = {OPEN: _built(folder, model, None, units), STATIC: _built(folder, model, sizes, units)}
    with work_folder() as place:
        inputs = Path(place, "inputs.npz")
        keep_inputs(model.values(sizes), inputs)
        opener = "roller_bench.running:open_built"
        asked = {kind: Runnable(opener, own["file"], str(inputs), units) for kind, own in built.items()}
        asked[ORT] = Runnable("roller_bench.peers_graph:open_onnxruntime", str(model.path), str(inputs), units)
        seconds, answers = medians_in_turns(asked, SECONDS)
    for kind in built:
        if (apart := relative_error(answers[kind], answers[ORT])) > CLOSE:
            raise MeasureError(f"the {kind} build at {sizes} is off by {apart:.1e}", model.name)
    for suffix in (".so", ".jsonl"):
        Path(built[STATIC]["file"]).with_suffix(suffix).unlink()
    return {
        "seconds": seconds, "build": {k: b["seconds"] for k, b in built.items()},
        "size": {k: b["size"] for k, b in built.items()},
    }  # fmt: skip


def _built(folder: Path, model: OpenModel, sizes: dict[str, int] | None, units: int) -> dict[str, Any]:
    """Return file, seconds and size of a build in a process of its own; a file that is there was built before."""
    own = "open" if sizes is None else "-".join(f"{k}{v}" for k, v in sizes.items())
    file = (folder / f"{model.path.stem}.{own}.so").resolve()
    about = file.with_suffix(".jsonl")
    if file.exists() and (rows := read_lines(about)):
        return rows[-1]
    shapes = model.shapes(sizes) if sizes is not None else None
    asked = {"path": str(model.path.resolve()), "shapes": shapes, "file": str(file), "units": units}
    done = run_job(__name__, "build", asked, BUILD_S, units)
    if done.status != "ok":
        raise MeasureError(done.reason, model.name)
    row = {"file": str(file), **done.value, "size": file.stat().st_size}
    list(append_lines(about, [row]))
    return row


def build(path: str, shapes: dict[str, list[int]] | None, file: str, units: int) -> dict[str, Any]:
    """Build a model, write it, and return the seconds and how many operators are left to TVM."""
    import roller_tvm
    from roller_tvm.tvm_env import import_relax_tvm

    import_relax_tvm("building")
    given = {name: tuple(shape) for name, shape in shapes.items()} if shapes else None
    begun = time.perf_counter()
    model = roller_tvm.compile(path, shapes=given, threads=units)
    model.save(file)
    return {"seconds": time.perf_counter() - begun, "left": len(model.report().left_to_tvm)}


def _table(rows: list[dict[str, Any]]) -> str:
    """Return a line a size, and a model's geometric mean and least."""
    head = "model, sizes, open ms, static/open, onnxruntime/open, build s, of static, MB, of static"
    lines = [head.split(", ")]
    for row in rows:
        s, b, z = row["seconds"], row["build"], row["size"]
        lines.append([row["name"], " ".join(f"{k}={v}" for k, v in row["sizes"].items()), f"{s[OPEN] * 1e3:.2f}",
                      f"{s[STATIC] / s[OPEN]:.2f}", f"{s[ORT] / s[OPEN]:.2f}", f"{b[OPEN]:.1f}",
                      f"{b[OPEN] / b[STATIC]:.1f}", f"{z[OPEN] / 1e6:.1f}", f"{z[OPEN] / z[STATIC]:.2f}"])  # fmt: skip
    for name in dict.fromkeys(row["name"] for row in rows) if len(rows) > 1 else ():
        own = [row for row in rows if row["name"] == name]
        ratios = [[row["seconds"][kind] / row["seconds"][OPEN] for row in own] for kind in (STATIC, ORT)]
        builds = statistics.median(row["build"][OPEN] / row["build"][STATIC] for row in own)
        told = (f"{geomean(r):.2f}, {min(r):.2f}" for r in ratios)
        lines.append([name, f"{len(own)} sizes: mean, least", "", *told, "", f"{builds:.1f}", "", ""])
    return "\n".join(table(lines, left=2, indent=""))
