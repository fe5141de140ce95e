"""Outputs are those of the blocks of the function before its schedule: statement by statement, not input by input.

Each statement that reaches an output has to compute instances of one block: the same operations, and each read has to
get the element that the block reads there. A sum has to hold each of its terms once. What a statement reads is written
before, so that this holds for all elements if it holds for each statement.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from ...codegen.flat import kind_of
from .blocks import Block
from .flow import Flow
from .kernel import Access, Statement
from .matching import Instance
from .memory import box_of
from .origins import by_target
from .sets import by_digits, library

#: Most copies that a value passes one after another.
_COPIES = 100
#: Numbers that change nothing where they are added or multiplied, as they are written.
_NEUTRAL = {"Add": ("0", "0.0"), "Mul": ("1", "1.0")}


class _Open(Exception):
    """It is not known that a value is the right one."""


@dataclass(frozen=True)
class Compared:
    """Outputs beside the tensors of blocks.

    Parameters
    ----------
    why : str
        What keeps open whether they are the same, '' if they are.
    by_data : frozenset of (int, int)
        Statements and the numbers of their reads at places that data tell, each a read of the block in an instance of
        it: within its buffer if that of the function before its schedule is.
    """

    why: str
    by_data: frozenset[tuple[int, int]] = frozenset()


def compared(flow: Flow) -> Compared:
    """Compare all outputs of a kernel with the tensors of blocks."""
    found = _Instances(flow)
    try:
        found.outputs()
    except _Open as error:
        return Compared(str(error))
    return Compared("", frozenset(found.by_data))


class _Instances:
    def __init__(self, flow: Flow) -> None:
        self.flow, self.kernel, self.isl = flow, flow.kernel, library()
        self.params = [b for b in self.kernel.buffers if b.parameter]
        self.positions = {buffer.number: n for n, buffer in enumerate(self.params)}
        self.todo: list[Statement] = []
        self.copies = 0  # around the present one
        self.seen: set[int] = set()
        self.by_data: set[tuple[int, int]] = set()
        self.alike: dict[int, Instance] = {}  # statements of which iterations write an element again, the same value

    def outputs(self) -> None:
        """Compare all outputs, then what reaches them."""
        ends = self.flow.finals | self.flow.writers  # of which it does not matter which is the last
        if not ends:
            raise _Open("no outputs")
        for position, buffer in enumerate(self.params):
            block = None if self.kernel.blocks is None else self.kernel.blocks.writing(position)
            final = ends.get(buffer.number)
            if block is None:
                if final is None:  # an input
                    continue
                raise _Open(f"{buffer.name}, which no block writes")
            if final is None:
                raise _Open(f"{block.name}, which is not written")
            elements = box_of(buffer, self.kernel).set_tuple_name("F").identity()
            self._gets(by_target(final), elements.set_tuple_name(self.isl.dim_type.out, block.space), block)
        while self.todo:
            self._reads_of(self.todo.pop())

    def _reads_of(self, statement: Statement) -> None:
        instance = statement.instance
        assert isinstance(instance, Instance)
        if instance.why:
            raise _Open(instance.why)
        for read in instance.reads:
            if read.elements is None and instance.label.range().is_subset(instance.terms.range()):
                self.by_data.add((statement.number, read.number))
            self._read(statement, read.number, read.elements, read.block, read.position)

    def _read(self, statement: Statement, number: int, elements: Any, block: Block | None, position: int) -> None:
        """Compare the element that a read gets with the one that it has to get."""
        access, key = statement.accesses[number], (statement.number, number)
        if key not in self.flow.sources:
            if not access.buffer.parameter or block is not None or self.positions[access.buffer.number] != position:
                raise _Open(access.text)
            if elements is None:  # of the same index, told by data
                return
            named = elements.set_tuple_name(self.isl.dim_type.out, access.buffer.space)
            own = access.elements.intersect_domain(elements.domain())
            if not ((access.exact or access.open) and own.is_subset(named)):
                raise _Open(access.text)
            return
        if elements is None or not (access.exact or access.open):
            raise _Open(access.text)
        if not self.flow.missing[key].is_empty():
            raise _Open(f"{access.text}, which nothing wrote")
        self._gets(by_target(self.flow.sources[key]), elements, block, position)

    def _gets(self, sources: dict[int, Any], elements: Any, block: Block | None, position: int = -1) -> None:
        """Compare sources of a value with the element that it has to be: of a block or of an input."""
        adding: list[tuple[Statement, Any]] = []
        starts, domain, whole = False, elements.domain(), None
        for number, relation in sources.items():
            source, own = self._exact(number), relation.intersect_domain(domain)
            if own.is_empty():
                continue
            instance, begins = source.instance, block is not None and source.tree == f"={block.init}"
            copied = isinstance(source.tree, int) and number in self.kernel.copies
            if not (source.update or begins or source.meets):
                whole = own.domain() if whole is None else whole.union(own.domain())
            if source.update or source.meets:
                adding.append((source, own))
            elif instance is not None and not (copied and (instance.why or instance.block is not block)):
                if instance.block is not block:
                    raise _Open(source.text)
                if not own.apply_range(instance.written).is_subset(elements):
                    raise _Open(f"another element of {block.name}, {source.text}")
                self._later(source)
            elif begins:
                starts = True
            elif copied:
                passed = own.reverse().apply_range(elements)
                if not passed.is_single_valued():
                    raise _Open(f"one copy for several elements, {source.text}")
                with self._deeper(source):
                    self._read(source, source.tree, passed, block, position)
            else:
                raise _Open(source.text)
        if adding:
            rest = elements if whole is None else elements.subtract_domain(whole)
            if block is None or any(not own.domain().is_subset(rest.domain()) for _, own in adding):
                raise _Open(f"a sum of {block.name if block else 'an input'} that starts from another value")
            self._sums(adding, rest, block, starts)
        elif starts:
            raise _Open("a sum of no terms")

    def _exact(self, number: int) -> Statement:
        source = self.kernel.statements[number]
        if not (source.exact and source.write is not None and source.write.exact):
            raise _Open(source.text)
        return source

    def _later(self, source: Statement) -> None:
        """Note that the reads of a statement are to be compared."""
        if source.number not in self.seen:
            self.seen.add(source.number)
            self.todo.append(source)

    @contextmanager
    def _deeper(self, source: Statement) -> Iterator[None]:
        if self.copies == _COPIES:
            raise _Open(f"many copies one after another, {source.text}")
        self.copies += 1
        yield
        self.copies -= 1

    def _sums(self, adding: list[tuple[Statement, Any]], elements: Any, block: Block, starts: bool) -> None:
        """Compare the terms of a sum with those that it has to have, each once."""
        if not (all(_is_term(source, block) for source, _ in adding) or _is_neutral(block)):
            raise _Open(f"parts of {block.name}, each of which starts from {block.init}")
        found = [one for source, own in adding for one in self._terms_of(source, own, block)]
        begun = starts or all(source.meets for source, _ in adding)  # these have started in each thread
        got = _each_once(found, block)
        if not (begun and got is not None and elements.apply_range(found[0][0].terms).is_equal(got)):
            raise _Open(f"other terms of {block.name}")

    def _terms_of(self, source: Statement, own: Any, block: Block) -> list[tuple[Instance, Any]]:
        """Return the statements that compute the terms which a statement adds up: each adds one, or parts of others.

        Parameters
        ----------
        own : isl.Map
            What reads the sum -> iterations of the statement.
        """
        instance, adds = source.instance, source.adds
        if _is_term(source, block):
            self._later(source)
            return [(instance, own)]
        if adds is None or adds[0] != kind_of(block.store.value):
            raise _Open(instance.why if instance is not None and instance.why else source.text)
        with self._deeper(source):
            return self._parts(source, adds[1], own, block)

    def _parts(self, source: Statement, number: int, own: Any, block: Block) -> list[tuple[Instance, Any]]:
        """Return the same of the parts that a statement reads, each of which it may add once."""
        access, key = source.accesses[number], (source.number, number)
        if key not in self.flow.sources or not access.exact or not self.flow.missing[key].is_empty():
            raise _Open(access.text)
        found: list[tuple[Instance, Any]] = []
        for at, relation in by_target(self.flow.sources[key]).items():
            part, steps = self._exact(at), relation.intersect_domain(own.range())
            if part.write is not None and part.write.buffer.number in self.kernel.reread:
                found.append(self._of_any(source, access, part, own, block))
                continue
            if steps.is_empty() or (part.tree == f"={block.init}" and not part.update):
                continue
            if not own.reverse().range_product(steps).is_injective():
                raise _Open(f"a part of {block.name} twice, {source.text}")
            reached = own.apply_range(steps)
            if part.update or part.meets:
                found += self._terms_of(part, reached, block)
            elif isinstance(part.tree, int) and at in self.kernel.copies:
                with self._deeper(part):
                    found += self._parts(part, part.tree, reached, block)
            else:
                raise _Open(part.text)
        return found

    def _of_any(
        self, source: Statement, access: Access, part: Statement, own: Any, block: Block
    ) -> tuple[Instance, Any]:  # fmt: skip
        """Return the parts in an element that several iterations write, all of them the same, by the element."""
        if part.number not in self.alike:
            self.alike[part.number] = self._alike(part, block)
        instance = self.alike[part.number]
        cells = access.homes.intersect_domain(own.range())
        if not own.reverse().range_product(cells).is_injective():
            raise _Open(f"a part of {block.name} twice, {source.text}")
        return instance, own.apply_range(cells)

    def _alike(self, part: Statement, block: Block) -> Instance:
        """Return the parts in each element that a statement writes; they are the same whichever iteration does."""
        write = part.write
        if write is None or not isinstance(part.tree, int) or part.number not in self.kernel.copies:
            raise _Open(part.text)
        cells = write.homes if write.near is None else write.near
        with self._deeper(part):
            found = self._parts(part, part.tree, part.domain.identity(), block)
        terms = _each_once(found, block)
        if terms is None or not cells.apply_range(cells.reverse()).apply_range(terms).is_subset(terms):
            raise _Open(f"several parts of {block.name} for one element, {part.text}")
        return replace(found[0][0], label=cells.reverse().apply_range(terms))


def _each_once(found: list[tuple[Instance, Any]], block: Block) -> Any:
    """Return the terms of a sum, None if there are none."""
    got = None
    for instance, own in found:
        terms = own.apply_range(instance.label)
        if not _once(instance.label, own) or not (got is None or got.intersect(terms).is_empty()):
            raise _Open(f"a term of {block.name} twice")
        got = terms if got is None else got.union(terms)
    return got


def _once(label: Any, own: Any) -> bool:
    """Return whether what reads a sum gets each term once."""
    if by_digits(label.intersect_domain(own.range())):  # whoever reads it
        return True
    return bool(own.range_map().apply_range(label).range_product(own.domain_map()).is_injective())


def _is_term(source: Statement, block: Block) -> bool:
    """Return whether a statement adds a term of its own to a sum."""
    instance = source.instance
    return bool(source.update) and instance is not None and instance.block is block and not instance.why


def _is_neutral(block: Block) -> bool:
    """Return whether the number that a sum starts with may be in it several times."""
    kind = kind_of(block.store.value)
    return kind in ("Max", "Min", "And", "Or") or block.init in _NEUTRAL.get(kind, ())
