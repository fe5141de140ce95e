"""The paper's 119 operators compiled on both lines, and the files of benchmarks/ written anew."""

from __future__ import annotations

import argparse
import gzip
import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from roller_bench.figures import OPERATORS, ROOT, names
from roller_bench.figures.resources import architectures, read_results, report, summary
from roller_tvm.codegen.compilers import NVRTC_REMEDY
from roller_tvm.errors import ToolchainError, UsageError

BENCHMARKS = ROOT / "benchmarks"
#: Environment in which the code of this checkout runs.
HERE = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'python'}"}
#: Folders of the code that results follow from.
CODE = ("roller_tvm", "python/roller_bench/figures")


def compile_all(parser: argparse.ArgumentParser) -> None:
    """Compile the paper's 119 operators by today's plans, on both lines, and write benchmarks/ anew.

        .venv/relay/bin/python -m roller_bench compile-all                          # every run, then the tables
        .venv/relay/bin/python -m roller_bench compile-all --only a100,relax_h200   # some runs, no tables

    Needs `make venv` (both environments, with NVRTC), minutes per run, and no GPU. A run is compile-operators in the
    environment of its line. An interrupted run resumes; with a larger --top it compiles the missing plans.

    Written to benchmarks/: compiled_operators.txt (totals of each run), resources.txt (a line per operator with
    predicted and compiled resources, and the distribution of errors), compiled_RUN.jsonl.gz (all compiled plans). Until
    every run has succeeded, results are in build/compiled/CODE/COMPILER/; CODE is a digest of this package's code, so
    other code begins anew.

    Exit codes: 0 written (with --only: compiled), 1 a run failed or no compiler is here, 2 no such run.
    """
    parser.add_argument("--top", type=int, default=2, help="plans per operator; default 2")
    parser.add_argument("--only", default="", metavar="RUNS",
                        help=f"run only some of {', '.join(NAMES)}; writes no tables")
    parser.set_defaults(run=_run)


@dataclass(frozen=True)
class Run:
    """One run of ``compile-operators``.

    Parameters
    ----------
    name : str
        Name of its file.
    line : str
        'relay' or 'relax'.
    options : str
    """

    name: str
    line: str
    options: str

    def command(self, top: int, out: Path | str) -> str:
        """Command line, as typed."""
        return f".venv/{self.line}/bin/python -m roller_bench compile-operators {self.options} --top {top} --out {out}"


RUNS = (
    Run("a100", "relay", "--device a100 --archs sm_80"),
    Run("h200", "relay", "--device h200 --archs sm_90"),
    Run("t4", "relay", "--device t4 --archs sm_75"),
    Run("relax_a100", "relax", "--device a100 --archs sm_80"),
    Run("relax_h200", "relax", "--device h200 --archs sm_90"),
    Run("relax_a100_float16", "relax", "--device a100 --archs sm_80 --dtype float16 --only C,M"),
    Run("relax_h200_float16", "relax", "--device h200 --archs sm_90 --dtype float16 --only C,M"),
)
NAMES = [run.name for run in RUNS]


def state(root: Path) -> str:
    """Return a digest of the code that plans, generates and compiles kernels.

    Examples
    --------
    >>> state(ROOT) == state(ROOT), len(state(ROOT))
    (True, 12)
    """
    files = sorted(p for end in ("py", "toml") for folder in CODE for p in (root / folder).rglob(f"*.{end}"))
    digest = hashlib.sha256()
    for path in (*files, root / OPERATORS.relative_to(ROOT)):
        digest.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def compiler_of(line: str) -> str:
    """Return the CUDA compiler of a line's environment, such as 'nvrtc 12.9'.

    Raises
    ------
    ToolchainError
        The environment is missing, or has no compiler.
    """
    python = ROOT / ".venv" / line / "bin/python"
    if not python.is_file():
        raise ToolchainError(f"the environment of the {line} line is missing", str(python), "make venv")
    ask = "from roller_tvm.codegen import find_compilers; print(*find_compilers()[:1])"
    done = subprocess.run([python, "-c", ask], capture_output=True, text=True, cwd=ROOT, env=HERE, check=True)
    if not (told := done.stdout.strip()):
        raise ToolchainError("neither NVRTC nor nvcc found to compile CUDA with", str(python), NVRTC_REMEDY)
    return told.split(" (")[0]


def results_of(folder: Path, run: Run, compiler: str) -> Path:
    """Return the path of the results of a run by a compiler.

    Examples
    --------
    >>> results_of(Path("build"), RUNS[0], "nvrtc 12.9").as_posix()
    'build/nvrtc_12.9/a100.jsonl'
    """
    return folder / compiler.replace(" ", "_") / f"{run.name}.jsonl"


def tables(folder: Path, runs: Sequence[Run], top: int, compilers: Mapping[str, str]) -> tuple[str, str]:
    """Return (totals of every run, the table of resources) for the results in a folder."""
    totals, lines = [], []
    for run in runs:
        path = results_of(folder, run, compilers[run.line])
        results = read_results(path)
        totals.append(f"{run.command(top, path.name)}    ({compilers[run.line]})\n{summary(results)}")
        lines += [f"{run.name}\n{report(results, arch, False)}" for arch in architectures(results)]
    return "\n\n".join(totals) + "\n", "\n\n".join(lines) + "\n"


def write(folder: Path, benchmarks: Path, runs: Sequence[Run], top: int, compilers: Mapping[str, str]) -> None:
    """Write the kept files from the results in a folder; `compilers` gives each line's compiler."""
    totals, lines = tables(folder, runs, top, compilers)
    (benchmarks / "compiled_operators.txt").write_text(totals, encoding="utf-8")
    (benchmarks / "resources.txt").write_text(lines, encoding="utf-8")
    for run in runs:
        packed = gzip.compress(results_of(folder, run, compilers[run.line]).read_bytes(), mtime=0)
        (benchmarks / f"compiled_{run.name}.jsonl.gz").write_bytes(packed)


def _run(args: argparse.Namespace) -> int:
    wanted = names(args.only)
    if strange := [name for name in wanted if name not in NAMES]:
        raise UsageError(f"no run is called {strange[0]!r}", "--only", f"runs: {', '.join(NAMES)}")
    runs = [run for run in RUNS if not wanted or run.name in wanted]
    compilers = {line: compiler_of(line) for line in dict.fromkeys(run.line for run in runs)}
    folder, failed = ROOT / "build" / "compiled" / state(ROOT), []
    for run in runs:
        out = results_of(folder, run, compilers[run.line])
        out.parent.mkdir(parents=True, exist_ok=True)
        command = run.command(args.top, out)
        print(command, flush=True)
        if subprocess.run(command.split(), cwd=ROOT, env=HERE).returncode:
            failed.append(run.name)
    if failed:
        print(f"not as they should be: {', '.join(failed)}; no tables are written", file=sys.stderr)
    elif not wanted:
        write(folder, BENCHMARKS, RUNS, args.top, compilers)
    return 1 if failed else 0
