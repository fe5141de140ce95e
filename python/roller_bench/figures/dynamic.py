"""Models with open extents at random sizes, beside a build for the very size and onnxruntime on the same file."""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from roller_bench.figures import NETWORKS, add_out, append_lines, names, read_lines, tell
from roller_bench.machine import cpu_id
from roller_bench.open_models import MODELS, OpenModel
from roller_bench.timing import runs_to_fill
from roller_tvm.device import cpu_device
from roller_tvm.errors import MeasureError
from roller_tvm.planner.explain.words import table
from roller_tvm.stats import geomean
from roller_tvm.tvm_env.pin import pinned_calling_thread
from roller_tvm.tvm_env.threads import set_threads

LEFT = 1
OPEN, STATIC, ORT = "open", "static", "onnxruntime"
#: Rounds in turns, and seconds of a round.
ROUNDS, ROUND_S = 7, 0.03
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
        wanted += [{"model": model, "name": model.name, "sizes": s, "cpu": cpu_id()} for s in drawn]

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
    tell(f"{cpu_id()}, {units} cores; python -m roller_bench dynamic\n{_table(found)}", args.out)
    return LEFT if len(found) < len(wanted) else 0


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["name"], tuple(sorted(row["sizes"].items())), row["cpu"]


def _measured(want: dict[str, Any], folder: Path, units: int) -> dict[str, Any]:
    """Build for the size, time the three in turns, and compare their answers."""
    model, sizes = want["model"], want["sizes"]
    built = {OPEN: _built(folder, model, None, units), STATIC: _built(folder, model, sizes, units)}
    files = {OPEN: built[OPEN]["file"], STATIC: built[STATIC]["file"], ORT: str(model.path)}
    inputs = model.values(sizes)
    with contextlib.ExitStack() as stack:
        peers = {kind: _Peer(kind, file, inputs, units) for kind, file in files.items()}
        for peer in peers.values():
            stack.callback(peer.close)
        answers = {kind: peer.ask("run") for kind, peer in peers.items()}
        taken: dict[str, list[float]] = {kind: [] for kind in peers}
        for _ in range(ROUNDS):
            for kind, peer in peers.items():
                taken[kind].append(peer.ask("time"))
    for kind in (OPEN, STATIC):
        apart = max(_apart(a, b) for a, b in zip(answers[kind], answers[ORT], strict=True))
        if apart > CLOSE:
            raise MeasureError(f"the {kind} build at {sizes} is off by {apart:.1e}", model.name)
    for suffix in (".so", ".jsonl"):
        Path(files[STATIC]).with_suffix(suffix).unlink()
    return {
        "seconds": {kind: statistics.median(times) for kind, times in taken.items()},
        "build": {k: b["seconds"] for k, b in built.items()}, "size": {k: b["size"] for k, b in built.items()},
    }  # fmt: skip


def _apart(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.abs(a - b).max() / (np.abs(b).max() or 1.0)) if b.size else 0.0


def _built(folder: Path, model: OpenModel, sizes: dict[str, int] | None, units: int) -> dict[str, Any]:
    """Return file, seconds and size of a build in a process of its own; a file that is there was built before."""
    own = "open" if sizes is None else "-".join(f"{k}{v}" for k, v in sizes.items())
    file = folder / f"{model.path.stem}.{own}.so"
    about = file.with_suffix(".jsonl")
    if file.exists() and (rows := read_lines(about)):
        return rows[-1]
    shapes = model.shapes(sizes) if sizes is not None else None
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_build, args=(str(model.path), shapes, str(file), units, theirs))
    process.start()
    theirs.close()
    try:
        told = ours.recv()
    except EOFError:
        raise MeasureError("the build ended without a word", model.name) from None
    process.join()
    if isinstance(told, str):
        raise MeasureError(told, model.name)
    row = {"file": str(file), "seconds": told[0], "size": file.stat().st_size, "left": told[1]}
    list(append_lines(about, [row]))
    return row


def _build(path: str, shapes: Any, file: str, units: int, pipe: Any) -> None:
    import warnings

    import roller_tvm
    from roller_tvm.tvm_env import import_relax_tvm

    warnings.simplefilter("ignore")
    try:
        import_relax_tvm("building")
        begun = time.perf_counter()
        model = roller_tvm.compile(path, shapes=shapes, threads=units)
        model.save(file)
        pipe.send((time.perf_counter() - begun, len(model.report().left_to_tvm)))
    except Exception as error:  # whatever it is, the process that asked tells it
        pipe.send(f"{type(error).__name__}: {error}")


class _Peer:
    """A process of its own that runs one implementation, stopped while another has its turn."""

    def __init__(self, kind: str, file: str, inputs: dict[str, np.ndarray], units: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._ours, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(kind, file, inputs, units, theirs))
        self._process.start()
        theirs.close()

    def ask(self, what: str) -> Any:
        """Return the answers ("run"), or the seconds of a run ("time")."""
        os.kill(self._process.pid or 0, signal.SIGCONT)
        self._ours.send(what)
        answer = self._ours.recv()
        os.kill(self._process.pid or 0, signal.SIGSTOP)
        if isinstance(answer, str):
            raise MeasureError(answer, "dynamic")
        return answer

    def close(self) -> None:
        self._process.kill()
        self._process.join()


def _serve(kind: str, file: str, inputs: dict[str, np.ndarray], units: int, pipe: Any) -> None:
    run: Callable[[], Any] | None = None
    number = 0
    while True:
        what = pipe.recv()
        try:
            run = run or _opened(kind, file, inputs, units)
            if what == "run":
                pipe.send([np.asarray(a) for a in run()])
                continue
            with pinned_calling_thread() if kind != ORT else contextlib.nullcontext():
                number = number or runs_to_fill(run, ROUND_S)
                run()
                begun = time.perf_counter()
                for _ in range(number):
                    run()
                pipe.send((time.perf_counter() - begun) / number)
        except Exception as error:  # of TVM, onnx or us: the table tells it
            pipe.send(f"{kind}: {type(error).__name__}: {error}")


def _opened(kind: str, file: str, inputs: dict[str, np.ndarray], units: int) -> Callable[[], Any]:
    if kind == ORT:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = units, 1
        session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        return lambda: session.run(None, inputs)
    import roller_tvm

    model = roller_tvm.load(file, threads=units)
    set_threads(units)
    return lambda: model.run(inputs)


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
