"""The ``roller-tvm`` command: a small registry of verbs, each a module with `add_arguments` and `run`."""

from __future__ import annotations

import argparse
import errno
import importlib
import importlib.util
import os
import re
import resource
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

from roller_tvm.children import SAFE_PATH
from roller_tvm.errors import BadInput, DiskFull, RollerError, UsageError, last_line
from roller_tvm.folders import cache_folder, check_space, use_temporary_folder, variable
from roller_tvm.tools import tool
from roller_tvm.version import __version__

# Verb -> one line of help. The module is roller_tvm/cli/<verb>.py, dashes as underscores, or a tool's (`TOOLS`); it is
# imported only when its verb is used, and a verb whose module does not exist is not offered.
VERBS = {
    "tune": "plan and tune a model, write records",
    "explore": "try the best plans of all operators in runs of the model itself, write records",
    "compile": "build a model with the records of a tuning",
    "run": "run a compiled model",
    "plan": "plan one operator and print the candidates (needs no TVM)",
    "replay": "compare the model's predictions with records of Ansor (needs no TVM) or MetaSchedule",
    "schedule": "print records of Ansor (needs no TVM) or MetaSchedule as scripts, to compare them by diff",
    "compare": "compare Roller with other tuners, side by side on this machine",
    "profile": "measure this machine's CPU or a CUDA card, for the other commands",
    "cache": "show or clear the plans and kernels kept for the next build (needs no TVM)",
    "doctor": "tell which TVM was found, what it can do, what is missing",
    "install-tvm": "install a TVM with Relay from PyPI into this environment",
}
#: Verbs of tools beside the product, and their modules (`roller_tvm.tools`).
TOOLS = {"compare": "roller_bench.command", "replay": "roller_bench.replay.command",
         "schedule": "roller_bench.replay.schedule"}  # fmt: skip
INTERRUPTED = 130
# Those of roller_tvm.errors.
EXIT_CODES = "exit codes: 0 done, 1 failed, 2 wrong command line or bad input, 130 interrupted"
TRACEBACK = "--traceback"
EXAMPLES = """from a model to its outputs:
  roller-tvm doctor                                        check the installation
  roller-tvm tune model.onnx --output records              plan, measure the best, record
  roller-tvm compile model.onnx --tuning-records records --output model.so
  roller-tvm run model.so --print-time

one operator, without any TVM:
  roller-tvm plan matmul m=1024 n=1024 k=1024 --device h200 --explain

each command tells its options: roller-tvm COMMAND --help"""


def _module_name(verb: str) -> str:
    return f"{__name__}.{verb.replace('-', '_')}"


class _Parser(argparse.ArgumentParser):
    """Mistakes on the command line come out as every other error: what, where, remedy."""

    def error(self, message: str) -> NoReturn:
        remedy = f"{self.prog} --help"
        if match := re.search(r"unrecognized arguments: .*?(-\w+)=", message):
            remedy = f'a target of several words stands in quotes: --target "llvm {match[1]}=..."'
        raise UsageError(message, self.prog.removeprefix("roller-tvm").strip(), remedy)


def make_parser(chosen: str | None) -> argparse.ArgumentParser:
    """Parser of the whole command; only the `chosen` verb's own arguments are filled in."""
    parser = _Parser(
        prog="roller-tvm",
        description="Tuned models in seconds: kernels constructed for the device, not searched for.",
        epilog=f"{EXAMPLES}\n\n{EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    parser.add_argument(TRACEBACK, action="store_true", help="show the Python traceback of an error too")
    verbs = parser.add_subparsers(dest="verb", metavar="COMMAND", required=True)
    for verb, help_line in VERBS.items():
        if verb not in TOOLS and importlib.util.find_spec(_module_name(verb)) is None:
            continue
        told = help_line[0].upper() + help_line[1:] + "."
        sub = verbs.add_parser(verb, help=help_line, description=told, formatter_class=parser.formatter_class)
        if verb == chosen:
            module = tool(TOOLS[verb]) if verb in TOOLS else importlib.import_module(_module_name(verb))
            module.add_arguments(sub)
            sub.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code (see `roller_tvm.errors`)."""
    argv = list(sys.argv[1:] if argv is None else argv)
    trace = TRACEBACK in argv
    argv = [word for word in argv if word != TRACEBACK]  # it may stand behind the verb too
    chosen = next((word for word in argv if not word.startswith("-")), None)
    try:
        args = make_parser(chosen).parse_args(argv)
        with variable(SAFE_PATH, "1"), use_temporary_folder():
            return int(args.run(args))
    except RollerError as error:
        return _fail(error, trace)
    except KeyboardInterrupt:
        print("roller-tvm: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output went away (`| head`); Python would complain again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        where = str(error.filename or "")
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return _fail(DiskFull("no space left on the device", where, "free some space, then run it again"), trace)
        if not where:
            return _fail_inside(error, trace)
        return _fail(BadInput(error.strerror or str(error), where, "name a file that can be used so"), trace)
    except Exception as error:  # a defect, ours or of a package below
        return _fail_inside(error, trace)


def _fail(error: RollerError, trace: bool) -> int:
    """Print an error as one line; return its exit code."""
    if trace:
        traceback.print_exc()
    print(f"roller-tvm: error: {error.one_line()}", file=sys.stderr)
    return error.exit_code


def _fail_inside(error: Exception, trace: bool) -> int:
    """Print an exception that is a defect of this package, or of one below it, as one line; return the exit code."""
    try:
        check_space(cache_folder())
    except DiskFull as full:  # which compilers and TVM tell in many ways
        return _fail(full, trace)
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY or isinstance(error, MemoryError):
        told = "no limit" if limit == resource.RLIM_INFINITY else f"a limit of {limit >> 20} MiB"
        what = f"the memory may be too little, with {told}: {type(error).__name__}: {last_line(error)}"
        return _fail(RollerError(what, remedy="give it more (ulimit -v)"), trace)
    if trace:
        traceback.print_exc()
    remedy = "report it with the traceback above" if trace else f"run again with {TRACEBACK} and report it"
    print(f"roller-tvm: internal error: {type(error).__name__}: {last_line(error)}; remedy: {remedy}", file=sys.stderr)
    return RollerError.exit_code
