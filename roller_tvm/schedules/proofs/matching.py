"""A scheduled statement beside the block whose instances it computes: the same operations, and what each read gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...codegen.dialect import dialect_here
from ...codegen.flat import access_of, choice_of, is_load, kind_of, memory_of, parts_of
from ...te.numbering import dtype_of_node
from .accesses import Accesses, closed, direct_parts
from .blocks import Block, Blocks, same
from .folds import Unfoldable
from .held import held_at
from .kernel import Statement
from .ways import EITHER, IMMEDIATE, operation_of

#: Most parts of two values that are compared: choices of one form beside those of another have many.
_STEPS = 2000


class _Apart(Exception):
    """The statement computes in another way than the block."""


@dataclass(frozen=True)
class Read:
    """The element that a read has to get.

    Parameters
    ----------
    number : int
        Among the accesses of the statement.
    block : Block or None
        None for an element of an input.
    position : int
        The input's, among the parameters.
    elements : isl.Map or None
        Iterations -> the element; None if it is that of the same index, told by data.
    """

    number: int
    block: Block | None
    position: int
    elements: Any


@dataclass(frozen=True)
class Instance:
    """The instances of a block that a statement computes.

    Parameters
    ----------
    block : Block
    written : isl.Map
        Iterations -> the element of the block's tensor.
    label : isl.Map
        Iterations -> the values of all axes.
    terms : isl.Map
        Elements of the tensor -> the instances that are summed.
    reads : tuple of Read
    why : str
        Where the statement is another, '' if it is the same.
    """

    block: Block
    written: Any
    label: Any
    terms: Any
    reads: tuple[Read, ...]
    why: str = ""


def instance_of(
    reader: Accesses, store: Any, statement: Statement, named: tuple[str, Sequence[Any]] | None, blocks: Blocks,
    present: frozenset[str], sizes: Mapping[int, Any],
) -> Instance | None:  # fmt: skip
    """Return the instances that a statement computes, None if it is none of a block.

    Parameters
    ----------
    reader : Accesses
        At the statement.
    named : (str, sequence of Expr), optional
        The name of a block, and the values of its axes: a hint, which is not relied on.
    blocks : Blocks
        Of the function before its schedule.
    present : frozenset of str
        The blocks that the schedule left; others are computed in place.
    sizes : mapping
        Hash of a size of that function -> the size here.
    """
    name, values = named or ("", ())
    block = blocks.named(name)
    if block is None or len(block.axes) != len(values):
        memory = reader.buffers.get(memory_of(store.buffer))
        if memory is None or not memory.parameter or statement.update:
            return None
        block = blocks.writing(sum(b.parameter for b in reader.kernel.buffers[: memory.number]))
        if block is None or block.init is not None or len(block.store.indices) != len(store.indices):
            return None
        places = {hash(index): value for index, value in zip(block.store.indices, store.indices, strict=True)}
        zero = dialect_here().tir.const(0, "int64")
        values = [places.get(hash(axis.var), zero) for axis in block.axes]
    if (block.init is not None) != bool(statement.update):
        return None
    try:
        return _Match(reader, store, statement, block, values, blocks, present, sizes).found()
    except (Unfoldable, _Apart):
        return None


def added(store: Any, statement: Statement) -> tuple[str, int] | None:
    """Return the operation and the number of the read that a store combines, as it is, with its own element."""
    value, tree = store.value, statement.tree
    if kind_of(value) not in EITHER or not (isinstance(tree, tuple) and len(tree) == 3):
        return None
    for own, read in ((value.a, tree[2]), (value.b, tree[1])):
        if is_load(own) and isinstance(read, int):
            buffer, indices = access_of(own)
            if memory_of(buffer) == memory_of(store.buffer) and all(map(same, indices, store.indices)):
                return kind_of(value), read
    return None


class _Match:
    def __init__(
        self, reader: Accesses, store: Any, statement: Statement, block: Block, values: Sequence[Any], blocks: Blocks,
        present: frozenset[str], sizes: Mapping[int, Any],
    ) -> None:  # fmt: skip
        self.reader, self.store, self.statement, self.block = reader, store, statement, block
        self.blocks, self.present, self.values, self.sizes = blocks, present, list(values), sizes
        self.where, self.count, self.steps, self.sums = statement.domain, 0, 0, 0
        self.reads: list[Read] = []
        self.space = f"{statement.space}[{', '.join(d.var for d in statement.dims)}]"
        self.own = [self._with(block, self.values, index) for index in block.store.indices]

    def found(self) -> Instance | None:
        block, why = self.block, ""
        written, label, terms = self._map(block.space, self.own), self._map("L", self.values), self._terms()
        if written is None or label is None or terms is None:
            return None
        try:
            self._walk(self.store.value, self._with(block, self.values, block.store.value))
        except _Apart as error:
            why = str(error)
        if block.init is not None and not why and (self.sums != 1 or self.statement.update not in EITHER):
            why = f"a sum in another order, {self.statement.text}"
        return Instance(block, written, label, terms, tuple(self.reads), why)

    def _with(self, block: Block, values: Sequence[Any], node: Any) -> Any:
        """Return an expression of a block for values of its axes."""
        dialect = dialect_here()
        known = {hash(axis.var): value for axis, value in zip(block.axes, values, strict=True)}
        names = {hash(part): part for part in parts_of(node) if kind_of(part) in ("Var", "SizeVar")}
        for key, var in names.items():
            value = known.get(key, self.sizes.get(key))
            if value is None:
                raise _Apart(f"{var}, which is no size")
            node = dialect.substituted(node, var, _as(value, var))
        return node

    def _map(self, space: str, values: Sequence[Any]) -> Any:
        text = self.reader._text()
        told = [text.index(value) for value in values]
        if text.opaque:
            return None
        equal = " and ".join(f"o{n} = {t}" for n, t in enumerate(told)) or "true"
        result = f"{space}[{', '.join(f'o{n}' for n in range(len(told)))}]"
        rule = closed(text, equal)
        made = self.reader._parsed(self.reader.isl.Map, f"{{ {self.space} -> {result} : {rule} }}", False)
        return made.intersect_domain(self.where) if self.where.is_subset(made.domain()) else None

    def _terms(self) -> Any:
        """Return the instances of each element of the block's tensor; None if isl has no words for its extents."""
        block, text = self.block, self.reader._text()
        own = {hash(index): n for n, index in enumerate(block.store.indices)}
        rules, names = [], []
        for n, axis in enumerate(block.axes):
            names.append(f"a{n}")
            rules.append(f"0 <= a{n} < {text.index(self._with(block, self.values, axis.dom.extent))}")
            rules += [f"a{n} = o{own[hash(axis.var)]}"] if hash(axis.var) in own else []
        places = ", ".join(f"o{n}" for n in range(len(block.store.indices)))
        if text.opaque or text.names:
            return None
        rule = " and ".join(rules) or "true"
        made = f"{{ {block.space}[{places}] -> L[{', '.join(names)}] : {rule} }}"
        return self.reader._parsed(self.reader.isl.Map, made)

    # Expressions ------------------------------------------------------------------------------------------------------

    def _walk(self, own: Any, wanted: Any) -> None:
        """Go through the value of the statement and that of the block; reads in the order of ``Accesses._loads``."""
        self.steps += 1
        if self.steps > _STEPS:
            raise _Apart(f"{self.block.name}, whose choices are many")
        if is_load(own) and (constant := held_at(own, self.reader.values)) is not None:
            own = constant
        while is_load(wanted) and (block := self._computed_in_place(wanted)) is not None:
            if block.init is not None:
                raise _Apart(f"a sum in place, {wanted}")
            wanted = self._with(block, self._axes_of(block, access_of(wanted)[1]), block.store.value)
        kind = kind_of(own)
        if choice_of(own) or choice_of(wanted):
            self._choice(own, wanted)
            return
        places = not self._has_values(own) and not self._has_values(wanted)
        if dtype_of_node(own) != dtype_of_node(wanted) and not (places and _are_ints(own, wanted)):
            raise _Apart(f"{own} for {wanted}")
        if dtype_of_node(own).startswith("int") and not self._has_values(own) and not self._has_values(wanted):
            self._same_number(own, wanted)
        elif kind in IMMEDIATE:
            if kind_of(wanted) != kind or repr(own.value) != repr(wanted.value):
                raise _Apart(f"{own} for {wanted}")
        elif kind == "StringImm":
            if kind_of(wanted) != kind or str(own.value) != str(wanted.value):
                raise _Apart(f"{own} for {wanted}")
        elif is_load(own):
            self._load(own, wanted)
        else:
            self._parts(own, wanted)

    def _parts(self, own: Any, wanted: Any) -> None:
        kind, parts, others = kind_of(own), direct_parts(own), direct_parts(wanted)
        alike = kind_of(wanted) == kind and operation_of(own) == operation_of(wanted) and len(parts) == len(others)
        if not alike or not parts or kind in ("Let", "Shuffle", "Ramp"):
            raise _Apart(f"{own} for {wanted}")
        for part, other in zip(parts, others, strict=True):
            self._walk(part, other)

    def _choice(self, own: Any, wanted: Any) -> None:
        """Compare choices by one condition, or each side of a choice by places with the other value."""
        (condition, *parts), (other, *others) = (choice_of(node) or (None,) for node in (own, wanted))
        rules = [self._rule(condition), self._rule(other)]
        if parts and others and None in rules:  # by data
            self._parts(condition, other)
            for part, same_part in zip(parts, others, strict=True):
                self._walk(part, same_part)
        elif rules[0] and rules[1] and (rules[0] == rules[1] or self._set(rules[0]).is_equal(self._set(rules[1]))):
            for holds, part, same_part in zip((True, False), parts, others, strict=True):
                self._under(condition, holds, part, same_part)
        elif others and rules[1] is not None:
            start = self.count
            for holds, same_part in zip((True, False), others, strict=True):
                self.count = start
                self._under(other, holds, own, same_part)
        elif parts and rules[0] is not None:
            for holds, part in zip((True, False), parts, strict=True):
                self._under(condition, holds, part, wanted)
        else:
            raise _Apart(f"{own} for {wanted}")

    def _rule(self, condition: Any) -> str | None:
        """Return a condition on places in isl's notation, None if there is none, or if it depends on data."""
        text = self.reader._text()
        rule = None if condition is None else closed(text, text.condition(condition))
        return None if text.opaque else rule

    def _under(self, condition: Any, holds: bool, own: Any, wanted: Any) -> None:
        """Compare values where a condition on places holds, or does not."""
        before, text = self.where, self.reader._text()
        self.where = self._set(closed(text, text.condition(condition, holds)))
        if self.where.is_empty():
            loads = [part for part in parts_of(own) if is_load(part)]
            self.count += sum(held_at(load, self.reader.values) is None for load in loads)
        else:
            self._walk(own, wanted)
        self.where = before

    def _set(self, rule: str) -> Any:
        return self.reader._parsed(self.reader.isl.Set, f"{{ {self.space} : {rule} }}", False).intersect(self.where)

    def _same_number(self, own: Any, wanted: Any) -> None:
        text = self.reader._text()
        one, other = text.index(own), text.index(wanted)
        if text.opaque:
            raise _Apart(f"{own} for {wanted}")
        if one != other and not self._set(closed(text, f"{one} != {other}")).is_empty():
            raise _Apart(f"{own} for {wanted}")

    def _load(self, own: Any, wanted: Any) -> None:
        number, (buffer, indices) = self.count, access_of(own)
        self.count += 1
        if not is_load(wanted):
            raise _Apart(f"{own} for {wanted}")
        source, places = access_of(wanted)
        if memory_of(source) == memory_of(self.block.store.buffer):
            mine = memory_of(buffer) == memory_of(self.store.buffer) and all(map(same, indices, self.store.indices))
            if not (mine and self.statement.update and all(map(same, places, self.own))):
                raise _Apart(f"{own} for {wanted}")
            self.sums += 1
            return
        block, position = self.blocks.by_memory.get(memory_of(source)), self.blocks.positions.get(memory_of(source), -1)
        elements = self._map(block.space if block is not None else "I", places)
        if elements is None:  # told by data, or by numbers of which isl knows nothing
            if block is not None or len(indices) != len(places):
                raise _Apart(f"{wanted}, computed")
            for index, place in zip(indices, places, strict=True):
                self._walk(index, place)
        elif any(is_load(part) for index in indices for part in parts_of(index)):
            raise _Apart(f"{own} for {wanted}")
        self.reads.append(Read(number, block, position, elements))

    def _computed_in_place(self, load: Any) -> Block | None:
        block = self.blocks.by_memory.get(memory_of(access_of(load)[0]))
        return None if block is None or block is self.block or block.name in self.present else block

    def _axes_of(self, block: Block, indices: Sequence[Any]) -> list[Any]:
        places = {hash(index): value for index, value in zip(block.store.indices, indices, strict=True)}
        zero = dialect_here().tir.const(0, "int64")
        return [places.get(hash(axis.var), zero) for axis in block.axes]

    def _has_values(self, node: Any) -> bool:
        return any(map(self.reader._is_value, parts_of(node)))


def _as(value: Any, var: Any) -> Any:
    dtype = dtype_of_node(var)
    return value if dtype_of_node(value) == dtype else value.astype(dtype)


def _are_ints(a: Any, b: Any) -> bool:
    return all(dtype_of_node(node).startswith("int") for node in (a, b))
