"""Whether figures of two environments may stand beside one another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from roller_tvm.errors import RecordError

#: What all of a comparison has in common.
SAME = ("line", "threads", "tvm", "llvm")
#: What is of a machine: in one folder it may differ from case to case where that is asked for, never within one.
PLACE = ("target", "machine", "cpu", "cpu_id", "caches", "gpu")


def changed(names: Iterable[str], other: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """How an environment differs from this one; what it does not tell (an older file) is no difference.

    Examples
    --------
    >>> changed(PLACE, {"cpu": "one"}, {"cpu": "two", "caches": "L2 512K"})
    ["cpu 'one', now 'two'"]
    """
    return [f"{n} {other[n]!r}, now {here.get(n)!r}" for n in names if n in other and other[n] != here.get(n)]


def others(
    environments: Mapping[str, Mapping[str, Any]], here: Mapping[str, Any], mixed: bool, folder: str
) -> frozenset[str]:
    """Ids of the environments that are of another machine.

    Parameters
    ----------
    mixed : bool
        Whether they may be.

    Raises
    ------
    RecordError
        What they all must have in common differs, or the machine does and may not.
    """
    found = set()
    for name, other in environments.items():
        if told := changed(SAME, other, here):
            raise RecordError(f"holds figures of another place: {'; '.join(told)}", folder, "give another folder")
        if told := changed(PLACE, other, here):
            if not mixed:
                remedy = "give another folder, or --mix-machines: each case on one machine, which the report tells"
                raise RecordError(f"holds figures of another place: {'; '.join(told)}", folder, remedy)
            found.add(name)
    return frozenset(found)


def place(environment: Mapping[str, Any]) -> str:
    """A machine in a few words.

    Examples
    --------
    >>> place({"cpu": "AMD EPYC", "cpu_id": "AuthenticAMD family 25 model 1 stepping 1", "caches": "L2 512K"})
    'AMD EPYC (AuthenticAMD family 25 model 1 stepping 1; L2 512K)'
    """
    if environment.get("gpu"):
        return str(environment["gpu"])
    more = "; ".join(str(environment[n]) for n in ("cpu_id", "caches") if environment.get(n))
    return f"{environment.get('cpu') or 'unknown machine'}{f' ({more})' if more else ''}"
