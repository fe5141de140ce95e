"""Elements of inputs that reach the outputs of a kernel, the operations on their ways, and their meetings in sums."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any

from .flow import Flow, is_own
from .kernel import Access, Statement
from .meetings import Tree, grown, is_unclear, meetings, whole_parts, words_of
from .sets import by_digits, library, maps_of, plain_of
from .ways import AS_IT_IS, PLACE, Way, Ways, both_of, is_neutral, text_of

#: Combinations that a value may enter twice.
_IDEMPOTENT = ("Max", "Min")
#: Longest chain of stages that is followed, and most ways by which one value may go.
_STAGES, _WAYS, _LEAVES = 40, 1000, 1000
#: An output, inputs, all by position among the parameters, and in words how values get from these to it.
Key = tuple[int, tuple[int, ...], str]
#: An input, isl.Map from iterations to its elements, and ways from these to the value that is read.
Root = tuple[int, Any, Ways]


@dataclass(frozen=True)
class _Leaf:
    """One value of which a term is made: an element of an input, or a reduction.

    Attributes
    ----------
    input : int or None
        None for a reduction: then `elements` are iterations that set it, and `behind` says which elements of each
        input it is made of.
    """

    input: int | None
    elements: Any
    ways: Ways
    behind: dict[int, Any] = field(default_factory=dict)

    def of(self, relation: Any, ways: Ways) -> _Leaf:
        """Return the same of iterations that get at those of this leaf."""
        behind = {n: relation.apply_range(elements) for n, elements in self.behind.items()}
        return _Leaf(self.input, relation.apply_range(self.elements), both_of(ways, self.ways), behind)

    def is_one(self, relation: Any) -> bool:
        """Return whether iterations that reach the same element of an output get the same value."""
        if relation.apply_range(self.elements).is_single_valued():
            return True
        back = relation.reverse().apply_range(relation)
        known = (back.apply_range(elements).is_subset(elements) for elements in self.behind.values())
        return bool(self.behind) and all(known)


@dataclass
class Origins:
    """Elements of inputs that reach the outputs.

    Attributes
    ----------
    inputs : dict
        Output, one input, one way -> for each statement that reads the input an isl.Map from its iterations to pairs of
        elements [output -> input].
    terms : dict
        Output, the inputs of a sum's term, ways -> the same of the statements that sum.
    twice : list of str
        Sums that hold the same term twice.
    numbers : set of (int, str, tuple of str)
        Output, a constant that reaches it, its way.
    places : dict
        Output, a constant among which conditions choose, its way -> the elements that it reaches.
    meetings : set of (int, str)
        Output, a part of a sum, product or choice that has several such parts, in words.
    skipped : set of str
        Parts that could not be followed.
    unclear : set of str
        Sums whose parts were followed; words leave open which values meet in them.
    """

    flow: Flow
    inputs: dict[Key, list[Any]] = field(default_factory=dict)
    terms: dict[Key, list[Any]] = field(default_factory=dict)
    twice: list[str] = field(default_factory=list)
    skipped: set[str] = field(default_factory=set)
    unclear: set[str] = field(default_factory=set)
    numbers: set[tuple[int, str, Way]] = field(default_factory=set)
    places: dict[tuple[int, str, Way], Any] = field(default_factory=dict)
    meetings: set[tuple[int, str]] = field(default_factory=set)
    _met: int = 0
    _elements: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        kernel = self.flow.kernel
        self.position = {b.number: n for n, b in enumerate(b for b in kernel.buffers if b.parameter)}
        self._grouped: dict[int, dict[int, Ways]] = {}
        self._made: dict[tuple[int, int], dict[int, Any]] = {}
        self._own: dict[tuple[int, str], dict[int, set[tuple[str, Way]]]] = {}  # constants of a tensor's statements
        self._asked: set[tuple[int, int]] = set()
        for number, final in self.flow.finals.items():
            self._numbers_of(number, final)
            self._apart()
            for (s, ways), relation in self._reached(final).items():
                self._inputs_of(number, kernel.statements[s], relation, ways)
                self._terms_of(number, kernel.statements[s], relation, ways)
                self._places_of(number, kernel.statements[s], relation, ways)
                self._meetings_of(number, kernel.statements[s])

    def _apart(self) -> None:
        """Note constants that belong to some statements of a tensor alone: their elements are not compared."""
        for made in map(list, map(dict.values, self._own.values())):
            if any(numbers != made[0] for numbers in made):
                self.unclear.add(f"which elements {sorted(set().union(*made))[0][0]} gets to")
        self._own.clear()

    def _reached(self, final: Any) -> dict[tuple[int, Ways], Any]:
        """Return the statements that reach an output's elements, and by which ways: output -> statement."""
        found: dict[tuple[int, Ways], Any] = {}
        frontier: dict[tuple[int, Ways], Any] = {(s, AS_IT_IS): relation for s, relation in by_target(final).items()}
        for _ in range(_STAGES):
            following: dict[tuple[int, Ways], Any] = {}
            for key, relation in frontier.items():
                new = relation if key not in found else relation.subtract(found[key])
                if key in found and new.is_empty():
                    continue
                found[key] = relation if key not in found else found[key].union(relation).coalesce()
                statement, ways = self.flow.kernel.statements[key[0]], key[1]
                for n, own in self._groups(statement).items():
                    if (statement.number, n) not in self.flow.sources or self._root(statement, n) is not None:
                        continue  # what copies hold is read of the input itself
                    if not (statement.accesses[n].exact or statement.accesses[n].open):
                        self.skipped.add(statement.accesses[n].text)  # one of those that are followed
                    longer = both_of(ways, own)
                    if len(longer) > _WAYS:
                        self.skipped.add(f"more than {_WAYS} ways to an output")
                        continue
                    step = library().UnionMap.from_map(new).apply_range(self.flow.sources[statement.number, n])
                    for target, more in by_target(step).items():
                        at = target, longer
                        following[at] = more if at not in following else following[at].union(more)
            frontier = following
            if not frontier:
                return found
        self.skipped.add("a chain of stages without an end")
        return found

    def _places_of(self, output: int, statement: Statement, relation: Any, ways: Ways) -> None:
        """Note where constants reach an output among which conditions choose."""
        for constant, way, where, exact in statement.chosen:
            for whole in both_of(ways, frozenset({way})):
                if is_neutral(constant, whole):
                    continue
                if not (exact and relation.is_single_valued()):
                    self.skipped.add(f"where {constant} is taken")
                    return
                key, elements = (self.position[output], constant, whole), relation.intersect_range(where).domain()
                self.places[key] = self.places[key].union(elements) if key in self.places else elements

    def _meetings_of(self, output: int, statement: Statement) -> None:
        """Note which values meet in parts of one sum, product or choice."""
        self._met, self._elements = 0, {}
        tree = self._tree(statement, _STAGES, "")
        if self._met > _LEAVES:
            self.skipped.add(f"which of more than {_LEAVES} values meet in {statement.text}")
            return
        if statement.write is not None and statement.write.buffer.number == output:  # its tree has all stages before
            self.meetings |= {(self.position[output], part) for part in whole_parts(tree)}
        if is_unclear(tree, self._element_of):
            self.unclear.add(f"which values meet in {statement.text}")
            return
        for parts in meetings(tree):
            words = {part for part, _ in parts}
            # Of several elements of one input no word tells which meet, nor do its constants.
            if len({re.sub(r"=[^,)]+", "=", part) for part in words}) < len(parts):
                self.unclear.add(f"which values meet in {statement.text}")
            self.meetings |= {(self.position[output], part) for part in words}

    def _element_of(self, label: str) -> str:
        """Return the same for values of one element of an input, by whichever stages an iteration gets them."""
        steps = [tuple(map(int, step.split("."))) for step in label.split("/")[1:]]
        statements, made = self.flow.kernel.statements, None
        for (number, n), (then, _) in zip(steps, steps[1:], strict=False):
            if statements[then].update:
                return label  # one of many
            relation = by_target(self.flow.sources[number, n])[then]
            made = relation if made is None else made.apply_range(relation)
        root = self._root(statements[steps[-1][0]], steps[-1][1])
        if root is None:
            return label
        whole = root[1] if made is None else made.apply_range(root[1])
        for other, known in self._elements.items():
            if known.is_equal(whole):
                return other
        self._elements[label] = whole
        return label

    def _tree(self, statement: Statement, depth: int, reader: str) -> Tree:
        def leaf(n: int) -> Tree:
            self._met += 1
            if self._met > _LEAVES:  # stages that read one another twice double them
                return None
            accesses = statement.accesses
            same = next((m for m in self._groups(statement) if m == n or _equal(accesses[m], accesses[n])), n)
            at = f"{reader}/{statement.number}.{same}"
            if statement.update and is_own(statement, statement.accesses[n]):
                return None
            root = self._root(statement, n)
            if root is not None and root[2] == AS_IT_IS:
                return f"input {root[0]}#{at}"
            targets = by_target(self.flow.sources.get((statement.number, n), library().UnionMap("{ }")))
            sources = [self.flow.kernel.statements[t] for t in targets]
            adding = [s for s in sources if s.update or s.meets]
            trees = [self._tree(s, depth - 1, at) if depth else None for s in adding or sources]
            if len({words_of(tree, False) for tree in trees}) != 1 or trees[0] is None:  # threads' sums among them
                return f"several#{at}"
            kinds = {s.update or (s.adds[0] if s.adds else "") for s in adding}
            if len(kinds) > 1:
                return f"several#{at}"
            kind = f"all {next(iter(kinds))}" if kinds else ""
            return trees[0] if not adding or (isinstance(trees[0], tuple) and trees[0][0] == kind) else (kind, trees[0])

        return grown(statement.tree, leaf)

    def _numbers_of(self, output: int, final: Any) -> None:
        """Note the constants that reach an output, from whichever iteration; a sum's start is one of its terms."""
        statements, found = self.flow.kernel.statements, dict[int, Ways]()
        sums = {s.write.buffer.number: (s.update,) for s in statements if s.update and s.write is not None}
        frontier = {s: AS_IT_IS for s in by_target(final)}
        while frontier:
            following: dict[int, Ways] = {}
            for number, ways in frontier.items():
                new, statement = ways - found.get(number, frozenset()), statements[number]
                sets = () if statement.write is None else sums.get(statement.write.buffer.number, ())
                found[number] = found.get(number, frozenset()) | new
                if len(found[number]) > _WAYS:
                    self.skipped.add(f"more than {_WAYS} ways to an output")
                    return
                for n, access in enumerate(statement.accesses):
                    if new and (number, n) in self.flow.sources:
                        for target in by_target(self.flow.sources[number, n]):
                            longer = both_of(new, frozenset({access.way}))
                            following[target] = following.get(target, frozenset()) | longer
                own: set[tuple[str, Way]] = set()
                for constant, way in statement.numbers:
                    if constant == PLACE:
                        self.skipped.add(f"the value of a place in {statement.text}")
                        continue
                    for whole in both_of(both_of(new, frozenset({sets})), frozenset({way})):
                        if not is_neutral(constant, whole):
                            self.numbers.add((self.position[output], constant, whole))
                            own.add((constant, whole))
                if new and statement.write is not None:
                    of_tensor = self._own.setdefault((statement.write.buffer.number, statement.update), {})
                    of_tensor.setdefault(number, set()).update(own)
            frontier = following

    def _groups(self, statement: Statement) -> dict[int, Ways]:
        """Return the reads of a statement, the same element once, each with all its ways to the value."""
        if statement.number not in self._grouped:
            found: dict[int, Ways] = {}
            for n, access in enumerate(statement.accesses):
                if access.write or (statement.update and is_own(statement, access)):
                    continue
                same = (m for m in found if _equal(statement.accesses[m], access))
                first = next(same, n)
                found[first] = found.get(first, frozenset()) | {access.way}
            self._grouped[statement.number] = found
        return self._grouped[statement.number]

    def _inputs_of(self, output: int, statement: Statement, relation: Any, ways: Ways) -> None:
        for n, own in self._groups(statement).items():
            access, root = statement.accesses[n], self._root(statement, n)
            if root is not None:
                self._add(output, root[0], both_of(both_of(ways, own), root[2]), _pairs(relation, root[1]))
            elif (statement.number, n) not in self.flow.sources and access.buffer.parameter:
                self.skipped.add(access.text)
                pairs = _pairs(relation, access.elements)
                self._add(output, self.position[access.buffer.number], both_of(ways, own), pairs)

    def _add(self, output: int, position: int, ways: Ways, pairs: Any) -> None:
        for way in ways:
            self.inputs.setdefault((self.position[output], (position,), " ".join(way)), []).append(pairs)

    def _terms_of(self, output: int, statement: Statement, relation: Any, ways: Ways) -> None:
        """Note which elements a statement that sums combines with each other."""
        if not statement.update or statement.write is None:
            return
        leaves: list[_Leaf] = []
        for n, own in self._groups(statement).items():
            found = self._leaves(statement, n)
            if found is None:
                self.skipped.add(f"which values meet in {statement.text}")
                return
            leaves += [replace(leaf, ways=both_of(own, leaf.ways)) for leaf in found]
        if not leaves:
            self.skipped.add(f"a sum of numbers alone, {statement.text}")
            return
        leaves = _merged(leaves)
        if len(leaves) > 1 and not all(leaf.is_one(relation) for leaf in leaves if leaf.input is None):
            self.skipped.add(f"which values meet in {statement.text}")
        for way in ways:  # a stage that reads the sum in several ways may be computed in place, or not
            known = sorted(((leaf.input, text_of(both_of(frozenset({way}), leaf.ways)), leaf) for leaf in leaves
                            if leaf.input is not None), key=lambda leaf: leaf[:2])  # fmt: skip
            if known:
                words = " with ".join(text for _, text, _ in known)
                key = self.position[output], tuple(n for n, _, _ in known), words
                self.terms.setdefault(key, []).append(_pairs(relation, _joint([leaf for _, _, leaf in known])))
        if statement.update not in _IDEMPOTENT:
            made = _pairs(relation, _joint(leaves))
            if not (by_digits(made) or made.is_injective()):
                self.twice.append(statement.text)

    def _leaves(self, statement: Statement, n: int, depth: int = _STAGES) -> list[_Leaf] | None:
        """Return the values of which a read gets one; None if they are open."""
        root = self._root(statement, n)
        if root is not None:
            return [_Leaf(*root)]
        if (statement.number, n) not in self.flow.sources or not depth:
            return None
        targets = by_target(self.flow.sources[statement.number, n])
        sources = {t: self.flow.kernel.statements[t] for t in targets}
        setting = [t for t, source in sources.items() if not source.update]
        if len(setting) != 1 or not statement.accesses[n].exact:
            return None
        relation = targets[setting[0]]
        whole = [_Leaf(None, relation, AS_IT_IS, self._behind(statement, n))]
        groups = self._groups(sources[setting[0]])
        if len(targets) > 1 or not groups:
            return whole
        found: list[_Leaf] = []
        for m, ways in groups.items():
            inner = self._leaves(sources[setting[0]], m, depth - 1)
            if inner is None:
                return whole
            found += [leaf.of(relation, ways) for leaf in inner]
        return found

    def _behind(self, statement: Statement, n: int) -> dict[int, Any]:
        """Return which elements of each input a read is made of, whatever the way."""
        key, found = (statement.number, n), dict[int, Any]()
        if key in self._made:
            return self._made[key]
        if key in self._asked:
            self.skipped.add(f"a value made of itself, {statement.text}")
            return found
        self._asked.add(key)
        root, access = self._root(statement, n), statement.accesses[n]
        if root is not None:
            found[root[0]] = root[1]
        elif key not in self.flow.sources:
            if access.buffer.parameter:
                found[self.position[access.buffer.number]] = access.elements
        else:
            for target, relation in by_target(self.flow.sources[key]).items():
                source = self.flow.kernel.statements[target]
                for m in self._groups(source):
                    for at, elements in self._behind(source, m).items():
                        more = relation.apply_range(elements)
                        found[at] = found[at].union(more) if at in found else more
        self._made[key] = found
        return found

    def _root(self, statement: Statement, n: int) -> Root | None:
        """Return the input, and the one element of it, that a read gets through copies; None if it gets another."""
        key, known = (statement.number, n), self.flow.roots
        if key not in known:
            known[key] = None  # a copy of itself has none
            try:
                known[key] = self._find_root(key, statement.accesses[n])
            except library().Error:  # of work: the next try goes on here
                del known[key]
                raise
        found: Root | None = known[key]
        return found

    def _find_root(self, key: tuple[int, int], access: Access) -> Root | None:
        if not (access.exact or access.open):  # whichever way a condition goes, the same may be read
            return None
        if key not in self.flow.sources:
            known = access.buffer.parameter
            return (self.position[access.buffer.number], access.elements, AS_IT_IS) if known else None
        found: Root | None = None
        for target, relation in by_target(self.flow.sources[key]).items():
            source = self.flow.kernel.statements[target]
            reads = self._groups(source)
            if source.update or len(reads) != 1:
                return None
            ((n, own),) = reads.items()
            root = self._root(source, n)
            if root is None:
                return None
            ways = both_of(own, root[2])
            if found is not None and found[::2] != (root[0], ways):
                return None
            made = relation.apply_range(root[1])
            found = root[0], made if found is None else found[1].union(made), ways
        if found is None:
            return None
        plain = plain_of(found[1], access.elements.domain())
        return (found[0], plain, found[2]) if plain.is_single_valued() else None


