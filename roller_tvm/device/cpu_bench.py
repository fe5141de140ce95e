"""Compiles and runs the micro-benchmarks of `cpu_profile.c`: requests in, rates of every repeat out."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("cpu_profile.c")
#: -march=native is what x86 compilers understand, -mcpu=native what Arm ones do.
FLAGS = (("-O3", "-march=native"), ("-O3", "-mcpu=native"))


class CannotProfile(Exception):
    """The benchmarks could not be compiled or run, or gave nonsense; the text says why."""


@dataclass(frozen=True)
class Request:
    """One measurement: `kind` as in cpu_profile.c, on `threads` threads that each hold `bytes`."""

    kind: str
    threads: int = 1
    bytes: int = 0
    budget_ms: int = 100
    repeats: int = 40

    def line(self) -> str:
        """The request as the program reads it."""
        return f"{self.kind} {self.threads} {self.bytes} {self.budget_ms} {self.repeats}\n"


#: Work per nanosecond (GFLOP/s, GB/s, steps/ns) of every repeat of every request; empty for an unknown kind.
Rates = dict[Request, list[float]]
Runner = Callable[[Sequence[Request]], Rates]


def find_compiler() -> str | None:
    """The system's C compiler: $CC, cc, gcc or clang."""
    for name in (os.environ.get("CC", ""), "cc", "gcc", "clang"):
        found = shutil.which(name) if name else None
        if found:
            return found
    return None


def compile_benchmarks(folder: Path, vector_bytes: int, compiler: str | None = None) -> Path:
    """Build the program into `folder`; CannotProfile with the compiler's words if that fails."""
    compiler = compiler or find_compiler()
    if compiler is None:
        raise CannotProfile("no C compiler found (apt install gcc, or set CC)")
    program = folder / "cpu_profile"
    said = ""
    for flags in FLAGS:
        command = [
            compiler,
            *flags,
            f"-DVECTOR_BYTES={vector_bytes}",
            str(SOURCE),
            "-o",
            str(program),
            "-pthread",
        ]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        except (OSError, subprocess.TimeoutExpired) as err:
            raise CannotProfile(f"{compiler} did not run: {err}") from err
        if done.returncode == 0:
            return program
        said = (done.stderr.strip().splitlines() or ["no message"])[0]
    raise CannotProfile(f"{compiler} could not compile the benchmarks: {said}")


def parse_output(text: str, requests: Sequence[Request]) -> Rates:
    """Rates from the lines that the program printed."""
    rates: Rates = {request: [] for request in requests}
    for line in text.splitlines():
        words = line.split()
        try:
            number, work, nanoseconds = int(words[0]), float(words[1]), float(words[2])
            request = requests[number]
        except (IndexError, ValueError) as err:
            raise CannotProfile(f"the benchmarks printed {line!r}") from err
        if nanoseconds > 0:
            rates[request].append(work / nanoseconds)
    return rates


class NativeRunner:
    """Compiles once, then runs requests in a process of their own with a time limit.

    `cpus` are the CPUs to use, those of different cores first; none leaves placing to the system.  Use as a
    context manager, so that the program's folder goes away.
    """

    def __init__(self, vector_bytes: int, cpus: Sequence[int] = ()) -> None:
        self._cpus = [str(cpu) for cpu in cpus]
        self._folder = tempfile.TemporaryDirectory(prefix="roller-cpu-")
        try:
            self._program = compile_benchmarks(Path(self._folder.name), vector_bytes)
        except BaseException:
            self._folder.cleanup()
            raise

    def __enter__(self) -> NativeRunner:
        return self

    def __exit__(self, *exc: object) -> None:
        self._folder.cleanup()

    def __call__(self, requests: Sequence[Request]) -> Rates:
        # Starting threads and touching memory comes on top of the budgets.
        limit = 10 + 3 * sum(r.budget_ms for r in requests) / 1000
        try:
            done = subprocess.run(
                [str(self._program), *self._cpus],
                input="".join(r.line() for r in requests),
                capture_output=True,
                text=True,
                timeout=limit,
                check=False,
            )
        except subprocess.TimeoutExpired as err:
            raise CannotProfile(f"the benchmarks took more than {limit:.0f} s") from err
        except OSError as err:
            raise CannotProfile(f"the benchmarks did not run: {err}") from err
        if done.returncode != 0:
            raise CannotProfile(f"the benchmarks ended with code {done.returncode}")
        return parse_output(done.stdout, requests)
