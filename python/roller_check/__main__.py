"""Execute every GPU kernel of a model on this CPU, without a GPU: accesses checked, results compared (Relax line).

    python -m roller_check model.onnx                       # for sm_80
    python -m roller_check model.onnx --arch sm_90 --budget 10 --json checked.json
    python -m roller_check fuzz --help                      # random models instead, either line
    python -m roller_check faults                           # damaged files
    python -m roller_check ended                            # commands that are killed or interrupted
    python -m roller_check poor                             # commands without disk space, memory, a compiler, a home
    python -m roller_check ulp                              # errors of exp, erf, tanh, sigmoid and log

Functions that would take longer than the budget are run in part. Exit code 1 if a kernel is wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from roller_tvm.errors import RollerError, WrongAnswer

#: What the rows are counted by.
RIGHT, WRONG, NOT_RUN = "right", "WRONG", "not executed"


def main(words: list[str] | None = None) -> int:
    words = sys.argv[1:] if words is None else words
    if words[:1] == ["faults"]:
        from roller_check.damage.__main__ import main as faults

        return faults(words[1:])
    if words[:1] == ["ended"]:
        from roller_check.damage.ended import main as ended

        return ended(words[1:])
    if words[:1] == ["poor"]:
        from roller_check.damage.poor import main as poor

        return poor(words[1:])
    if words[:1] == ["fuzz"]:
        from roller_check.fuzz.command import main as fuzz

        return fuzz(words[1:])
    if words[:1] == ["ulp"]:
        from roller_check.ulp import main as ulp

        return ulp(words[1:])
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("FILE", type=Path, help="model: ONNX, .pt2, or Relax as JSON")
    parser.add_argument("--arch", default="sm_80", help="architecture of the kernels; default sm_80")
    parser.add_argument("--budget", type=float, default=2.0, metavar="SECONDS", help="time per function; default 2")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the findings to this file")
    args = parser.parse_args(words)

    from roller_check.relax_plans import check_module
    from roller_tvm.relax.importers import load_model
    from roller_tvm.relax.pipeline import prepare
    from roller_tvm.relax.schedule import ScheduleWithRoller
    from roller_tvm.relax.targets import make_target

    target = make_target({"kind": "cuda", "arch": args.arch})
    before = prepare(load_model(args.FILE).mod, target)
    pass_: Any = ScheduleWithRoller(target)
    after = pass_(before)
    found, start = [], time.perf_counter()
    for note in pass_.report.scheduled:
        results = check_module(before, after, target, args.budget, names=[note.name])
        for name, result in results.items():
            state = WRONG if isinstance(result, WrongAnswer) else NOT_RUN if isinstance(result, RollerError) else RIGHT
            found.append({"function": name, "recipe": note.recipe, "state": state, "said": str(result)})
            print(f"{name}: {note.recipe}: {result}", flush=True)
    count = {state: sum(row["state"] == state for row in found) for state in (RIGHT, WRONG, NOT_RUN)}
    print(f"{args.FILE.name}: {len(found)} functions, {count[RIGHT]} right, {count[WRONG]} wrong, {count[NOT_RUN]} not "
          f"executed, {len(pass_.report.left)} not scheduled ({time.perf_counter() - start:.0f} s)")  # fmt: skip
    for note in pass_.report.left:
        print(f"  {note}")
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return WrongAnswer.exit_code if count[WRONG] else 0


if __name__ == "__main__":
    sys.exit(main())
