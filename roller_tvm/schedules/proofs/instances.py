"""Outputs are those of the blocks of the function before its schedule: statement by statement, not input by input.

Each statement that reaches an output has to compute instances of one block: the same operations, and each read has to
get the element that the block reads there. A sum has to hold each of its terms once. What a statement reads is written
before, so that this holds for all elements if it holds for each statement.
"""

from __future__ import annotations

from typing import Any

from .blocks import Block
from .flow import Flow
from .kernel import Statement
from .matching import Instance
from .memory import box_of
from .origins import by_target
from .sets import library

#: Most copies that a value passes one after another.
_COPIES = 100


class _Open(Exception):
    """It is not known that a value is the right one."""


def same_instances(flow: Flow) -> str:
    """Return '' if the outputs are those of the blocks, else what keeps that open."""
    try:
        _Instances(flow).outputs()
    except _Open as error:
        return str(error)
    return ""


class _Instances:
    def __init__(self, flow: Flow) -> None:
        self.flow, self.kernel, self.isl = flow, flow.kernel, library()
        self.params = [b for b in self.kernel.buffers if b.parameter]
        self.positions = {buffer.number: n for n, buffer in enumerate(self.params)}
        self.todo: list[Statement] = []
        self.copies = 0  # around the present one
        self.seen: set[int] = set()

    def outputs(self) -> None:
        """Compare all outputs, then what reaches them."""
        if not self.flow.finals:
            raise _Open("no outputs")
        for position, buffer in enumerate(self.params):
            block = None if self.kernel.writing is None else self.kernel.writing(position)
            final = self.flow.finals.get(buffer.number)
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
        if not statement.exact:
            raise _Open(statement.text)
        for read in instance.reads:
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
            if not ((access.exact or access.open) and access.elements.is_subset(named)):
                raise _Open(access.text)
            return
        if elements is None or not (access.exact or access.open):
            raise _Open(access.text)
        if not self.flow.missing[key].is_empty():
            raise _Open(f"{access.text}, which nothing wrote")
        self._gets(by_target(self.flow.sources[key]), elements, block, position)

    def _gets(self, sources: dict[int, Any], elements: Any, block: Block | None, position: int = -1) -> None:
        """Compare sources of a value with the element that it has to be: of a block or of an input."""
        adding: list[tuple[Instance, Any]] = []
        starts, domain, whole = False, elements.domain(), None
        for number, relation in sources.items():
            source, own = self.kernel.statements[number], relation.intersect_domain(domain)
            if own.is_empty():
                continue
            if not (source.exact and source.write is not None and source.write.exact):
                raise _Open(source.text)
            instance, begins = source.instance, block is not None and source.tree == f"={block.init}"
            if not (source.update or begins):
                whole = own.domain() if whole is None else whole.union(own.domain())
            if source.update or instance is not None:
                if instance is None or instance.block is not block:
                    raise _Open(source.text)
                if not own.apply_range(instance.written).is_subset(elements):
                    raise _Open(f"another element of {block.name}, {source.text}")
                adding += [(instance, own)] if source.update else []
                if number not in self.seen:
                    self.seen.add(number)
                    self.todo.append(source)
            elif begins:
                starts = True
            elif isinstance(source.tree, int) and number in self.kernel.copies:
                passed = own.reverse().apply_range(elements)
                if not passed.is_single_valued():
                    raise _Open(f"one copy for several elements, {source.text}")
                if self.copies == _COPIES:
                    raise _Open(f"many copies one after another, {source.text}")
                self.copies += 1
                self._read(source, source.tree, passed, block, position)
                self.copies -= 1
            else:
                raise _Open(source.text)
        if adding:
            rest = elements if whole is None else elements.subtract_domain(whole)
            if any(not own.domain().is_subset(rest.domain()) for _, own in adding):
                raise _Open(f"a sum of {block.name if block else 'an input'} that starts from another value")
            self._sums(adding, rest, starts)
        elif starts:
            raise _Open("a sum of no terms")

    def _sums(self, adding: list[tuple[Instance, Any]], elements: Any, starts: bool) -> None:
        """Compare the terms of a sum with those that it has to have, each once."""
        got = None
        for instance, own in adding:
            terms = own.apply_range(instance.label)
            if not own.range_map().apply_range(instance.label).range_product(own.domain_map()).is_injective():
                raise _Open(f"a term of {instance.block.name} twice")
            if got is not None and not got.intersect(terms).is_empty():
                raise _Open(f"a term of {instance.block.name} twice")
            got = terms if got is None else got.union(terms)
        wanted = elements.apply_range(adding[0][0].terms)
        if not (starts and got is not None and wanted.is_equal(got)):
            raise _Open(f"other terms of {adding[0][0].block.name}")
