"""Outputs come from the right inputs: a scheduled function beside the one that was not scheduled yet.

For each element of an output, the elements of the inputs that reach it have to be the same, and the same ones have to
meet in a product, once each. Reductions may add up in another order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .answers import PROVEN, REFUTED, UNDECIDED, Finding
from .flow import Flow
from .kernel import Access, Kernel, Statement
from .sets import by_digits, library, plain_of
from .witness import parameters_of, point_of

#: Combinations that a value may enter twice.
_IDEMPOTENT = ("Max", "Min")
#: Longest chain of stages that is followed.
_STAGES = 40


@dataclass
class Origins:
    """Elements of inputs that reach the outputs.

    Attributes
    ----------
    inputs : dict
        (output, input), by position among the parameters -> for each statement that reads the input an isl.Map from
        its iterations to pairs of elements [output -> input].
    products : dict
        (output, input, input, ...) -> the same of statements that combine elements of these inputs.
    twice : list of str
        Sums that hold the same product of elements twice.
    skipped : set of str
        Parts that could not be followed.
    """

    flow: Flow
    inputs: dict[tuple[int, ...], list[Any]] = field(default_factory=dict)
    products: dict[tuple[int, ...], list[Any]] = field(default_factory=dict)
    twice: list[str] = field(default_factory=list)
    skipped: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        kernel = self.flow.kernel
        self.position = {b.number: n for n, b in enumerate(b for b in kernel.buffers if b.parameter)}
        self._roots: dict[tuple[int, int], tuple[int, Any] | None] = {}
        for number, final in self.flow.finals.items():
            reached = self._reached(final)
            for s, relation in reached.items():
                self._inputs_of(number, kernel.statements[s], relation)
                self._products_of(number, kernel.statements[s], relation)

    def _reached(self, final: Any) -> dict[int, Any]:
        """Return the statements that reach an output's elements: output -> statement."""
        found: dict[int, Any] = {}
        frontier = _by_target(final)
        for _ in range(_STAGES):
            following: dict[int, Any] = {}
            for s, relation in frontier.items():
                new = relation if s not in found else relation.subtract(found[s])
                if s in found and new.is_empty():
                    continue
                found[s] = relation if s not in found else found[s].union(relation).coalesce()
                for (number, n), sources in self.flow.sources.items():
                    statement = self.flow.kernel.statements[number]
                    if number != s or self._root(statement, n, statement.accesses[n]) is not None:
                        continue  # what copies hold is read of the input itself
                    step = library().UnionMap.from_map(new).apply_range(sources)
                    for target, more in _by_target(step).items():
                        following[target] = more if target not in following else following[target].union(more)
            frontier = following
            if not frontier:
                return found
        self.skipped.add("a chain of stages without an end")
        return found

    def _inputs_of(self, output: int, statement: Statement, relation: Any) -> None:
        for n, access in enumerate(statement.accesses):
            if access.write or (statement.update and access.buffer == statement.accesses[-1].buffer):
                continue
            root = self._root(statement, n, access)
            if root is not None:
                self.inputs.setdefault((self.position[output], root[0]), []).append(_pairs(relation, root[1]))
            elif (statement.number, n) not in self.flow.sources and access.buffer.parameter:
                self.skipped.add(access.text)
                key = self.position[output], self.position[access.buffer.number]
                self.inputs.setdefault(key, []).append(_pairs(relation, access.elements))

    def _products_of(self, output: int, statement: Statement, relation: Any) -> None:
        """Note which elements a statement that sums combines with each other."""
        own = statement.write
        if not statement.update or own is None:
            return
        reads = [(n, a) for n, a in enumerate(statement.accesses)
                 if not a.write and not (a.buffer == own.buffer and a.elements.is_subset(own.elements))]  # fmt: skip
        roots = [self._root(statement, n, a) for n, a in reads]
        known = [root for root in roots if root is not None]
        if not reads or len(known) < len(roots):
            return
        known.sort(key=lambda root: root[0])
        joint = known[0][1].set_tuple_name(library().dim_type.out, "I")
        for _, other in known[1:]:
            joint = joint.flat_range_product(other)
        joint = joint.set_tuple_name(library().dim_type.out, "I")
        key = (self.position[output], *(position for position, _ in known))
        made = _pairs(relation, joint)
        self.products.setdefault(key, []).append(made)
        if statement.update not in _IDEMPOTENT and not (by_digits(made) or made.is_injective()):
            self.twice.append(statement.text)

    def _root(self, statement: Statement, n: int, access: Access) -> tuple[int, Any] | None:
        """Return the input, and the one element of it, that a read gets through copies; None if it gets another."""
        key = statement.number, n
        if key not in self._roots:
            self._roots[key] = None
            self._roots[key] = self._find_root(key, access)
        return self._roots[key]

    def _find_root(self, key: tuple[int, int], access: Access) -> tuple[int, Any] | None:
        if not (access.exact or access.open):  # whichever way a condition goes, the same may be read
            return None
        if key not in self.flow.sources:
            return (self.position[access.buffer.number], access.elements) if access.buffer.parameter else None
        found: tuple[int, Any] | None = None
        for target, relation in _by_target(self.flow.sources[key]).items():
            source = self.flow.kernel.statements[target]
            reads = [(n, a) for n, a in enumerate(source.accesses) if not a.write]
            if source.update or len(reads) != 1:
                return None
            root = self._root(source, *reads[0])
            if root is None or (found is not None and found[0] != root[0]):
                return None
            made = relation.apply_range(root[1])
            found = root[0], made if found is None else found[1].union(made)
        if found is None:
            return None
        plain = plain_of(found[1], access.elements.domain())
        return (found[0], plain) if plain.is_single_valued() else None


