"""Finds the TVM of ``import tvm`` without importing it, and its line (Relay or Relax)."""

from __future__ import annotations

import enum
import importlib
import importlib.util
import os
import re
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from roller_tvm.errors import NoTvm, TvmLineError
from roller_tvm.folders import temporary_folder
from roller_tvm.tvm_env.ffi import bad_pair, installed_ffi, numbers, register_errors, version_of
from roller_tvm.tvm_env.hook import WHEEL_TVM
from roller_tvm.tvm_env.threads import use_all_cores

INSTALL = "roller-tvm install-tvm"
INSTALL_RELAX = "pip install 'roller-tvm[relax]'"


class Line(enum.Enum):
    """TVM's two lines: they share tensor expressions and little else."""

    RELAY = "relay"  # 0.13 to 0.19: Relay, TE schedules, AutoTVM, auto_scheduler
    RELAX = "relax"  # 0.25 on: Relax, TensorIR schedules, MetaSchedule
    UNSUPPORTED = "unsupported"


# Both ends included; None is open.
LINE_VERSIONS = {Line.RELAY: ((0, 13), (0, 19)), Line.RELAX: ((0, 25), None)}
VERSION_TEXT = {Line.RELAY: "0.13 to 0.19", Line.RELAX: "0.25 or later"}
REMEDY = {Line.RELAY: INSTALL, Line.RELAX: INSTALL_RELAX}

VERSION = re.compile(r"""^(?:__version__|version)\s*(?::\s*\w+\s*)?=.*?["']([^"']+)["']""", re.M)


@dataclass(frozen=True)
class TvmFound:
    """A TVM that can be imported.

    Attributes
    ----------
    root : Path
        Folder of the ``tvm`` package.
    version : str
        As the package says it.
    line : Line
    from_wheel : bool
        True if it is the one inside the PyPI wheel, found by our hook; False if it is the user's own.
    """

    root: Path
    version: str
    line: Line
    from_wheel: bool


def line_of(version: str) -> Line:
    """Return the line that a TVM version belongs to.

    Examples
    --------
    >>> line_of("0.17.dev0").value, line_of("0.25.1").value, line_of("0.12.0").value
    ('relay', 'relax', 'unsupported')
    """
    key = numbers(version)[:2]
    for line, (low, high) in LINE_VERSIONS.items():
        if low <= key and (high is None or key <= high):
            return line
    return Line.UNSUPPORTED


def find_tvm() -> TvmFound | None:
    """Return the TVM that ``import tvm`` would load, or None. Imports nothing of it."""
    spec = importlib.util.find_spec("tvm")
    if spec is None or spec.origin is None:  # a bare folder named tvm has no origin
        return None
    root = Path(spec.origin).parent
    version = _version(root)
    return TvmFound(root, version, line_of(version), root.parent.as_posix().endswith(WHEEL_TVM))


def _version(root: Path) -> str:
    """Return the version written in a TVM's sources; its place changed over time."""
    for path in (root / name for name in ("_ffi/libinfo.py", "libinfo.py", "_version.py")):
        if path.is_file() and (match := VERSION.search(path.read_text())):
            return match[1]
    return version_of("apache-tvm") or "unknown"


def line() -> str | None:
    """Return the line of the TVM that ``import tvm`` would load, "relay" or "relax"; None without a usable one.

    Examples
    --------
    >>> line() in ("relay", "relax", None)
    True
    """
    found = find_tvm()
    return None if found is None or found.line is Line.UNSUPPORTED else found.line.value


def usable_line(what_for: str, wanted: Line | None = None) -> Line:
    """Return the line of the TVM that ``import tvm`` would load, or the `wanted` one; `what_for` is its use.

    Raises
    ------
    NoTvm, TvmLineError
        There is no TVM, or none that will do; with the command that installs one.
    """
    found = find_tvm()
    if wanted is not None:
        refuse_other_line(wanted, found, what_for)
        return wanted
    either = f"{REMEDY[Line.RELAX]} (Relax), or {REMEDY[Line.RELAY]} (Relay)"
    if found is None:
        raise NoTvm(f"{what_for} needs TVM, and none can be imported", remedy=either)
    if found.line is Line.UNSUPPORTED:
        versions = " or ".join(VERSION_TEXT[line] for line in (Line.RELAY, Line.RELAX))
        remedy = f"in an environment of its own: {either}"
        raise TvmLineError(f"{what_for} needs TVM {versions} (got {found.version})", str(found.root), remedy)
    return found.line


def import_relay_tvm(what_for: str = "this") -> ModuleType:
    """Import TVM and return it, if it is of the Relay line; the error says what to do if not."""
    return _import(refuse_other_line(Line.RELAY, find_tvm(), what_for))


def import_relax_tvm(what_for: str = "this") -> ModuleType:
    """Import TVM and return it, if it is of the Relax line; the error says what to do if not.

    A pair of apache-tvm and apache-tvm-ffi that is known to crash is refused: a process that a segmentation fault
    ends tells its user nothing.
    """
    found = refuse_other_line(Line.RELAX, find_tvm(), what_for)
    ffi = installed_ffi()
    if (pair := bad_pair(found.version, ffi)) is not None:
        what = f"apache-tvm {found.version} with apache-tvm-ffi {ffi}: {pair.how}"
        raise TvmLineError(what, str(found.root), pair.remedy)
    tvm = _import(found)
    register_errors()
    return tvm


def refuse_other_line(wanted: Line, found: TvmFound | None, what_for: str) -> TvmFound:
    """Return the TVM if it is the one needed, else raise the error that tells both, and the remedy."""
    needs = f"{what_for} needs TVM {VERSION_TEXT[wanted]}"
    if found is None:
        raise NoTvm(f"{needs}, and no TVM can be imported", remedy=REMEDY[wanted])
    if found.line is not wanted:
        remedy = f"in an environment of its own: {REMEDY[wanted]}"
        raise TvmLineError(f"{needs} (got {found.version})", where=str(found.root), remedy=remedy)
    return found


def _import(found: TvmFound) -> ModuleType:
    use_all_cores()
    if found.line is Line.RELAY:
        _have_data_folder()
    try:
        return importlib.import_module("tvm")
    except (ImportError, OSError, RuntimeError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        what = f"TVM {found.version} cannot be imported: {first}"
        raise NoTvm(what, where=str(found.root), remedy="roller-tvm doctor") from error


def _have_data_folder() -> None:
    """Give TVM 0.17 a folder for data of its tests, without which it cannot be imported, if the home is read-only."""
    try:
        (Path.home() / ".tvm_test_data").mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        os.environ.setdefault("TEST_DATA_ROOT_PATH", str(temporary_folder()))
