"""The CPU of a server of TVM's RPC tracker, detected and profiled there: programs are compiled here and sent.

A small library, sent along, starts scripts in the server's folder; questions and answers are files, so a line's
convention of calls plays no part. The server needs a shell, and no compiler.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ..device.cpu_bench import WHERE, compile_benchmarks, complaint, find_compiler, parse_output
from ..device.cpu_detect import CpuFacts, cpu_list, detect_cpu
from ..device.cpu_profile import CpuReport, cpu_report
from ..device.rates import Rates, Request
from ..errors import MeasureError, ProfileError, ToolchainError, last_line
from ..folders import work_folder
from ..tvm_env.compiler import architecture, cross_compiler, is_foreign, system_install
from .remote import Tracker, request, servers

#: Seconds that a session may last: a profile takes some ten.
SESSION_S = 300.0
#: The library's function and the files in the server's folder.
FUNCTION, COMMAND, ANSWER, PROGRAM = "roller_tvm_run", "roller_tvm_command", "roller_tvm_answer", "roller_tvm_profile"
_SOURCE = """#include <stdlib.h>
int roller_tvm_run(void) { int code = system(COMMAND); (void)code; return 0; } /* the answer tells errors */
int __tvm_ffi_roller_tvm_run(void) { return roller_tvm_run(); }
"""
_CPU = "/sys/devices/system/cpu"
#: What `detect_cpu` reads, as the shell matches it.
_READ = (
    "/proc/cpuinfo", "/proc/meminfo", "/proc/self/cgroup", f"{_CPU}/online", f"{_CPU}/cpu[0-9]*/topology/core_id",
    f"{_CPU}/cpu[0-9]*/topology/physical_package_id", f"{_CPU}/cpu[0-9]*/cpufreq/cpuinfo_max_freq",
    *(f"{_CPU}/cpu[0-9]*/cache/index*/{name}" for name in (
        "type", "size", "level", "coherency_line_size", "ways_of_associativity", "shared_cpu_list")),
    *(f"/sys/fs/cgroup{below}/{name}" for below in ("", "/*", "/*/*") for name in (
        "cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us")),
)  # fmt: skip
#: Begins the line before a file, which no file holds.
_NEXT = "=== roller-tvm "


def remote_cpu_report(tracker: Tracker, triple: str = "", mcpu: str = "", refresh: bool = False) -> CpuReport:
    """Return the report of a server's CPU, profiled there once; it is kept here, as this machine's own.

    Parameters
    ----------
    triple, mcpu : str
        Of the server's target, where it is another machine than this one.

    Raises
    ------
    MeasureError
        The tracker or its servers do not answer.
    ProfileError
        Programs do not run there.
    ToolchainError
        There is no compiler for the server.

    Examples
    --------
    >>> remote_cpu_report(Tracker("127.0.0.1", 1, "board"))  # nobody listens there
    Traceback (most recent call last):
    roller_tvm.errors.MeasureError: 127.0.0.1:1, key 'board': the RPC tracker does not answer: ...
    """
    compiler = _compiler(triple)
    with _shell(tracker, compiler) as shell:
        facts = shell.facts()
        if triple and facts.machine != architecture(triple):
            what = f"the server is a machine of {facts.machine}, not of {triple}"
            raise ProfileError(what, str(tracker), "give the server's --target, or another --rpc-key")

        @contextlib.contextmanager
        def runner(vector_bytes: int, cpus: Sequence[int]) -> Iterator[Any]:
            with work_folder() as folder:
                arch = facts.simd.mcpu if facts.machine == "x86-64" else mcpu
                option = ("-march=" if facts.machine == "x86-64" else "-mcpu=") + arch
                flags = (("-O3", "-static", *([option] if arch else [])),)
                shell.session.upload(str(compile_benchmarks(Path(folder), vector_bytes, compiler, flags)), PROGRAM)
            yield lambda requests: shell.rates(requests, cpus)

        return cpu_report(refresh=refresh, facts=facts, runner=runner)


class _Shell:
    """Commands on a server.

    Parameters
    ----------
    session : tvm.rpc.RPCSession
    compiler : str
        Compiles for the server.
    """

    def __init__(self, session: Any, compiler: str) -> None:
        self.session = session
        self._path = session.get_function("tvm.rpc.server.workpath")
        command, answer = (shlex.quote(str(self._path(name))) for name in (COMMAND, ANSWER))
        with work_folder() as folder:
            source, library = Path(folder, "run.c"), Path(folder, f"{FUNCTION}.so")
            source.write_text(_SOURCE.replace("COMMAND", _in_c(f"sh {command} > {answer} 2>&1")), encoding="utf-8")
            if said := complaint([compiler, "-shared", "-fPIC", str(source), "-o", str(library)]):
                raise ProfileError(f"{compiler} could not compile: {said}", WHERE, "install a working compiler")
            session.upload(str(library))
        self._run = session.load_module(f"{FUNCTION}.so")[FUNCTION]

    def __call__(self, script: str) -> str:
        """Return the output of a script."""
        self.session.upload(bytearray(script.encode()), COMMAND)
        self._run()
        return bytes(self.session.download(ANSWER)).decode(errors="replace")

    def facts(self) -> CpuFacts:
        """Return what the server's system tells of its CPU."""
        script = f'for f in {" ".join(_READ)}; do if [ -r "$f" ]; then echo "{_NEXT}$f"; cat "$f"; fi; done\n'
        script += f'echo "{_NEXT}machine"; uname -m\necho "{_NEXT}affinity"; grep Cpus_allowed_list /proc/self/status\n'
        told = dict(part.partition("\n")[::2] for part in f"\n{self(script)}".split(f"\n{_NEXT}")[1:])
        machine, affinity = told.pop("machine", "").strip(), told.pop("affinity", "").rpartition(":")[2].strip()
        if not machine or "/proc/cpuinfo" not in told:
            raise ProfileError("the server tells nothing of its CPU", WHERE, "write its spec file by hand (--device)")
        with work_folder() as root:
            for name, text in told.items():
                (path := Path(root, name.lstrip("/"))).parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            return detect_cpu(root, machine=machine, affinity=frozenset(cpu_list(affinity)), system="Linux")

    def rates(self, requests: Sequence[Request], cpus: Sequence[int]) -> Rates:
        """Run the micro-benchmarks on some CPUs; return the rates of their repeats."""
        program = shlex.quote(str(self._path(PROGRAM)))
        asked = "".join(request.line() for request in requests)
        return parse_output(self(f"chmod +x {program}\n{program} {' '.join(map(str, cpus))} <<E\n{asked}E\n"), requests)


@contextlib.contextmanager
def _shell(tracker: Tracker, compiler: str) -> Iterator[_Shell]:
    """Yield a shell on one of a tracker's servers."""
    servers(tracker)
    try:
        shell = _Shell(request(tracker, session_s=SESSION_S), compiler)
    except (ProfileError, MeasureError):
        raise
    except Exception as error:  # whatever TVM raises of a connection, or of a library that it cannot load
        what, remedy = f"the server takes no program: {last_line(error)}", "give the server's --target, or restart it"
        raise ProfileError(what, str(tracker), remedy) from error
    try:
        yield shell
    except (ProfileError, MeasureError):
        raise
    except Exception as error:  # a lost connection
        what = f"the server was lost: {last_line(error)}"
        raise ProfileError(what, str(tracker), "start it again, then profile again") from error


def _compiler(triple: str) -> str:
    """Return the C compiler for a machine."""
    if is_foreign(triple):
        return cross_compiler(triple, "gcc")
    if (found := find_compiler()) is None:
        raise ToolchainError("there is no C compiler", WHERE, system_install("gcc"))
    return found


def _in_c(text: str) -> str:
    """Return a string of C."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
