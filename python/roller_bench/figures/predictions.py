"""Predicted beside measured times of the distinct operators of whole models, on this CPU."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from math import nan
from pathlib import Path
from typing import Any

import numpy as np

from roller_bench.figures import LEFT, append_lines, names, read_lines
from roller_bench.machine import commit, cpu_kind
from roller_bench.running import read_inputs
from roller_tvm.device import cpu_device
from roller_tvm.errors import RollerError
from roller_tvm.planner.predict_programs import geometry_of
from roller_tvm.stats import quantile, spearman
from roller_tvm.tvm_env.threads import set_threads

#: Seconds of a round, rounds, and which of the rounds counts: other programs only make kernels slower.
ROUND_S, ROUNDS, COUNTS = 0.002, 40, 0.1
#: Fewest plans whose ranks are compared, and the shortest kernel that is timed.
RANKED, SHORTEST_S = 5, 3e-6
#: Plans among which some are spread over predicted times, and the longest of these times over the least.
WIDE, SPREAD = 60, 2.0


def predictions(parser: argparse.ArgumentParser) -> None:
    """Compare predicted with measured times of models' operators: the best plan of each, and the ranks of the best ten.

        .venv/relax/bin/python -m roller_bench predictions --folder build/models --models regnet_y_400mf --seconds 300
        .venv/relax/bin/python -m roller_bench predictions --folder build/models --threads 1    # CPU time: loaded too

    Relax line, AVX-512 or AVX2 vectors as detected, without a matrix unit. The folder is that of the sub-command
    `models`. Each operator that no earlier model had is planned, built with random operands and timed, its plans in
    turns. Results are kept in the folder, by kind of CPU and number of threads; the same command goes on.

    The best ten are near ties. So more is told beside their rank correlation: that of the two halves of the rounds (no
    model can exceed it); Kendall's tau of pairs told apart (their times differ by more than their halves). All of it is
    told again for ten plans at equal distances of predicted time, from the least to twice the least.

    Run again and again, a kernel finds its operands where it has read them. In a network other kernels' weights have
    passed through the caches since, and other cores have written parts of the operands: ``--written`` has the cores
    copy as much as the caches hold, then write each operand's rows in equal shares, before each run, and times that
    run.
    """
    parser.add_argument("--folder", type=Path, default=Path("build/models"), help="default %(default)s")
    parser.add_argument("--models", type=names, help="only these; default: all ONNX files of the folder")
    parser.add_argument("--threads", type=int, help="default: all cores; 1 measures CPU time")
    parser.add_argument("--written", action="store_true", help="weights in memory, operands just written by the cores")
    parser.add_argument("--plans", type=int, default=10, help="plans of an operator; default %(default)s")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no operator after this time")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    from roller_tvm.device import default_cpu_target
    from roller_tvm.relax.devices import device_of
    from roller_tvm.relax.targets import make_target

    begun, threads = time.monotonic(), args.threads or cpu_device().units
    set_threads(threads)
    target = make_target(default_cpu_target(threads=threads))
    device = device_of(None, target)
    kind = cpu_kind(device, threads) + (", weights in memory, operands written by its cores" if args.written else "")
    file = args.folder / "predictions.jsonl"
    known = {r["key"]: r for r in read_lines(file) if r["cpu"] == kind}
    stems, finished = args.models or sorted(f.stem for f in args.folder.glob("*.onnx")), True

    def rows() -> Iterator[dict[str, Any]]:
        nonlocal finished
        for stem in stems:
            if time.monotonic() - begun > args.seconds:
                finished = False
                return
            for task in _tasks(args.folder, stem, target):
                if task.key in known:
                    continue
                if time.monotonic() - begun > args.seconds:
                    finished = False
                    return
                about = {"model": stem, "key": task.key, "name": task.name, "cpu": kind, "commit": commit()}
                yield {**about, **_times(task, device, target, args.plans, threads, args.written)}

    for row in append_lines(file, rows()):
        known[row["key"]] = row
    print(table([r for r in known.values() if r["model"] in stems]))
    return 0 if finished else LEFT


def _tasks(folder: Path, stem: str, target: Any) -> Any:
    """Return the distinct operators of a model, as they are scheduled."""
    from roller_tvm.relax import load_model, prepare
    from roller_tvm.relax.merged import MergeAxes
    from roller_tvm.relax.tasks import extract_tasks

    shapes = {n: list(a.shape) for n, a in read_inputs(folder / f"{stem}.npz").items()}
    mod = prepare(load_model(str(folder / f"{stem}.onnx"), shapes, None).mod, target)
    return extract_tasks(MergeAxes(target)(mod))


def _times(task: Any, device: Any, target: Any, plans: int, threads: int, written: bool) -> dict[str, Any]:
    """Return what was predicted of the best plans, and their seconds; under "spread", of plans further apart."""
    from roller_tvm.relax.candidates import make_candidates

    try:
        found = make_candidates(task.func, device, plans, task.constants, task.name)
        wide = make_candidates(task.func, device, WIDE, task.constants, task.name).plans
        chosen = [wide[n] for n in spread_over([c.ranked.seconds for c in wide], plans)]
        known = {candidate.steps for candidate in found.plans}
        others = [c for c in chosen if c.steps not in known]
        runs: dict[Any, Runs] = {}
        for candidate in (*found.plans, *others):
            with suppress(RollerError):  # steps that do not apply
                runs[candidate.steps] = _opened(
                    task.func, candidate.schedule().mod["main"], target, _rows(candidate) if written else {}, threads
                )
        if not runs:
            return {"reason": found.why_none()}
    except (RollerError, ValueError, RuntimeError) as error:  # TVM's own are of the last two
        return {"reason": str(error).splitlines()[0][:200]}
    rounds = _rounds(list(runs.values()), time.process_time if threads == 1 else time.perf_counter)
    columns = dict(zip(runs, map(list, zip(*rounds, strict=True)), strict=True))

    def timed(candidates: Sequence[Any]) -> dict[str, Any]:
        own = [(c, columns[c.steps]) for c in candidates if c.steps in columns]
        return {
            "predicted": [c.ranked.seconds for c, _ in own],
            "seconds": [quantile(taken, COUNTS) for _, taken in own],
            "halves": [[quantile(taken[half::2], COUNTS) for _, taken in own] for half in (0, 1)],
            "plans": [" ".join(str(c.ranked.plan.programs[-1]).split()) for c, _ in own],
        }

    return {**timed(found.plans), "spread": timed(chosen)}


@dataclass(frozen=True)
class Runs:
    """A kernel to run, and if anything is to happen before each timed run, that."""

    run: Callable[[], object]
    before: Callable[[], object] | None = None

    def taken(self, number: int, clock: Callable[[], float]) -> float:
        """Return the seconds of a run, the mean of `number`.

        The kernels timed before have left the caches to this one's first run: without `before`, it is not timed.
        """
        (self.before or self.run)()
        start = clock()
        for _ in range(number):
            self.run()
        return max((clock() - start) / number, 1e-9)

    def number(self, clock: Callable[[], float]) -> int:
        """Return how often to run in a round."""
        return 1 if self.before is not None else max(1, round(ROUND_S / self.taken(3, clock)))


def _rounds(runs: Sequence[Runs], clock: Callable[[], float]) -> list[list[float]]:
    """Return the seconds of each kernel, a row a round."""
    numbers = [run.number(clock) for run in runs]
    return [[run.taken(n, clock) for run, n in zip(runs, numbers, strict=True)] for _ in range(ROUNDS)]


def spread_over(predicted: Sequence[float], number: int) -> list[int]:
    """Return the places of plans at equal distances of predicted time, from the least to `SPREAD` times it.

    Examples
    --------
    >>> spread_over([1.0, 1.01, 1.02, 1.4, 1.6, 2.0, 9.0], 3)
    [0, 3, 5]
    """
    if not predicted:
        return []
    near = [n for n, seconds in enumerate(predicted) if seconds <= SPREAD * predicted[0]]
    step = (predicted[near[-1]] - predicted[0]) / max(1, number - 1)
    chosen: list[int] = []
    for k in range(min(number, len(near))):
        wanted = predicted[0] + k * step
        chosen.append(min((abs(predicted[n] - wanted), n) for n in near if n not in chosen)[1])
    return sorted(chosen)


def _rows(candidate: Any) -> dict[str, int]:
    """Return, by operand, the dimension of the rows that cores share: the first that the output has too."""
    found: dict[str, int] = {}
    for program in (plan := candidate.ranked.plan).programs:
        geometry = geometry_of(plan, program)
        for op in geometry.operands:
            shared = next((i for i in geometry.spatial if geometry.extents[i] > 1 and i in op.axes), None)
            if shared is not None and not plan.expression.tensors[op.name].constant:
                rows = next(d for d, dim in enumerate(op.dims) if shared in {a for a, _ in dim})
                for name in (op.name, *(source.tensor for source in op.sources)):  # a padded copy's rows are the same
                    found.setdefault(name, rows)
    return found


def _opened(func: Any, scheduled: Any, target: Any, rows: Mapping[str, int], threads: int) -> Runs:
    """Return what runs a kernel on random operands, its constants packed; cores write the operands that have `rows`."""
    import tvm

    from roller_tvm.relax.kernels import split_packing
    from roller_tvm.relax.pipeline import for_llvm
    from roller_tvm.tir.nodes import parameters

    rng = np.random.default_rng(0)
    arrays = [_array(rng, [int(e) for e in p.shape], str(p.dtype)) for p in parameters(func)]
    kernel, packed = split_packing(scheduled, dict(enumerate(arrays[:-1])), target)
    built = tvm.compile(for_llvm()(tvm.IRModule({"main": kernel.with_attr("global_symbol", "main")})), target)
    operands = [packed[n] for n in range(len(arrays) - 1)]
    call, held = built["main"], [*map(tvm.runtime.tensor, (*operands, arrays[-1]))]
    call(*held)
    writers = [
        (_writer(array.shape, str(array.dtype), rows[p.name], threads, target), tvm.runtime.tensor(array), held[n])
        for n, (p, array) in enumerate(zip(parameters(func), arrays[:-1], strict=False))
        if p.name in rows and operands[n].shape == array.shape and rows[p.name] < array.ndim
    ]

    def write() -> None:
        _passing(threads, target)()
        for writer, values, operand in writers:
            writer(values, operand)

    return Runs(lambda: call(*held), write if writers else None)


@cache
def _passing(threads: int, target: Any) -> Callable[[], object]:
    """Return what has all cores copy as much as their caches hold."""
    import tvm

    cpu = cpu_device()
    caches = sum(lv.capacity_bytes * (1 if lv.scope == "device" else cpu.units) for lv in cpu.levels[1:-1])
    shape = threads, int(caches) // threads // np.dtype(np.float32).itemsize
    copy = _writer(shape, "float32", 0, threads, target)
    held = [tvm.runtime.tensor(np.zeros(shape, np.float32)) for _ in range(2)]
    return lambda: copy(*held)


@cache
def _writer(shape: tuple[int, ...], dtype: str, rows: int, threads: int, target: Any) -> Callable[..., object]:
    """Return a kernel that copies a tensor, the rows of each core by that core."""
    import tvm
    from tvm import te

    source = te.placeholder(shape, dtype, name="source")
    func = te.create_prim_func([source, te.compute(shape, lambda *at: source(*at), name="copy")])
    schedule = tvm.s_tir.Schedule(func)
    loops = schedule.get_loops(schedule.get_sblock("copy"))
    own, rest = schedule.split(loops[rows], [threads, None])
    schedule.reorder(own, *loops[:rows], rest)
    schedule.parallel(own)
    return tvm.compile(schedule.mod, target)["main"]


def _array(rng: np.random.Generator, shape: list[int], dtype: str) -> np.ndarray:
    return (rng.standard_normal(shape) if "float" in dtype else np.zeros(shape)).astype(dtype)


def told_apart(row: Mapping[str, Any]) -> float:
    """Return Kendall's tau of prediction and time, of pairs whose times differ by more than their halves; nan for few.

    Examples
    --------
    >>> halves = [[1.0, 1.1, 2.0, 3.0], [1.1, 1.0, 2.1, 3.1]]
    >>> told_apart({"predicted": [1, 2, 3, 3], "seconds": halves[0], "halves": halves})
    0.8
    """
    one, other = row["halves"]
    pairs = [
        (row["predicted"][a] - row["predicted"][b]) * (row["seconds"][a] - row["seconds"][b])
        for a, b in combinations(range(len(one)), 2)
        if abs(row["seconds"][a] - row["seconds"][b]) > abs(one[a] - other[a]) + abs(one[b] - other[b])
    ]
    return sum((p > 0) - (p < 0) for p in pairs) / len(pairs) if len(pairs) >= RANKED else nan


def orders(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a line on the orders of operators' plans: predicted, the highest that can be, of pairs told apart.

    Examples
    --------
    >>> halves = [[1.0, 1.1, 2.0, 3.0, 4.0], [1.1, 1.0, 2.1, 3.1, 4.1]]
    >>> orders([{"predicted": [1, 2, 3, 4, 5], "seconds": halves[0], "halves": halves}])
    'rank correlation 1.00 (halves of the rounds 0.90), of pairs told apart 1.00; 1, 1 and 1 operators, medians'
    """
    several = [r for r in rows if len(r["seconds"]) >= RANKED]
    found = [
        [v for v in values if v == v]
        for values in (
            [spearman(r["predicted"], r["seconds"]) for r in several],
            [spearman(*r["halves"]) for r in several],
            [told_apart(r) for r in several],
        )
    ]
    ranked, most, apart = (f"{statistics.median(v):.2f}" if v else "none" for v in found)
    counts = f"{len(found[0])}, {len(found[1])} and {len(found[2])} operators, medians"
    return f"rank correlation {ranked} (halves of the rounds {most}), of pairs told apart {apart}; {counts}"