def same_values(scheduled: Origins, reference: Origins, kernel: Kernel) -> Finding:
    """Outputs come from the same inputs as before the schedule."""
    skipped = scheduled.skipped | reference.skipped
    told = ""
    for key in sorted(set(scheduled.inputs) | set(reference.inputs)):
        told = told or _difference(scheduled.inputs.get(key, []), reference.inputs.get(key, []), key, kernel, True)
    same = set(scheduled.products) == set(reference.products)  # else computed another way: from partial sums, say
    if same:
        for key in sorted(reference.products):
            both = not _one_follows(reference.products[key])
            told = told or _difference(scheduled.products[key], reference.products[key], key, kernel, both)
    if told and skipped:
        return Finding("values", UNDECIDED, sorted(skipped)[0])
    if not told and same and scheduled.twice and not reference.twice:
        told = f"{scheduled.twice[0]} adds the same product twice"
    if told:
        return Finding("values", REFUTED, told)
    return Finding("values", UNDECIDED, sorted(skipped)[0]) if skipped else Finding("values", PROVEN)


def _difference(own: list[Any], wanted: list[Any], key: tuple[int, ...], kernel: Kernel, both: bool) -> str:
    """Return what reaches an output and should not, or (`both`) the other way round; '' if nothing differs."""
    names = [b for b in kernel.buffers if b.parameter]
    output, inputs = names[key[0]].name, " and ".join(names[n].name for n in key[1:])
    rank = len(names[key[0]].shape)

    def told(pairs: Any, words: str) -> str:
        values = point_of(pairs)
        return f"{output}{values[:rank]} {words} {inputs}{values[rank:]}{parameters_of(pairs, kernel)}"

    known = _all(wanted)
    for one in own:
        extra = one if known is None else one.subtract_range(known)
        if not extra.is_empty():
            return told(extra.range(), "should not depend on")
    if not both or known is None:
        return ""
    found = _all(own)
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


def _pairs(relation: Any, elements: Any) -> Any:
    """Return iterations -> [element of the output -> elements of inputs]."""
    isl = library()
    reached = relation.reverse().set_tuple_name(isl.dim_type.out, "F")
    return reached.range_product(elements.set_tuple_name(isl.dim_type.out, "I"))


def _all(several: list[Any]) -> Any:
    """Return all pairs as one isl.Set, None if there are none."""
    found = None
    for one in several:
        found = one.range() if found is None else found.union(one.range())
    return None if found is None else found.coalesce()


def _by_target(union: Any) -> dict[int, Any]:
    """Return a union of maps to statements as a map a statement."""
    isl = library()
    maps: list[Any] = []
    union.foreach_map(maps.append)
    return {int(m.get_tuple_name(isl.dim_type.out)[1:]): m for m in maps if not m.is_empty()}

