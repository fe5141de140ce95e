#!/usr/bin/env python3
"""Compile the paper's operators by the plans of today, on both lines, and write benchmarks/ anew.

    python python/compile_all.py                     # goes on where it was; --top 1 first, more later
    python python/compile_all.py --only a100,relax_h200

Runs compile_operators.py in the environment of either line, one after the other (no GPU; minutes each), then
resources.py: compiled_*.jsonl.gz, compiled_operators.txt (totals), resources.txt (a line an operator). Until then all
lies under build/compiled/, by the state of the code that plans and by compiler: with another it begins anew. Nothing is
written of runs of which one did not end as it should.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from compiling import read_results, summary  # noqa: E402
from resources import architectures, report  # noqa: E402

BENCHMARKS = ROOT / "benchmarks"
#: What plans and their kernels follow from, of the package and beside this script.
CODE = ("expr", "device", "plan", "model", "lower", "te", "tir", "relay", "toolchain")
SCRIPTS = ("compiling.py", "compile_operators.py", "roller_osdi22_operators.csv")


@dataclass(frozen=True)
class Run:
    """One of compile_operators.py.

    Parameters
    ----------
    name : str
        Of its file.
    line : str
        'relay' or 'relax'.
    options : str
    """

    name: str
    line: str
    options: str

    def command(self, top: int, out: Path | str) -> str:
        """As it is typed."""
        return f".venv/{self.line}/bin/python python/compile_operators.py {self.options} --top {top} --out {out}"


RUNS = (
    Run("a100", "relay", "--device a100 --archs sm_80"),
    Run("h200", "relay", "--device h200 --archs sm_90"),
    Run("t4", "relay", "--device t4 --archs sm_75"),
    Run("relax_a100", "relax", "--device a100 --archs sm_80"),
    Run("relax_h200", "relax", "--device h200 --archs sm_90"),
    Run("relax_a100_float16", "relax", "--device a100 --archs sm_80 --dtype float16 --only C,M"),
    Run("relax_h200_float16", "relax", "--device h200 --archs sm_90 --dtype float16 --only C,M"),
)


def state(root: Path) -> str:
    """A digest of the code that plans.

    Examples
    --------
    >>> state(ROOT) == state(ROOT), len(state(ROOT))
    (True, 12)
    """
    folders = [root / "roller_tvm" / name for name in CODE]
    found = [path for folder in folders for end in ("py", "toml") for path in sorted(folder.rglob(f"*.{end}"))]
    digest = hashlib.sha256()
    for path in (*found, *(root / "python" / name for name in SCRIPTS)):
        digest.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def compiler_of(line: str) -> str:
    """The CUDA compiler that a line's environment takes, such as 'nvrtc 12.9'."""
    ask = "from roller_tvm.toolchain import find_compilers; print(find_compilers()[0])"
    told = subprocess.run([f".venv/{line}/bin/python", "-c", ask], capture_output=True, text=True, cwd=ROOT, check=True)
    return told.stdout.split(" (")[0].strip()


def results_of(folder: Path, run: Run, compiler: str) -> Path:
    """Where the results of a run by a compiler are.

    Examples
    --------
    >>> results_of(Path("build"), RUNS[0], "nvrtc 12.9").as_posix()
    'build/nvrtc_12.9/a100.jsonl'
    """
    return folder / compiler.replace(" ", "_") / f"{run.name}.jsonl"


def tables(folder: Path, runs: Sequence[Run], top: int, compilers: Mapping[str, str]) -> tuple[str, str]:
    """(totals of every run, a line an operator and how the errors lie) of what is in a folder."""
    totals, lines = [], []
    for run in runs:
        path = results_of(folder, run, compilers[run.line])
        results = read_results(path)
        totals.append(f"{run.command(top, path.name)}    ({compilers[run.line]})\n{summary(results)}")
        lines += [f"{run.name}\n{report(results, arch, False)}" for arch in architectures(results)]
    return "\n\n".join(totals) + "\n", "\n\n".join(lines) + "\n"


def write(folder: Path, benchmarks: Path, runs: Sequence[Run], top: int, compilers: Mapping[str, str]) -> None:
    """What is kept, from what is in a folder; `compilers` of each line."""
    totals, lines = tables(folder, runs, top, compilers)
    (benchmarks / "compiled_operators.txt").write_text(totals, encoding="utf-8")
    (benchmarks / "resources.txt").write_text(lines, encoding="utf-8")
    for run in runs:
        packed = gzip.compress(results_of(folder, run, compilers[run.line]).read_bytes(), mtime=0)
        (benchmarks / f"compiled_{run.name}.jsonl.gz").write_bytes(packed)


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--top", type=int, default=2, help="plans of each operator; default 2")
    parser.add_argument("--only", default="", help=f"some of {', '.join(r.name for r in RUNS)}; writes no tables")
    args = parser.parse_args(words)
    folder = ROOT / "build" / "compiled" / state(ROOT)
    wanted = [name for name in args.only.split(",") if name]
    runs = [run for run in RUNS if not wanted or run.name in wanted]
    compilers = {line: compiler_of(line) for line in dict.fromkeys(run.line for run in runs)}
    failed = []
    for run in runs:
        out = results_of(folder, run, compilers[run.line])
        out.parent.mkdir(parents=True, exist_ok=True)
        command = run.command(args.top, out)
        print(command, flush=True)
        if subprocess.run(command.split(), cwd=ROOT).returncode:
            failed.append(run.name)
    if failed:
        print(f"not as they should be: {', '.join(failed)}; no tables are written", file=sys.stderr)
    elif not wanted:
        write(folder, BENCHMARKS, RUNS, args.top, compilers)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
