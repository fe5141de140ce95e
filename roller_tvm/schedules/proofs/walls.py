"""Barriers between iterations: which of them no barrier lies between, asked of the loops around barriers alone."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import cache
from typing import Any

from .kernel import BLOCK, THREAD, Dim, Kernel, Statement, dims_of
from .sets import library


class Walls:
    """Barriers of a kernel, and what they separate.

    Most are reached by all threads and blocks in each iteration of the loops around them. Then these loops tell what
    lies between: few dimensions, and few pairs of trips without a barrier between them.
    """

    def __init__(self, kernel: Kernel) -> None:
        barriers = [s for s in kernel.statements if s.barrier]
        self.whole = [s for s in barriers if _is_whole(s, kernel)]
        self.others = [s for s in barriers if s not in self.whole]
        every = dict.fromkeys(d for barrier in self.whole for d in barrier.dims)
        self.loops = [d for d in every if d.kind not in (BLOCK, THREAD)]
        self._trips = cache(self._trips_of)
        self._way = cache(self._between)
        self._left = cache(self._trips_together)
        self._statements = kernel.statements

    def apart(self, first: Statement, second: Statement) -> bool:
        """Return whether a barrier lies between any iterations of two statements in one block."""
        return bool(self.whole) and bool(self._left(first.number, second.number).is_empty())

    def together(self, pairs: Any, first: Statement, second: Statement, of_one_block: bool = False) -> Any:
        """Return the pairs of iterations, or of those of one block, between which there is no barrier."""
        isl = library()
        if self.whole:
            kept, others = (dims_of(statement.dims, of_one_block) for statement in (first, second))
            down = isl.Map(f"{{ {tuple_of(first, 'i', kept)} -> {tuple_of(first, 'i', self.loops)} }}")
            up = isl.Map(f"{{ {tuple_of(second, 'j', self.loops)} -> {tuple_of(second, 'j', others)} }}")
            left = self._left(first.number, second.number)
            pairs = pairs.intersect(down.apply_range(left).apply_range(up))
        for barrier in () if of_one_block else self.others:
            for early, late, turned in ((first, second, False), (second, first, True)):
                one, two = (before(*both, False) for both in ((early, barrier), (barrier, late)))
                if not one or not two or pairs.is_empty():
                    continue
                ahead = isl.Map(f"{{ {tuple_of(early, 'i')} -> {tuple_of(barrier, 'j')} : {one} }}")
                after = isl.Map(f"{{ {tuple_of(barrier, 'i')} -> {tuple_of(late, 'j')} : {two} }}")
                waits = barrier.domain
                apart = ahead.intersect_range(waits).apply_range(after.intersect_domain(waits))
                pairs = pairs.subtract(apart.reverse() if turned else apart)
        return pairs

    def _trips_of(self, number: int) -> Any:
        statement = self._statements[number]
        found = _trips(statement, self.loops)
        kind = library().dim_type.param
        return found.project_out(kind, 0, found.dim(kind)) if statement.alike else found

    def _trips_together(self, first: int, second: int) -> Any:
        found = library().Map.from_domain_and_range(self._trips(first), self._trips(second))
        for barrier in self.whole:
            for early, late, turned in ((first, second, False), (second, first, True)):
                one, two = self._way(early, barrier.number), self._way(barrier.number, late)
                if one is None or two is None:
                    continue
                apart = one.apply_range(two)
                found = found.subtract(apart.reverse() if turned else apart)
                if found.is_empty():
                    return found
        return found.coalesce()

    def _between(self, early: int, late: int) -> Any:
        """Return which trips of one statement come before which of another; None if none do."""
        one, two = self._statements[early], self._statements[late]
        rule = before(one, two, True)
        if not rule:
            return None
        found = library().Map(f"{{ {tuple_of(one, 'i', self.loops)} -> {tuple_of(two, 'j', self.loops)} : {rule} }}")
        return found.intersect_domain(self._trips(early)).intersect_range(self._trips(late))


def _is_whole(barrier: Statement, kernel: Kernel) -> bool:
    """Return whether all threads of all blocks reach a barrier in each iteration of its other loops."""
    isl, dims = library(), barrier.dims
    serial = [d for d in dims if d.kind != BLOCK and not d.name.startswith("threadIdx")]  # virtual ones are trips
    rules = [f"0 <= {d.var} < {d.extent}" if d.extent else kernel.ranges[d] for d in dims if d not in serial]
    where = f"{tuple_of(barrier, 'i', serial)} -> {tuple_of(barrier, 'i')}"
    head = f"[{', '.join(sorted(kernel.parameters))}] -> " if kernel.parameters else ""
    every = isl.Map(f"{head}{{ {where} : {' and '.join(rules) or 'true'} }}")
    return bool(barrier.domain.is_equal(_trips(barrier, serial).apply(every)))


def _trips(statement: Statement, loops: Collection[Dim]) -> Any:
    """Return a statement's iterations of some of its loops."""
    isl, domain = library(), statement.domain
    for n in reversed(range(len(statement.dims))):
        if statement.dims[n] not in loops:
            domain = domain.project_out(isl.dim_type.set, n, 1)
    return domain.set_tuple_name(statement.space)


def tuple_of(statement: Statement, letter: str, loops: Collection[Dim] | None = None) -> str:
    """Return a statement's iteration, or the part of it in some loops."""
    dims = [d for d in statement.dims if loops is None or d in loops]
    return f"{statement.space}[{', '.join(f'{letter}{d.number}' for d in dims)}]"


def same_of(first: Statement, second: Statement, kind: str) -> Iterator[tuple[str, str]]:
    """Yield the values of each thread, or block, of two statements: digit by digit if they have the same digits."""
    names = dict.fromkeys(p.name for p in first.place if isinstance(p, Dim) and p.kind == kind)
    for name in names:
        one, two = ([d for d in s.dims if d.kind == kind and d.name == name] for s in (first, second))
        digits = [[(d.stride, d.extent) for d in dims] for dims in (one, two)]
        if not (first.folds or second.folds) and digits[0] == digits[1]:
            yield from ((f"i{a.number}", f"j{b.number}") for a, b in zip(one, two, strict=True))
        elif told := second.thread(name, kind, "j"):
            yield first.thread(name, kind, "i"), told


def before(first: Statement, second: Statement, of_one_block: bool) -> str:
    """Return the rule by which iteration i of one statement comes before j of another in the same block's order."""
    found: list[str] = []
    equal = [] if of_one_block else [f"{a} = {b}" for a, b in same_of(first, second, BLOCK)]
    for a, b in zip(first.place, second.place, strict=False):
        if isinstance(a, Dim) and isinstance(b, Dim) and a == b:
            if a.kind in (BLOCK, THREAD):
                continue
            found.append(" and ".join([*equal, f"i{a.number} < j{a.number}"]))
            equal.append(f"i{a.number} = j{a.number}")
        elif isinstance(a, int) and isinstance(b, int):
            if a < b:
                found.append(" and ".join(equal) or "true")
            if a != b:
                break
        else:
            break
    return " or ".join(f"({rule})" for rule in found)
