"""Sources of reads by the places of statements alone, where isl's dataflow is too much work.

A tile is copied and read in the same trip of the loops around both. If that copy sets all that the trip reads, no
earlier trip matters, and no last of several writers has to be found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .sets import by_digits, library, plain_of


@dataclass(frozen=True)
class Visit:
    """A statement that reads or writes some memory.

    Parameters
    ----------
    entries : tuple of str
        Its place in time, threads left out: names of loops, and numbers in sequences.
    names : tuple of str
        Its dimensions.
    homes : isl.Map
        Iterations -> elements of the memory.
    """

    entries: tuple[str, ...]
    names: tuple[str, ...]
    homes: Any

    def within(self, loops: Sequence[str]) -> Any:
        """Return the map from iterations to values of `loops` and the element."""
        isl = library()
        space = self.homes.get_tuple_name(isl.dim_type.in_)
        homes = self.homes.set_tuple_name(isl.dim_type.out, "")
        if not loops:
            return homes.set_tuple_name(isl.dim_type.out, "cell")
        around = isl.Map(f"{{ {space}[{', '.join(self.names)}] -> [{', '.join(loops)}] }}")
        return homes.flat_range_product(around).set_tuple_name(isl.dim_type.out, "cell")


def sources_of(read: Visit, sets: Sequence[Visit], adds: Sequence[Visit]) -> list[Any] | None:
    """Return a map to each statement whose values a read gets; None where places do not tell.

    Parameters
    ----------
    read : Visit
    sets : sequence of Visit
        All that set the memory.
    adds : sequence of Visit
        All that combine values with it, or may set it.
    """
    nearest = setter_of(read, sets)
    if nearest is None:
        return None
    first, depth = nearest
    loops, begin, end = _loops(read.entries[:depth]), int(first.entries[depth]), int(read.entries[depth])
    wanted, given = read.within(loops), first.within(loops)
    if not (by_digits(given) or given.is_injective()):
        return None  # the last of several
    found = [plain_of(wanted.apply_range(given.reverse()), read.homes.domain())]
    for add in adds:
        if _shared(add, read) < depth:
            continue  # of another trip, and set again since
        at = int(add.entries[depth])
        if at < begin or at > end:
            continue
        if at == end:
            return None
        again = add.within(loops)
        if at == begin and not _follows(again, given, add, first):
            return None
        found.append(wanted.apply_range(again.reverse()))
    return [one for one in found if not one.is_empty()]


def setter_of(read: Visit, sets: Sequence[Visit]) -> tuple[Visit, int] | None:
    """Return what sets all that a read gets, in the trip of the loops around both, and how many entries these are."""
    before: list[tuple[int, int, Visit]] = []
    for one in sets:
        depth = _shared(one, read)
        if depth >= min(len(one.entries), len(read.entries)):
            return None
        at, own = one.entries[depth], read.entries[depth]
        if not (at.isdigit() and own.isdigit()):
            return None
        if int(at) < int(own):
            before.append((depth, int(at), one))
    if not before:
        return None
    last = max(before, key=lambda one: one[:2])
    depth, _, first = last
    if sum(one[:2] == last[:2] for one in before) > 1:
        return None
    loops = _loops(read.entries[:depth])
    if not read.within(loops).range().is_subset(first.within(loops).range()):
        return None
    return first, depth


def _follows(again: Any, given: Any, add: Visit, first: Visit) -> bool:
    """Return whether a sum goes on, in the trip of the loops around both, from where its start was set."""
    depth = _shared(add, first)
    if depth >= min(len(add.entries), len(first.entries)):
        return False
    begin, at = first.entries[depth], add.entries[depth]
    if not (begin.isdigit() and at.isdigit() and int(begin) < int(at)):
        return False
    isl, loops = library(), _loops(add.entries[:depth])
    spaces = [one.homes.get_tuple_name(isl.dim_type.in_) for one in (add, first)]
    renamed = [f"{name}_" if name in loops else f"{name}__" for name in first.names]
    equal = " and ".join(f"{name} = {name}_" for name in loops) or "true"
    text = f"{{ {spaces[0]}[{', '.join(add.names)}] -> {spaces[1]}[{', '.join(renamed)}] : {equal} }}"
    return bool(again.apply_range(given.reverse()).is_subset(isl.Map(text)))


def _shared(one: Visit, other: Visit) -> int:
    """Return how many entries from the outside two places have in common."""
    count = 0
    for a, b in zip(one.entries, other.entries, strict=False):
        if a != b:
            break
        count += 1
    return count


def _loops(entries: Sequence[str]) -> list[str]:
    return [entry for entry in entries if not entry.isdigit()]
