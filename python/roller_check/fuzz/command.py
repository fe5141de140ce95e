"""``python -m roller_check fuzz``: random models, judged one after the other; the results are a file of JSON lines.

    python -m roller_check fuzz --seed 1000 --models 500 --results fuzz.jsonl     # again: goes on where it ended
    python -m roller_check fuzz --seed 1234 --models 1 --keep folder              # one model, and the model file
    python -m roller_check fuzz --cuda --models 500 --results fuzz-cuda.jsonl   # kernels for GPUs (Relax line)
    python -m roller_check fuzz --times --models 200            # speed of the models' runs, beside plain TVM's
    python -m roller_check fuzz --history benchmarks/fuzz.jsonl --models 0      # the counts of all runs so far

Exit code 1 if a model was wrong, crashed, failed or was slow to build where plain TVM was not.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from roller_check.fuzz import history
from roller_check.fuzz.judge import LIMIT_S, OUTCOMES, WORKER, Verdict, judge, judge_cuda, judge_times
from roller_check.fuzz.shrink import shrunk
from roller_check.fuzz.ways import Ways
from roller_tvm.tuning.supervise import Worker
from roller_tvm.tvm_env import line

#: Outcomes that are failures.
BAD = ("wrong", "crash", "error", "slow build")
Judge = Callable[..., Verdict]
#: Models after which the worker process starts anew.
FRESH = 200


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="roller_check fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, help="the first model's; by default the time")
    parser.add_argument("--models", type=int, default=100, help="default 100")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no model after this time")
    parser.add_argument("--threads", type=int, default=2, help="threads of TVM's pool; default 2")
    parser.add_argument("--cuda", action="store_true", help="kernels for GPUs: small ones executed, all compiled")
    parser.add_argument("--times", action="store_true", help="only time runs on one thread, ours and plain TVM's")
    parser.add_argument("--results", type=Path, metavar="FILE", help="JSON lines; seeds that it has are not run again")
    parser.add_argument("--history", type=Path, metavar="FILE", help="add the counts of new models to this file")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="write the models that fail, shrunk, to it")
    args = parser.parse_args(words)
    first, count, start = int(time.time()) if args.seed is None else args.seed, Counter[str](), time.monotonic()
    done, new, used, begin, last = _done(args.results), Counter[str](), Counter[str](), first, first
    os.environ.setdefault("TVM_THREAD_POOL_SPIN_COUNT", "0")  # idle threads' turns would count as time of a build
    worker = Worker(args.threads, WORKER)
    print(f"line {line()}, seeds {first} to {first + args.models - 1}", flush=True)
    try:
        for number, seed in enumerate(range(first, first + args.models)):
            if seed in done or time.monotonic() - start > args.seconds:
                count.update([done[seed]] if seed in done else [])
                continue
            if number % FRESH == FRESH - 1:
                worker.kill()
            row = one(seed, worker, args.keep, judge_times if args.times else judge_cuda if args.cuda else judge)
            count[row["outcome"]] += 1
            used.update(row["used"])
            begin = seed if not new else begin
            new[row["outcome"]] += 1
            last = seed
            if args.results:
                with args.results.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
            if row["outcome"] in (*BAD, "slower"):
                print(f"seed {seed}: {row['outcome']}: {row['told']} [{' '.join(row['nodes'])}]", flush=True)
    finally:
        worker.kill()
        if args.history and new:
            history.added(args.history, history.key("cuda" if args.cuda else line() or ""), begin, last, new)
    for kind, sums in history.totals(args.history).items() if args.history else ():
        told = ", ".join(f"{sums[o]} {o}" for o in OUTCOMES if sums[o])
        print(f"all runs, {kind}: {sums['models']} models: {told}")
    print("new models by what their kernels are: " + ", ".join(f"{n} {kind}" for kind, n in used.most_common()))
    print(f"{sum(count.values())} models: " + ", ".join(f"{count[o]} {o}" for o in OUTCOMES if count[o]))
    return 1 if any(count[o] for o in BAD) else 0


def one(seed: int, worker: Worker, keep: Path | None = None, by: Judge = judge) -> dict[str, Any]:
    """Return the row of a seed: its outcome and, of a failure, the nodes that are left of it."""
    drawn = draw(seed, line() == "relax" and by is not judge_cuda, worker)
    if isinstance(drawn, Verdict):
        return {"line": line(), "seed": seed, **drawn.to_json(), "size": 0, "nodes": []}
    model, inputs = drawn
    judged = partial(by, ways=Ways.of_seed(seed))
    verdict = judged(model, inputs, worker)
    row = {"line": line(), "seed": seed, **verdict.to_json(), "size": len(model.graph.node), "nodes": []}
    if verdict.outcome in BAD:
        model, inputs = shrunk(model, inputs, lambda m, i: _as_bad(judged(m, i, worker), verdict))
        row["nodes"] = [node.op_type for node in model.graph.node]
        if keep is not None:
            import numpy as np

            keep.mkdir(parents=True, exist_ok=True)
            (keep / f"{line()}-{seed}.onnx").write_bytes(model.SerializeToString())
            np.savez(keep / f"{line()}-{seed}.npz", **inputs)  # type: ignore[arg-type,unused-ignore]
    return row


def draw(seed: int, opens: bool, worker: Worker) -> tuple[Any, dict[str, Any]] | Verdict:
    """Return the model of a seed; a verdict if onnxruntime, which computes its values, fails or has no end."""
    from onnx import load_model_from_string

    reply = worker.call("draw", (seed, opens), LIMIT_S)
    if not reply.ok:
        return Verdict("no truth", f"onnxruntime: {reply.text}")
    return load_model_from_string(reply.value[0]), reply.value[1]


def _as_bad(found: Verdict, first: Verdict) -> bool:
    return found.outcome == first.outcome


def _done(results: Path | None) -> dict[int, str]:
    if results is None or not results.is_file():
        return {}
    rows = [json.loads(text) for text in results.read_text(encoding="utf-8").splitlines() if text.endswith("}")]
    return {row["seed"]: row["outcome"] for row in rows if row["line"] == line()}
