"""Compile and run the micro-benchmarks of `cpu_profile.c`: requests in, rates of every repeat out."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from roller_tvm.device.profile import run_program
from roller_tvm.device.rates import Rates, Request
from roller_tvm.errors import ProfileError
from roller_tvm.folders import work_folder

SOURCE = Path(__file__).with_name("cpu_profile.c")
#: x86 compilers understand -march=native, Arm compilers -mcpu=native.
FLAGS = (("-O3", "-march=native"), ("-O3", "-mcpu=native"))
WHERE = "profile of the CPU"
REPORT = "report this, with the CPU's model"


def find_compiler() -> str | None:
    """Return the system's C compiler ($CC, cc, gcc or clang), or None."""
    for name in (os.environ.get("CC", ""), "cc", "gcc", "clang"):
        found = shutil.which(name) if name else None
        if found:
            return found
    return None


def compile_benchmarks(
    folder: Path, vector_bytes: int, compiler: str | None = None, choices: Sequence[Sequence[str]] = FLAGS
) -> Path:
    """Build the program into `folder` with the first choice of flags that works, and return its path.

    Raises
    ------
    ProfileError
        With the compiler's message.
    """
    compiler = compiler or find_compiler()
    if compiler is None:
        raise ProfileError("no C compiler found", WHERE, "apt install gcc, or set CC")
    program = folder / "cpu_profile"
    said = ""
    for flags in choices:
        command = [compiler, *flags, f"-DVECTOR_BYTES={vector_bytes}", str(SOURCE), "-o", str(program), "-pthread"]
        if not (said := complaint(command)):
            return program
    remedy = "set CC to a compiler that makes code for this CPU"
    raise ProfileError(f"{compiler} could not compile the benchmarks: {said}", WHERE, remedy)


def complaint(command: Sequence[str]) -> str:
    """Run a compiler; return the first line of what it says against its input, '' if it is done."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as err:
        raise ProfileError(f"{command[0]} did not run: {err}", WHERE, "set CC to a working C compiler") from err
    return (done.stderr.strip().splitlines() or ["no message"])[0] if done.returncode else ""


def parse_output(text: str, requests: Sequence[Request]) -> Rates:
    """Return the rates in the program's output, without disturbed repeats; a request for an unknown kind has none."""
    rates: Rates = {}
    for line in text.splitlines():
        words = line.split()
        try:
            number, work, nanoseconds, disturbed = int(words[0]), float(words[1]), float(words[2]), int(words[3])
            request = requests[number]
        except (IndexError, ValueError) as err:
            raise ProfileError(f"the benchmarks printed {line!r}", WHERE, REPORT) from err
        repeats = rates.setdefault(request, [])
        if nanoseconds > 0 and not disturbed:
            repeats.append(work / nanoseconds)
    return rates


class NativeRunner:
    """Compiles once, then runs requests in a process of their own with a time limit.

    `cpus` are the CPUs to use, CPUs of different cores first; an empty sequence leaves placement to the system. Use as
    a context manager, so that the program's folder is removed.
    """

    def __init__(self, vector_bytes: int, cpus: Sequence[int] = ()) -> None:
        self._cpus = [str(cpu) for cpu in cpus]
        self._folder = work_folder()
        try:
            self._program = compile_benchmarks(Path(self._folder.name), vector_bytes)
        except BaseException:  # also an interrupt: the folder goes with it
            self._folder.cleanup()
            raise

    def __enter__(self) -> NativeRunner:
        return self

    def __exit__(self, *exc: object) -> None:
        self._folder.cleanup()

    def __call__(self, requests: Sequence[Request]) -> Rates:
        # Starting threads and touching memory comes on top of the budgets.
        limit = 10 + 3 * sum(r.budget_ms for r in requests) / 1000
        done = run_program(
            [str(self._program), *self._cpus], "".join(r.line() for r in requests), limit, WHERE,
            "profile when fewer other programs run", "let TMPDIR allow programs",
        )  # fmt: skip
        if done.returncode != 0:
            raise ProfileError(f"the benchmarks ended with code {done.returncode}", WHERE, REPORT)
        return parse_output(done.stdout, requests)
