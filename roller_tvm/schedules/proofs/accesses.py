"""Accesses of statements as integer sets, and the buffers that they go to: the lower half of the reader."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ...codegen.flat import access_of, called, is_load, kind_of, number_of, parts_of, statements
from ...ir.stage import dtype_bytes
from ...te.numbering import dtype_of_node
from .affine import Text
from .digits import fused_from, part_of, split_index, summands
from .kernel import THREAD, Access, Buffer, Dim, Kernel, Statement
from .sets import library, plain_of
from .ways import CHOICE, IMMEDIATE, INDEX, Way, joined, step_of

_COMBINES = ("Add", "Mul", "Max", "Min", "Sub")


class Accesses:
    """The place of the reader in a function, and what is read there.

    Parameters
    ----------
    largest, flat
        As of ``read_kernel``.
    """

    def __init__(self, largest: int, flat: bool) -> None:
        self.flat = flat
        self.isl, self.kernel, self.largest = library(), Kernel(), largest
        self.dims: dict[int, tuple[Dim, ...]] = {}  # loop variable -> its digits
        self.cuts: dict[int, Counter[int]] = {}  # loop variable -> what it is divided by
        self.sizes: dict[int, str] = {}
        self.values: dict[int, Any] = {}  # bound name -> its value
        self.buffers: dict[int, Buffer] = {}  # by the memory's variable
        self.shapes: dict[int, Any] = {}
        self.place: list[int | Dim] = []
        self.rules: list[str] = []  # ranges of loops and conditions around the place
        self.reduced: dict[str, tuple[Dim, str]] = {}
        self.exact = True
        self.divided: dict[int, int] = {}  # memory that a fused index goes along -> the first dimension of these
        self.fused: dict[int, int] = {}  # the same by the numbers of buffers
        self.loops = self.digits = 0
        self.issuing = self.landing = False  # whether stores are copies that run ahead, and whether they arrive
        self.said: list[str] = []  # rules of the last statement's accesses
        self.numbers: set[tuple[str, Way]] = set()  # constants of the statement that is read

    # Functions and statements -----------------------------------------------------------------------------------------

    def _buffer(self, buffer: Any, scope: str, parameter: bool = False) -> Buffer:
        shape = tuple(self._shape(e) for e in buffer.shape)
        return self._add(memory_of(buffer), str(buffer.name), shape, scope, str(buffer.dtype), parameter)

    def _add(
        self, key: int, name: str, shape: tuple[str, ...], scope: str, dtype: str, parameter: bool = False
    ) -> Buffer:
        dims = tuple(p for p in self.place if isinstance(p, Dim))
        dims = () if parameter else tuple(d for d in dims if not (scope.startswith("shared") and d.kind == THREAD))
        numbers = [int(e) for e in shape if e.isdigit()]
        lanes = re.search(r"x(\d+)$", dtype)
        size = dtype_bytes(dtype.split("x")[0]) * (int(lanes[1]) if lanes else 1)
        total = math.prod(numbers) * size if len(numbers) == len(shape) else 0
        made = Buffer(len(self.kernel.buffers), name, shape, scope.split(".")[0], dims, parameter, total)
        if key in self.divided and not parameter:
            self.fused[made.number] = self.divided[key]
        self.kernel.buffers.append(made)
        self.buffers[key] = made
        return made

    def _shape(self, extent: Any) -> str:
        text = self._text()
        found = text.index(extent)
        if text.opaque:
            self.kernel.unread.append(f"the size {text.opaque[0]}")
        return found

    def _text(self) -> Text:
        return Text(self._name, self.values, self._digits)

    def _name(self, var: Any) -> str | None:
        if hash(var) in self.dims:
            return self._digits(var, 1, 0)
        if not dtype_of_node(var).startswith(("int", "uint")):
            return None
        if hash(var) not in self.sizes:
            name = f"p{len(self.sizes)}"
            self.sizes[hash(var)] = name
            self.kernel.parameters[name] = str(var.name)
        return self.sizes[hash(var)]

    def _parts(self, var: Any, low: int, high: int) -> list[tuple[str, int, int]] | None:
        """Return (name, factor, extent) of each digit of ``var % high // low``; None if it is no sum of digits."""
        dims = self.dims.get(hash(var), ())
        whole = dims[0].stride * dims[0].extent if dims else 0
        limits = {d.stride for d in dims}
        if not dims or low not in limits or not (high == 0 or high in limits or high >= whole > 0):
            return None
        own = [d for d in dims if d.stride >= low and (high == 0 or d.stride < high)]
        return [(self.reduced.get(d.var, (d, d.var))[1], d.stride // low, d.extent) for d in own]

    def _digits(self, var: Any, low: int, high: int) -> str | None:
        found = self._parts(var, low, high)
        if found is None:
            return None
        told = " + ".join(f"{factor}*{name}" if factor > 1 else name for name, factor, _ in found)
        return f"({told})" if len(found) > 1 else told or "0"

    def _split(self, index: Any, steps: Sequence[int]) -> list[str] | None:
        """Return a flat index as one index a dimension, if ranges of loops alone tell that."""
        terms: Counter[str] = Counter()
        extents: dict[str, int] = {}
        start = 0
        for node, factor in summands(index) or [(index, 1)]:
            if (number := number_of(node)) is not None:
                start += factor * number
                continue
            part = part_of(node)
            found = self._parts(*part) if part is not None else None
            if found is None or not all(extent for _, _, extent in found):
                return None
            for name, by, extent in found:
                terms[name] += factor * by
                extents[name] = extent
        return split_index(terms, start, extents, steps)

    def _store(self, store: Any) -> None:
        value, indices = store.value, list(store.indices)
        accesses: list[tuple[Any, ...]] = []
        self._loads(value, [], True, (), accesses)
        for index in indices:
            self._loads(index, [], True, (INDEX,), accesses)
        update = _updates(value, store.buffer, indices)
        accesses.append((store.buffer, indices, True, [], True, ()))
        self._statement(accesses, f"{store.buffer.name}[{', '.join(map(str, indices))}]", update)
        if self.issuing:
            self.kernel.statements[-1] = replace(self.kernel.statements[-1], issued=True)

    def _loads(self, node: Any, rules: list[str], exact: bool, way: Way, found: list[Any]) -> None:
        """Collect the loads of an expression, each with the conditions under which it is read and its way upwards."""
        kind = kind_of(node)
        if kind in IMMEDIATE:
            self.numbers.add((repr(node.value), way))
            return
        if dtype_of_node(node).startswith("int") and not any(map(self._is_value, parts_of(node))):
            return  # of places alone, which are computed in other ways
        if kind in ("Var", "SizeVar"):
            if hash(node) in self.values:
                self._loads(self.values[hash(node)], rules, exact, way, found)
            return
        if kind == "Select" or called(node) == "if_then_else":
            condition, yes, no = (node.condition, node.true_value, node.false_value) if kind == "Select" else node.args
            self._loads(condition, rules, exact, joined(way, (CHOICE,)), found)
            for holds, part in ((True, yes), (False, no)):
                text = self._text()
                rule = closed(text, text.condition(condition, holds))
                self._loads(part, [*rules, rule], exact and not text.opaque, way, found)
            return
        if kind == "Let":
            self.values[hash(node.var)] = node.value
            self._loads(node.body, rules, exact, way, found)
            return
        if is_load(node):
            buffer, indices = access_of(node)
            found.append((buffer, indices, False, rules, exact, way))
            for index in indices:
                self._loads(index, rules, exact, joined(way, (INDEX,)), found)
            return
        if called(node) in ("address_of", "tvm_access_ptr", "access_ptr"):
            self.kernel.unread.append(f"an address: {node}")
            return
        parts = _direct_parts(node)
        for number, part in enumerate(parts):
            self._loads(part, rules, exact, joined(way, step_of(node, number, len(parts))), found)

    def _is_value(self, node: Any) -> bool:
        """Return whether an expression may hold an element of a tensor."""
        return is_load(node) or kind_of(node) in ("Call", "Let") or hash(node) in self.values

    def _statement(self, accesses: Sequence[Any], text: str, update: str = "", extra: Sequence[str] = ()) -> None:
        number, dims = len(self.kernel.statements), [p for p in self.place if isinstance(p, Dim)]
        space = f"S{number}[{', '.join(d.var for d in dims)}]"
        rules = " and ".join(self.rules) or "true"
        domain = self._parsed(self.isl.Set, f"{{ {space} : {rules} }}")
        self.said = []
        made = [m for a in accesses if (m := self._access(space, rules, extra, *a)) is not None]
        exact = self.exact
        for dim in dims:
            # Virtual threads are trips of one thread; what knows nothing of them it does once.
            if dim.name.startswith(("vthread", "cthread")) and not self._knows(dim):
                one = self._parsed(self.isl.Set, f"{{ {space} : {dim.var} = 0 }}")
                domain = domain.intersect(one)
                made = [replace(a, elements=a.elements.intersect_domain(one), homes=a.homes.intersect_domain(one))
                        for a in made]  # fmt: skip
        self.kernel.statements.append(
            Statement(number, tuple(self.place), domain, tuple(made), text, update, exact=exact,
                      numbers=frozenset(self.numbers))
        )  # fmt: skip
        self.numbers.clear()

    def _access(
        self, space: str, around: str, extra: Sequence[str], buffer: Any, indices: list[Any], write: bool,
        rules: list[str], exact: bool, way: Way,
    ) -> Access | None:  # fmt: skip
        memory = self.buffers.get(memory_of(buffer))
        if memory is None:
            self.kernel.unread.append(f"memory of '{buffer.name}' from elsewhere")
            return None
        text = self._text()
        starts, lanes = [], []
        for index in indices:
            if kind_of(index) == "Ramp":  # a vector written out
                lane = text._new()
                lanes.append(f"0 <= {lane} < {number_of(index.lanes) or 1}")
                starts.append(f"({text.index(index.base)} + {number_of(index.stride) or 1} * {lane})")
            else:
                starts.append(text.index(index.value if kind_of(index) == "Broadcast" else index))
        flat = self.flat and memory.parameter and len(starts) == 1 < len(memory.shape)
        own = [f"o{n}" for n in range(len(memory.shape) if flat else len(starts))]
        if flat:  # one index for all dimensions
            steps = [math.prod(map(int, memory.shape[n + 1 :])) for n in range(len(own))]
            parts = None if lanes else self._split(indices[0], steps)
            if parts is not None:
                starts, flat = parts, False
        equal = [f"{o} = {e}" for o, e in zip(own, starts, strict=False)]
        if flat:
            equal = [" + ".join(f"{step} * {o}" for step, o in zip(steps, own, strict=True)) + f" = {starts[0]}"]
            equal += [f"0 <= {o} < {extent}" for o, extent in zip(own[1:], memory.shape[1:], strict=True)]
        rule = " and ".join([*equal, *rules, *lanes, *text.rules]) or "true"
        wanted = [*(f"{v}" for v in text.names), *extra_names(extra)]
        rule = f"exists ({', '.join(wanted)} : {' and '.join([rule, *extra])})" if wanted else rule
        homes = [d.var for d in memory.dims]
        self.said += [rule, *homes]
        element = self._parsed(
            self.isl.Map, f"{{ {space} -> {memory.space}[{', '.join(own)}] : ({around}) and {rule} }}"
        )
        if (flattened := self._flattened(memory, indices, rules, lanes)) is not None:
            own, rule = flattened
        result = f"{memory.space}[{', '.join([*homes, *own])}]"
        home = self._parsed(self.isl.Map, f"{{ {space} -> {result} : ({around}) and {rule} }}")
        if flat:
            element, home = (plain_of(found, found.domain()) for found in (element, home))
        told = text.opaque[0] if text.opaque else f"{buffer.name}[{', '.join(map(str, indices))}]"
        known = self.exact and not text.opaque
        return Access(memory, element, home, write, exact and known, told, known and not exact, way)

    def _flattened(
        self, memory: Buffer, indices: Sequence[Any], rules: Sequence[str], lanes: Sequence[str]
    ) -> tuple[list[str], str] | None:
        """Return the names and the rule of an element whose last dimensions are one; None for what is not seen so.

        Copies go along a tile by one fused index: of flat memory, nothing is divided.
        """
        first = self.fused.get(memory.number)
        if first is None or lanes or len(indices) != len(memory.shape) or not all(e.isdigit() for e in memory.shape):
            return None
        text, names = self._text(), [f"o{n}" for n in range(first + 1)]
        steps = [math.prod(map(int, memory.shape[n + 1 :])) for n in range(first, len(indices))]
        told = [*map(text.index, indices[:first]), text.flat(indices[first:], steps)]
        rule = " and ".join([*(f"{n} = {t}" for n, t in zip(names, told, strict=True)), *rules, *text.rules])
        return names, f"exists ({', '.join(text.names)} : {rule})" if text.names else rule

    def _knows(self, dim: Dim) -> bool:
        """Return whether the last statement's accesses or conditions depend on a loop."""
        range_of = f"<= {dim.var} <"
        return any(re.search(rf"\b{dim.var}\b", rule) for rule in [*self.rules, *self.said] if range_of not in rule)

    def _parsed(self, kind: Any, text: str) -> Any:
        params = sorted(self.sizes.values())
        head = f"[{', '.join(params)}] -> " if params else ""
        if params:
            bounds = " and ".join(f"1 <= {p} <= {self.largest}" for p in params)
            text = text.replace(" : ", f" : {bounds} and ", 1)
        return kind(head + text)


def divided(body: Any) -> dict[int, int]:
    """Return the memory of which a store's indices are parts of one expression: its key -> the first such dimension."""
    found: dict[int, int] = {}
    for node in statements(body):
        if kind_of(node) == "BufferStore" and (first := fused_from(node.indices)) is not None:
            key = memory_of(node.buffer)
            found[key] = min(first, found.get(key, first))
    return found


def extra_names(extra: Sequence[str]) -> list[str]:
    """Return the variables that rules of the form ``0 <= r1 < 4`` bound."""
    return [rule.split(" <= ")[1].split(" < ")[0] for rule in extra]


def closed(text: Text, rule: str) -> str:
    rule = " and ".join([rule, *text.rules])
    return f"exists ({', '.join(text.names)} : {rule})" if text.names else f"({rule})"


def memory_of(buffer: Any) -> int:
    """Return the same number for a buffer and its other views."""
    if kind_of(buffer) == "Var" or not hasattr(buffer, "data"):
        return hash(buffer)
    data = buffer.data
    return hash(data) if kind_of(data) == "Var" else hash(buffer)


def scope_of(buffer: Any) -> str:
    scope = buffer.scope
    return str(scope() if callable(scope) else scope) or "global"


def scope_of_var(var: Any) -> str:
    return str(getattr(var.type_annotation, "storage_scope", "") or "global")


def _direct_parts(node: Any) -> list[Any]:
    seen = iter(parts_of(node))
    next(seen)
    kind = kind_of(node)
    if kind == "Call":
        return list(node.args)
    names = ("a", "b", "value", "condition", "base", "stride")
    found = (getattr(node, name, None) for name in names)
    return [part for part in found if part is not None and not isinstance(part, (int, float, str))]


def _same(a: Any, b: Any) -> bool:
    return str(a) == str(b)


def _updates(value: Any, buffer: Any, indices: list[Any]) -> str:
    """Return what combines a stored value with the element that it replaces, '' if nothing does."""

    def own(node: Any) -> bool:
        if not is_load(node):
            return False
        memory, at = access_of(node)
        return memory_of(memory) == memory_of(buffer) and all(_same(x, y) for x, y in zip(at, indices, strict=True))

    if not any(own(part) for part in parts_of(value)):
        return ""
    kind = kind_of(value)
    return kind if kind in _COMBINES and (own(value.a) or own(value.b)) else "other"
