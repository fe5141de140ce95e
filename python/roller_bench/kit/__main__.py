"""Prepare the GPU kit: a folder with every kernel compiled, for a machine with a card and nothing else installed.

    python -m roller_bench.kit [--out build/gpu-kit] [--only C0,M1] [--dtypes float32,float16] [--jobs 2]

Needs a TVM of the Relax line and NVRTC or nvcc (the older its CUDA, the older the drivers may be); no GPU. Files that
this code has made already are kept, so an interrupted run resumes. Afterwards, on the other machine:
python3 gpu-kit/gpu_kit.py --out results
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

from roller_bench.kit.build import attempt, build_support, copy_runner
from roller_bench.kit.cases import FAMILIES, Case, all_cases, fair
from roller_bench.kit.options import DEVICES, Options, state
from roller_bench.kit.verify import verify
from roller_tvm.errors import RollerError, UsageError

HERE = Path(__file__).resolve().parent
#: Root of the sources.
ROOT = HERE.parents[2]
MIB = 1 << 20
#: What the folder may take.
MOST_MIB = 60


def size(folder: Path) -> int:
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu-kit", help="default %(default)s")
    parser.add_argument("--archs", default=",".join(DEVICES), help="architectures, with commas; default %(default)s")
    parser.add_argument("--dtypes", default=",".join(FAMILIES), help="types, with commas; default %(default)s")
    parser.add_argument("--only", default="", help="choose operators by id, with commas; default all")
    parser.add_argument("--top", type=int, default=10, help="plans per operator; default 10")
    parser.add_argument("--spread", action="store_true",
                        help="draw the plans from all candidates, to see where the model errs, not the best ones")
    parser.add_argument("--compiler", default="auto", choices=("auto", "nvrtc", "nvcc"))
    parser.add_argument("--sources", default="best", choices=("none", "best", "all"),
                        help="plans whose CUDA C++ is kept; default best")
    parser.add_argument("--keep", action="store_true", help="keep files that other code or another compiler made")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="number of processes; default all CPUs")
    parser.add_argument("--check", action="store_true", help="make nothing; read back and check an existing kit")
    args = parser.parse_args()
    archs = args.archs.split(",")
    try:
        if args.check:
            return 1 if read_back(args.out) else 0
        if strange := [a for a in archs if a not in DEVICES]:
            raise UsageError(f"no plans are made for {strange[0]!r}", "--archs", f"choose from {', '.join(DEVICES)}")
        only = [i for i in args.only.split(",") if i]
        cases = fair(all_cases(ROOT / "python" / "roller_osdi22_operators.csv", args.dtypes.split(","), only))
        options = Options(args.top, args.compiler, args.sources, args.spread, args.keep)
        args.out.mkdir(parents=True, exist_ok=True)
        for arch in archs:
            build_support(args.out, arch, options)
        copy_runner(args.out, HERE / "gpu_kit.py")
        compiler = state(options).split(",")[0]
        print(f"compiled by {compiler}: for drivers of CUDA {compiler.split()[-1].split('.')[0]} and later")
    except RollerError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return make_all(args.out, [(case, arch) for case in cases for arch in archs], options, args.jobs)


def make_all(kit: Path, todo: list[tuple[Case, str]], options: Options, jobs: int) -> int:
    """Make every file, printing a line of progress for each; return the exit code."""
    start, failed, plans = time.perf_counter(), 0, 0
    print(f"{'':>9}  {'operator':<14} {'arch':<6} {'plans':>5} {'dropped':>7} {'seconds':>8} {'left':>7} {'MiB':>6}")
    with ProcessPoolExecutor(max(1, min(jobs, len(todo))), mp_context=get_context("spawn")) as pool:
        waiting = [pool.submit(attempt, kit, case, arch, options) for case, arch in todo]
        for number, done in enumerate(as_completed(waiting), 1):
            case, arch, count, dropped, error, seconds = done.result()
            spent = time.perf_counter() - start
            left = spent / number * (len(todo) - number)
            print(f"{number:>4}/{len(todo):<4}  {case!s:<14} {arch:<6} {count:>5} {len(dropped):>7} {seconds:>8.1f} "
                  f"{left / 60:>5.0f} m {size(kit) / MIB:>6.1f}", flush=True)  # fmt: skip
            if error:
                failed += 1
                print(f"           {error}", flush=True)
            plans += count
    wrong = read_back(kit)
    total, minutes = size(kit) / MIB, (time.perf_counter() - start) / 60
    print(f"{len(todo) - failed} of {len(todo)} files, {plans} plans, {total:.1f} MiB in {kit} ({minutes:.1f} min)")
    if total > MOST_MIB:
        print(f"that is more than {MOST_MIB} MiB: take --sources none, fewer --dtypes or a smaller --top")
    return 1 if failed or wrong or total > MOST_MIB else 0


def read_back(kit: Path) -> int:
    """Read every file again; return the number of problems."""
    count, wrong = verify(kit)
    print(f"{count} cubins read back, {len(wrong)} of them not as they should be")
    for problem in wrong:
        print(f"  {problem}")
    return len(wrong)


if __name__ == "__main__":
    raise SystemExit(main())
