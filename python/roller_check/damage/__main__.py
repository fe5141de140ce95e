"""Damage files and count what the readers make of them.

    python -m roller_check faults --inputs 1000                      # each reader, from seed 0
    python -m roller_check faults --inputs 100000 --out faults.json  # goes on where an earlier run stopped

Exit code 1 if there was a traceback, a hang, a wrong answer or a silent loss.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from roller_tvm.tvm_env import line

from .readers import READERS
from .run import Tally, load, run, save

#: Readers that hand on to TVM; of databases and Ansor's records those of the line that is here.
WITH_TVM = "onnx, module, ansor-build, database:FILE"
#: Inputs between two writings of the counts.
STEP = 500


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="roller_check faults", description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=200, metavar="N", help="damaged inputs, each reader; default 200")
    parser.add_argument("--readers", help=f"some among {', '.join(READERS)}, and with TVM {WITH_TVM}; default all")
    parser.add_argument("--seed", type=int, default=0, help="first seed; default 0")
    parser.add_argument("--minutes", type=float, default=600.0, help="stop after so long; default 600")
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="keep the counts here, and go on from them")
    args = parser.parse_args(words)
    tallies = load(args.out) if args.out else {}
    until = time.monotonic() + 60 * args.minutes
    with_tvm = _with_tvm()
    for name in args.readers.split(",") if args.readers else [*READERS, *with_tvm]:
        kept = f"{name} ({line()})" if name in with_tvm else name
        tally = tallies.setdefault(kept, Tally(kept))
        while tally.inputs < args.inputs and time.monotonic() < until:
            first = args.seed + tally.inputs
            seeds = range(first, first + min(STEP, args.inputs - tally.inputs))
            if name in with_tvm:
                from .apart import run_apart

                run_apart(with_tvm[name], seeds, tally, until)
            else:
                run(name, seeds, tally, until)
            if args.out:
                save(args.out, tallies)
        print(tally, flush=True)
        for fault in tally.faults[:3]:
            print(f"  seed {fault['seed']}, {fault['rule']}: {fault['kind']}: {fault['text'].strip().splitlines()[-1]}")
    total, faults = (sum(n) for n in zip(*((t.inputs, len(t.faults)) for t in tallies.values()), strict=True))
    print(f"{total} damaged inputs, {faults} faults")
    return 1 if faults else 0


def _with_tvm() -> dict[str, Any]:
    """Return the readers that need TVM, of the line that is here."""
    if line() is None:
        return {}
    from .tvm_readers import readers

    return readers()


if __name__ == "__main__":
    sys.exit(main())
