"""Tell whether figures of two environments may be compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from roller_tvm.errors import RecordError

#: Facts that all figures of a comparison must share.
SAME = ("line", "threads", "tvm", "llvm")
#: Facts of a machine. With --mix-machines they may differ between the cases of a folder, but never within a case.
PLACE = ("target", "machine", "cpu", "cpu_id", "caches", "gpu")


def changed(names: Iterable[str], other: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """Return how an environment differs from this one; a fact that it lacks (an older file) is no difference.

    Examples
    --------
    >>> changed(PLACE, {"cpu": "one"}, {"cpu": "two", "caches": "L2 512K"})
    ["cpu 'one', now 'two'"]
    """
    return [f"{n} {other[n]!r}, now {here.get(n)!r}" for n in names if n in other and other[n] != here.get(n)]


def same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return True if two environments are of one machine, as far as both tell.

    Examples
    --------
    >>> same({"cpu": "one"}, {"cpu": "one", "caches": "L2 512K"}), same({"machine": "a"}, {"machine": "b"})
    (True, False)
    """
    return not changed((n for n in PLACE if n in other), one, other)


def others(
    environments: Mapping[str, Mapping[str, Any]], here: Mapping[str, Any], mixed: bool, folder: str
) -> frozenset[str]:
    """Return the ids of the environments that are of another machine.

    Parameters
    ----------
    mixed : bool
        True to allow other machines.

    Raises
    ------
    RecordError
        A fact that all must share differs, or the machine differs and `mixed` is False.
    """
    found = set()
    for name, other in environments.items():
        if told := changed(SAME, other, here):
            raise RecordError(f"holds results of another environment: {'; '.join(told)}", folder, "give another folder")
        if told := changed(PLACE, other, here):
            if not mixed:
                remedy = "give another folder, or allow a machine per case with --mix-machines; the report names them"
                raise RecordError(f"holds results of another machine: {'; '.join(told)}", folder, remedy)
            found.add(name)
    return frozenset(found)


def place(environment: Mapping[str, Any]) -> str:
    """Return a short description of a machine.

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
    """Return a distinct name for each machine: `place`, and the differing facts of machines with the same `place`.

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