def table(rows: list[dict[str, Any]]) -> str:
    """Return a line an operator, the most wrongly predicted first, and what holds of all.

    Examples
    --------
    >>> row = {"model": "net", "name": "dense", "predicted": [9e-5, 1e-4], "seconds": [1e-4, 2e-4], "plans": ["", ""]}
    >>> print(table([row]).splitlines()[1])
    predicted over measured: 0.90 at the median (quarter 0.90, three quarters 0.90); off by 10% at the median
    """
    timed = [r for r in rows if r.get("seconds") and r["seconds"][0] >= SHORTEST_S]
    ratio = {id(r): r["predicted"][0] / r["seconds"][0] for r in timed}
    ranks = {id(r): spearman(r["predicted"], r["seconds"]) if len(r["seconds"]) >= RANKED else nan for r in timed}
    lost = {id(r): r["seconds"][0] / min(r["seconds"]) for r in timed}
    lines = [
        f"{r['model']:<16} {r['seconds'][0] * 1e6:9.1f} us  predicted/measured {ratio[id(r)]:5.2f}  "
        f"ranks {ranks[id(r)]:5.2f}  best of {len(r['seconds']):>2} {lost[id(r)]:4.2f} times as fast  {r['name']}  "
        f"{r['plans'][0][:90]}"
        for r in sorted(timed, key=lambda r: abs(ratio[id(r)] - 1), reverse=True)
    ]  # fmt: skip
    if not timed:
        return "no operator was timed"
    every = list(ratio.values())
    off = statistics.median(abs(value - 1) for value in every)
    lines.append(
        f"predicted over measured: {statistics.median(every):.2f} at the median (quarter {quantile(every, 0.25):.2f}, "
        f"three quarters {quantile(every, 0.75):.2f}); off by {off:.0%} at the median"
    )
    best = statistics.median(lost.values())
    lines.append(f"{len(timed)} operators; the first plan takes {best:.2f} of the best's time at the median")
    lines.append(f"best plans: {orders([r for r in timed if 'halves' in r])}")
    lines.append(f"plans up to {SPREAD:g} times as long: {orders([r['spread'] for r in timed if 'spread' in r])}")
    return "\n".join(lines)
