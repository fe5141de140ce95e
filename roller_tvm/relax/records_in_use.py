"""Records that a build uses: those given, or those in scope, and the choices beside them."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import BadInput, RecordError
from ..models.choices import Choices
from .choices import read_choices
from .modules import is_prim_func
from .record_files import opened
from .schedule import SCHEDULED
from .targets import for_other_kernels, kernels_of


def choices_beside(database: Any, target: Any) -> Choices:
    """Return what an exploration has chosen beside the records of a folder."""
    return read_choices(Path(database), target) if isinstance(database, (str, os.PathLike)) else Choices()


@contextlib.contextmanager
def database_in_use(given: Any, target: Any) -> Iterator[Any]:
    """Return the database in scope, entered where it is given."""
    from tvm.s_tir import meta_schedule

    if given is None:
        if (current := meta_schedule.Database.current()) is not None:
            _check_target(current, target, "the database in scope")
        yield current
        return
    if isinstance(given, (str, os.PathLike)):
        given, where = opened(Path(given)), str(given)
    else:
        where = "database"
        if not isinstance(given, meta_schedule.Database):
            what = f"'database' must be a folder or a MetaSchedule database (got a {type(given).__name__})"
            raise BadInput(what, where, "give the folder that tune_relax wrote")
    _check_target(given, target, where)
    with given:
        yield given


def left_of(mod: Any) -> set[str]:
    """Return the names of the PrimFuncs without a schedule."""
    funcs = ((v, f) for v, f in mod.functions_items() if is_prim_func(f))
    return {str(var.name_hint) for var, func in funcs if SCHEDULED not in (func.attrs or {})}


def warn_of_no_record(functions: int, records: Any, given: Any) -> None:
    """Warn that a database with records has none of so many functions."""
    if not list(records.get_all_tuning_records()):
        return
    told = f"none of {functions} functions has a record in {given}: tuned for another model, device or layouts"
    warnings.warn(f"{told}; Roller's plans are taken, not measured", RuntimeWarning, stacklevel=3)


def _check_target(database: Any, target: Any, where: str) -> None:
    """A target is no part of a database's key: records of another would be applied without a word."""
    for other in {str(record.target) for record in database.get_all_tuning_records() if record.target is not None}:
        if for_other_kernels(other, str(target)):
            what = f"its records are for the target {other}, not for {target}"
            raise RecordError(what, where, "give that target, or the records of this one")
        if "mcpu" in kernels_of(str(target)) and "mcpu" not in kernels_of(other):
            told = f"{where}: its records were tuned for the least CPU of their kind ({other}), not for {target}"
            warnings.warn(f"{told}\n  remedy: tune for that target", RuntimeWarning, stacklevel=4)