def _equal(one: Access, other: Access) -> bool:
    return one.buffer == other.buffer and one.exact == other.exact and bool(one.elements.is_equal(other.elements))


def _merged(leaves: list[_Leaf]) -> list[_Leaf]:
    """Return leaves with the same element of an input once, by all its ways."""
    found: list[_Leaf] = []
    for leaf in leaves:
        for at, other in enumerate(found):
            if leaf.input is not None and leaf.input == other.input and leaf.elements.is_equal(other.elements):
                found[at] = replace(other, ways=other.ways | leaf.ways)
                break
        else:
            found.append(leaf)
    return found


def _joint(leaves: list[_Leaf]) -> Any:
    """Return iterations -> the elements of several leaves."""
    isl = library()
    joint = leaves[0].elements.set_tuple_name(isl.dim_type.out, "I")
    for other in leaves[1:]:
        joint = joint.flat_range_product(other.elements)
    return joint.set_tuple_name(isl.dim_type.out, "I")


def _pairs(relation: Any, elements: Any) -> Any:
    """Return iterations -> [element of the output -> elements of inputs]."""
    isl = library()
    reached = relation.reverse().set_tuple_name(isl.dim_type.out, "F")
    return reached.range_product(elements.set_tuple_name(isl.dim_type.out, "I"))


def all_of(several: list[Any]) -> Any:
    """Return all pairs as one isl.Set, None if there are none."""
    found = None
    for one in several:
        found = one.range() if found is None else found.union(one.range())
    return None if found is None else found.coalesce()


def by_target(union: Any) -> dict[int, Any]:
    """Return a union of maps to statements as a map a statement."""
    isl = library()
    return {int(m.get_tuple_name(isl.dim_type.out)[1:]): m for m in maps_of(union) if not m.is_empty()}
