"""Whether figures of two environments may stand beside one another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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


def same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two environments are of one machine, as far as both tell.

    Examples
    --------
    >>> same({"cpu": "one"}, {"cpu": "one", "caches": "L2 512K"}), same({"machine": "a"}, {"machine": "b"})
    (True, False)
    """
    return not changed((n for n in PLACE if n in other), one, other)


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


def names(machines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names that tell machines apart: `place`, and what else differs where that is the same of several.

    Examples
    --------
    >>> names([{"cpu": "Xeon", "target": "llvm"}, {"cpu": "Xeon", "target": "llvm -mcpu=core-avx2"}, {"cpu": "EPYC"}])
    ['Xeon, target llvm', 'Xeon, target llvm -mcpu=core-avx2', 'EPYC']
    """
    found = []
    for machine in machines:
        alike = [m for m in machines if place(m) == place(machine)]
        differ = [n for n in PLACE if len({str(m.get(n)) for m in alike}) > 1]
        found.append(", ".join([place(machine), *(f"{n} {machine.get(n)}" for n in differ)]))
    return found
