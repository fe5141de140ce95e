"""Outputs come from the right inputs: a scheduled function beside the one that was not scheduled yet.

For each element of an output and each way by which values reach it, the elements of the inputs have to be the same. The
same ones have to meet in each term of a sum, once. Reductions may add up in another order.
"""

from __future__ import annotations

from typing import Any

from .answers import PROVEN, REFUTED, UNDECIDED, Finding
from .kernel import Kernel
from .origins import Key, Origins, all_of
from .sets import library
from .witness import parameters_of, point_of

#: Steps of a way one after the other, of which one may take back the other where an element comes by both and by one:
#: `z` in ``max(min(x, z), z)`` and in ``x / z * z``.
_CANCELLING = set(map(frozenset, (("Max", "Min"), ("Div", "Mul"), ("Div",), ("Sub", "Add"), ("Sub",))))
#: Those of choices by data.
_CHOSEN = {"chosen", "otherwise"}


def same_values(scheduled: Origins, reference: Origins, kernel: Kernel) -> Finding:
    """Outputs come from the same inputs as before the schedule, by the same ways."""
    own, wanted = scheduled.inputs, reference.inputs
    seen: set[tuple[Any, ...]] = set()  # several ways by which the same elements go
    told = _differences(_by_input(own), _by_input(wanted), kernel, seen)
    cancels = _may_cancel(own, wanted) if told else ""  # what an element changes may be taken back
    if not told and set(own) <= set(wanted):  # nothing is computed in another way: what lacks is not made up for
        told = _differences(own, wanted, kernel, seen)
    same = set(scheduled.terms) == set(reference.terms)
    if not told and same:
        for key in sorted(reference.terms, key=str):
            both = not _one_follows(reference.terms[key])
            told = told or _difference(scheduled.terms[key], reference.terms[key], key, kernel, both)
    if not told and same and scheduled.twice and not reference.twice:
        told = f"{scheduled.twice[0]} adds the same product twice"
    told = told or _misplaced(scheduled, reference, kernel)
    other = sorted(f"another way of computing: {key[-1]}" for key in set(own) ^ set(wanted))
    other += sorted(f"another sum: {key[-1]}" for key in set(scheduled.terms) ^ set(reference.terms))
    other += [f"{text} adds the same term twice" for text in reference.twice]
    other += sorted(f"another constant: {number} by {' '.join(way) or 'a copy'}"
                    for _, number, way in scheduled.numbers ^ reference.numbers)  # fmt: skip
    other += sorted(f"other values meet: {words}" for _, words in scheduled.meetings ^ reference.meetings)
    unclear = sorted(scheduled.unclear | reference.unclear)
    vanishing = {text for one in (scheduled, reference) for text in one.flow.kernel.vanishing}
    unknown = sorted(scheduled.skipped | reference.skipped | (vanishing if told else set()))
    skipped = [*unknown, *filter(None, [cancels]), *unclear, *other]
    if told and not unknown and not cancels:
        return Finding("values", REFUTED, told)
    return Finding("values", UNDECIDED, skipped[0]) if skipped else Finding("values", PROVEN)


def _may_cancel(own: dict[Key, list[Any]], wanted: dict[Key, list[Any]]) -> str:
    """Return a way of one of two functions alone by which elements may be of no account; '' if there is none."""
    sides: list[dict[tuple[int, tuple[int, ...]], set[tuple[str, ...]]]] = []
    for found in (own, wanted):
        ways: dict[tuple[int, tuple[int, ...]], set[tuple[str, ...]]] = {}
        for output, inputs, told in found:
            steps = (tuple(step.partition(".")[0] for step in way.split()) for way in told.split(" | "))
            ways.setdefault((output, inputs), set()).update(steps)
        sides.append(ways)
    for one, other in (sides, sides[::-1]):
        for key, own_ways in one.items():
            for way in sorted(own_ways - other.get(key, set())):
                pairs = enumerate(map(frozenset, zip(way, way[1:], strict=False)), 1)
                back = any(pair in _CANCELLING and way[:n] + way[n + 1 :] in own_ways for n, pair in pairs)
                if back or not _CHOSEN.isdisjoint(way):
                    return f"another way of computing: {' '.join(way)}"
    return ""


def _misplaced(scheduled: Origins, reference: Origins, kernel: Kernel) -> str:
    """Return an element that has a constant where it should not, or lacks one; '' if there is none."""
    names = [b for b in kernel.buffers if b.parameter]
    for key in sorted(set(scheduled.places) & set(reference.places)):
        own, wanted = scheduled.places[key], reference.places[key]
        for extra, words in ((own.subtract(wanted), "should not take"), (wanted.subtract(own), "does not take")):
            if not extra.is_empty():
                return f"{names[key[0]].name}{point_of(extra)} {words} {key[1]}{parameters_of(extra, kernel)}"
    return ""


def _by_input(found: dict[Key, list[Any]]) -> dict[Key, list[Any]]:
    """Return the same whatever the way is."""
    made: dict[Key, list[Any]] = {}
    for (output, inputs, _), pairs in found.items():
        known = made.setdefault((output, inputs, ""), [])
        known += [one for one in pairs if not any(one is other for other in known)]
    return made


def _differences(
    own: dict[Key, list[Any]], wanted: dict[Key, list[Any]], kernel: Kernel, seen: set[tuple[Any, ...]]
) -> str:  # fmt: skip
    for key in sorted(set(own) | set(wanted), key=str):
        pairs, others = own.get(key, []), wanted.get(key, [])
        same = (*key[:2], tuple(map(id, pairs)), tuple(map(id, others)))
        if same in seen:
            continue
        seen.add(same)
        if told := _difference(pairs, others, key, kernel, True):
            return told
    return ""


def _difference(own: list[Any], wanted: list[Any], key: Key, kernel: Kernel, both: bool) -> str:
    """Return what reaches an output and should not, or (`both`) the other way round; '' if nothing differs."""
    names = [b for b in kernel.buffers if b.parameter]
    output, inputs = names[key[0]].name, " and ".join(names[n].name for n in key[1])
    rank = len(names[key[0]].shape)

    def told(pairs: Any, words: str) -> str:
        values = point_of(pairs)
        return f"{output}{values[:rank]} {words} {inputs}{values[rank:]}{parameters_of(pairs, kernel)}"

    known = all_of(wanted)
    for one in own:
        extra = one if known is None else one.subtract_range(known)
        if not extra.is_empty():
            return told(extra.range(), "should not depend on")
    if not both or known is None:
        return ""
    found = all_of(own)
    left = known if found is None else known.subtract(found)
    return "" if left.is_empty() else told(left, "does not depend on")


def _one_follows(products: list[Any]) -> bool:
    """Return whether an output's element and the first factor tell the others.

    If so, a schedule whose outputs depend on the same first factors, and combines no others than the unscheduled
    function, combines them all.
    """
    isl = library()
    for one in products:
        rank = one.range().unwrap().dim(isl.dim_type.in_)
        whole = one.range().unwrap().wrap().flatten()
        split = rank + 1
        while split < whole.dim(isl.dim_type.set):
            follows = isl.Map.from_range(whole).move_dims(isl.dim_type.in_, 0, isl.dim_type.out, 0, split)
            if follows.is_single_valued():
                return True
            split += 1
    return False
