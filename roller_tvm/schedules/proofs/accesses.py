"""Accesses of statements as integer sets, and the buffers that they go to: the lower half of the reader."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...codegen.flat import access_of, called, choice_of, direct_parts, is_load, kind_of, memory_of, number_of, parts_of
from ...ir.stage import dtype_bytes
from ...te.numbering import dtype_of_node
from .affine import Text
from .cases import Sizes
from .digits import fused_from
from .folds import Folding, Unfoldable, groups_of
from .held import held_at
from .kernel import BLOCK, THREAD, Access, Axis, Buffer, Dim, Statement
from .meetings import Tree
from .naming import Naming
from .scopes import Outside, is_copy
from .sets import plain_of
from .ways import CHOICE, DATA, IMMEDIATE, INDEX, PLACE, Way, joined, operation_of, step_of

#: The range of a loop, digits and sizes.
_RANGE = re.compile(r"0 <= (i\d+) < 0 \+ (\d+)")
_NAMES = re.compile(r"\b[ip]\d+\b")
_COMBINES = ("Add", "Mul", "Max", "Min", "Sub")


class Accesses(Naming):
    """The place of the reader in a function, and what is read there.

    Parameters
    ----------
    open_sizes, flat, folds
        As of ``read_kernel``.
    """

    def __init__(self, open_sizes: Sizes, flat: bool, folds: bool) -> None:
        super().__init__(open_sizes)
        self.flat, self.folds = flat, folds
        self.cuts: dict[int, Counter[int]] = {}  # loop variable -> what it is divided by
        self.buffers: dict[int, Buffer] = {}  # by the memory's variable
        self.shapes: dict[int, Any] = {}
        self.place: list[int | Dim] = []
        self.rules: list[Rule] = []  # ranges of loops and conditions around the place
        self.leaves: set[int] = set()  # variables of loops around one store alone
        self.outside = Outside()
        self.unfolded: dict[int, int] = {}  # memory of fused copies that are not folded, as `divided`
        self.exact = True
        self.begun: dict[Dim, str] = {}  # begins in place of blocks -> the rule by which a number is one
        self.divided: dict[int, int] = {}  # memory that a fused index goes along -> the first dimension of these
        self.fused: dict[int, int] = {}  # the same by the numbers of buffers
        self.issuing = self.landing = False  # whether stores are copies that run ahead, and whether they arrive
        self.said: list[str] = []  # rules of the last statement's accesses
        self.alike = False  # whether all blocks have the same iterations of the statement that is read
        self.tree: Tree = None  # the value of the statement that is read
        self.numbers: set[tuple[str, Way]] = set()  # constants of the statement that is read
        self.chosen: list[tuple[str, Way, str, bool]] = []  # those that a condition chooses from others, and where
        self.choosing = 0

    # Functions and statements -----------------------------------------------------------------------------------------

    def _buffer(self, buffer: Any, scope: str, parameter: bool = False) -> Buffer:
        shape = tuple(self._shape(e) for e in buffer.shape)
        if parameter and (list(buffer.strides) or number_of(buffer.elem_offset)):
            self.kernel.unread.append(f"a view: {buffer.name}")
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
        if not parameter and self.launch is None:
            self.outside.add(made, self.place)
        self.kernel.buffers.append(made)
        self.buffers[key] = made
        return made

    def _store(self, store: Any) -> None:
        for wide in (True, False):
            self.folding = self._folding(store, wide)
            if self.folding is not None:
                try:
                    self._ask(store, self.folding)
                    break
                except Unfoldable:
                    self.folding = None
        key, first = memory_of(store.buffer), fused_from(store.indices)
        known = key in self.buffers and self.buffers[key].parameter  # which stays as it is
        if first is not None and not (self.folding or self.launch or known):
            self.unfolded[key] = min(first, self.unfolded.get(key, first))
        text = f"{store.buffer.name}[{', '.join(map(str, store.indices))}]"
        self._statement(self._accesses_of(store), text, _updates(store.value, store.buffer, list(store.indices)))
        self._instance(store)
        self.folding = None
        if self.issuing:
            self.kernel.statements[-1] = replace(self.kernel.statements[-1], issued=True)

    def _instance(self, store: Any) -> None:
        """Note which instances of a block the last statement computes (``read_kernel``)."""

    def _accesses_of(self, store: Any) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = []
        self.tree = self._loads(store.value, [], True, (), found)
        for index in store.indices:
            self._loads(index, [], True, (INDEX,), found)
        return [*found, (store.buffer, list(store.indices), True, [], True, ())]

    def _folding(self, store: Any, wide: bool) -> Folding | None:
        """Return how a copy's threads and loops may be folded, `wide` as of ``groups_of``; None if they may not."""
        if not self.folds or not is_copy(store):
            return None
        axes, threads = dict[int, Axis](), set[int]()
        for var, dims in self.dims.items():
            extent = dims[0].stride * dims[0].extent if var not in self.values and dims[0] in self.place else 0
            if not extent:
                continue
            if dims[0].kind == THREAD and dims[0].name.startswith("threadIdx"):
                threads.add(var)
            elif var not in self.leaves:
                continue
            axes[var] = Axis(var, dims[0].name, dims, 1, extent)
        conditions = [rule.condition for rule in self.rules if rule.condition is not None]
        nodes = [*store.indices, store.value, *(n for c in conditions for n in (c if isinstance(c, tuple) else (c,)))]
        groups = groups_of(nodes, self.values, axes, threads, wide)
        if groups is None:
            return None
        folded = {dim for group in groups for axis in group for dim in axis.dims}
        loops = [n for n, p in enumerate(self.place) if p in folded and isinstance(p, Dim) and p.kind != THREAD]
        last = min(loops, default=len(self.place))
        if any(isinstance(p, Dim) and p not in folded for p in self.place[last:]):
            return None  # what is within a folded loop is folded: so trips of a thread stay in order
        for group in groups:
            order = [self.place.index(axis.dims[0]) for axis in group if axis.dims[0].kind != THREAD]
            if order != sorted(order, reverse=True):
                return None
        return Folding(groups, self.values, self._parts)

    def _ask(self, store: Any, folding: Folding) -> None:
        """Ask for all texts of a copy, which tells where digits begin, and choose the digits."""
        for buffer, indices, *_ in self._accesses_of(store):
            if (memory := self.buffers.get(memory_of(buffer))) is not None and any(d in folding for d in memory.dims):
                raise Unfoldable  # each thread has its own
            for index in indices:
                self._text().index(index)
        for rule in self.rules:
            rule.told(self)
        folding.settle(self.digits, self.loops, THREAD, "tile")
        self.digits += sum(len(fold.dims) for fold in folding.folds)
        self.loops += len(folding.folds)

    def _loads(self, node: Any, rules: list[str], exact: bool, way: Way, found: list[Any]) -> Tree:
        """Return an expression as a tree; collect its loads, each with the conditions of the read and its way."""
        kind = kind_of(node)
        if kind in IMMEDIATE:
            self.numbers.add((repr(node.value), way))
            if self.choosing:
                self.chosen.append((repr(node.value), way, " and ".join(rules), exact))
            return f"={node.value!r}"
        if dtype_of_node(node).startswith("int") and not any(map(self._is_value, parts_of(node))):
            if not {CHOICE, DATA, INDEX} & {*way}:  # its value reaches an output
                self.numbers.add((PLACE, way))
            return None  # of places alone, which are computed in other ways
        if kind in ("Var", "SizeVar"):
            known = self.values.get(hash(node))
            if known is None and dtype_of_node(node).startswith(("float", "bfloat")):
                self.kernel.unread.append(f"a number that is given: {node}")
            return None if known is None else self._loads(known, rules, exact, way, found)
        if choice := choice_of(node):
            condition, yes, no = choice
            parts: list[Tree] = []
            reads = self._reads(condition)
            self._loads(condition, rules, exact, joined(way, (DATA if reads else CHOICE,)), found)
            alone = not (self._reads(yes) or self._reads(no))
            self.choosing += alone
            for holds, part in ((True, yes), (False, no)):
                text = self._text()
                rule = closed(text, text.condition(condition, holds))
                branch = joined(way, ("chosen" if holds else "otherwise",)) if reads else way
                parts.append(self._loads(part, [*rules, rule], exact and not text.opaque, branch, found))
            self.choosing -= alone
            return (CHOICE, *parts)
        if kind == "Let":
            self.values[hash(node.var)] = node.value
            return self._loads(node.body, rules, exact, way, found)
        if is_load(node):
            if (constant := held_at(node, self.values)) is not None:
                return self._loads(constant, rules, exact, way, found)
            buffer, indices = access_of(node)
            found.append((buffer, indices, False, rules, exact, way))
            number = len(found) - 1
            for index in indices:
                self._loads(index, rules, exact, joined(way, (INDEX,)), found)
            return number
        if called(node) in ("address_of", "tvm_access_ptr", "access_ptr"):
            self.kernel.unread.append(f"an address: {node}")
            return None
        own, trees = direct_parts(node), list[Tree]()
        step: Way = ()
        if kind == "Div" and (by := self._constant(own[1])):  # as TVM's simplifier
            name, factor = "Mul", f"{1 / by!r}"
            step = ("Mul",)
            self.numbers.add((factor, joined(way, step)))
            trees = [self._loads(own[0], rules, exact, joined(way, step), found), f"={factor}"]
            return (name, *trees)
        if kind == "Mul" and (whole := [part for part, other in (own, own[::-1]) if self._constant(other) == 1]):
            return self._loads(whole[0], rules, exact, way, found)
        if self._vanishes(kind, own):
            self.kernel.vanishing.append(str(node))
        for number, part in enumerate(own):
            step = step_of(node, number, len(own))
            trees.append(self._loads(part, rules, exact, joined(way, step), found))
        return (step[0] if kind == "Cast" else operation_of(node), *trees) if step else trees[0] if trees else None

    def _constant(self, node: Any) -> float | None:
        """Return a number of a value, None if an expression is none."""
        node = held_at(node, self.values) if is_load(node) else node
        return float(node.value) if node is not None and kind_of(node) == "FloatImm" else None

    def _vanishes(self, kind: str, own: Sequence[Any]) -> bool:
        """Return whether a value is the same whichever its elements are: a product by 0, or a difference of equals."""
        if kind == "Mul":
            return any(self._constant(part) == 0 for part in own)
        return kind == "Sub" and all(map(is_load, own)) and _same(*own)

    def _reads(self, node: Any) -> bool:
        """Return whether an expression is made of an element of a tensor."""
        known = (self.values.get(hash(p)) for p in parts_of(node))
        return any(map(is_load, parts_of(node))) or any(self._reads(value) for value in known if value is not None)

    def _is_value(self, node: Any) -> bool:
        """Return whether an expression may hold an element of a tensor."""
        kind = kind_of(node)
        return is_load(node) or kind in ("Call", "Let") or (kind in ("Var", "SizeVar") and hash(node) in self.values)

    def _statement(self, accesses: Sequence[Any], text: str, update: str = "", extra: Sequence[str] = ()) -> None:
        folds = self.folding.folds if self.folding is not None else ()
        statement = Statement(len(self.kernel.statements), tuple(self.place), None, (), text, update,
                              exact=self.exact, folds=folds, alike=self._alike_blocks())  # fmt: skip
        dims = statement.dims
        space = f"{statement.space}[{', '.join(d.var for d in dims)}]"
        domain = self._domain(space, dims)
        self.said, self.alike = [], statement.alike
        made = [m for a in accesses if (m := self._access(space, domain, extra, *a)) is not None]
        for dim in self._outside(accesses):
            begins = self._parsed(self.isl.Set, f"{{ {space} : {self.begun[dim]} }}", False)
            made = [_at_begins(access, begins) if access.write else access for access in made]
        for n, dim in enumerate(dims):
            # Virtual threads are trips of one thread; what knows nothing of them it does once.
            if dim.name.startswith(("vthread", "cthread")) and not self._knows(dim):
                domain = domain.fix_val(self.isl.dim_type.set, n, 0)
                made = [replace(a, elements=a.elements.fix_val(self.isl.dim_type.in_, n, 0),
                                homes=a.homes.fix_val(self.isl.dim_type.in_, n, 0)) for a in made]  # fmt: skip
        numbers = frozenset(self.numbers)
        chosen = tuple(
            (number, way, self._parsed(self.isl.Set, f"{{ {space} : {rule} }}").intersect(domain), exact and self.exact)
            for number, way, rule, exact in self.chosen
        )
        whole = replace(statement, domain=domain, accesses=tuple(made), numbers=numbers, chosen=chosen,
                        tree=self.tree)  # fmt: skip
        self.tree = None
        self.kernel.statements.append(whole)
        self.numbers.clear()
        self.chosen.clear()

    def _alike_blocks(self) -> bool:
        """Return whether the rules at the place are those of blocks, and others that know neither blocks nor sizes.

        Those of a fold name its own digits alone, of threads and loops. Blocks are folded in a launch that is one
        number, which has no memory of blocks.
        """
        blocks = [p.var for p in self.place if isinstance(p, Dim) and p.kind == BLOCK]
        for rule in self.rules:
            own = bool(rule.dims) and all(dim.var in blocks for dim in rule.dims)
            if any((name in blocks or name[0] == "p") != own for name in _NAMES.findall(rule.told(self))):
                return False
        return bool(blocks)

    def _blocks_of(self, memory: Buffer, texts: Sequence[str]) -> tuple[int, ...] | None:
        """Return the places of blocks among the dimensions of the statement, if all access their own memory alike."""
        around = [p for p in self.place if isinstance(p, Dim)]
        blocks = [dim for dim in around if dim.kind == BLOCK]
        if not self.alike or self.launch is not None or not set(blocks) <= set(memory.dims):
            return None
        known = {dim.var for dim in blocks}
        if any(name in known or name[0] == "p" for text in texts for name in _NAMES.findall(text)):
            return None
        folded = self.folding.folded if self.folding is not None else set[Dim]()
        return tuple(n for n, dim in enumerate(d for d in around if d not in folded) if dim.kind == BLOCK)

    def _inside(self, memory: Buffer, indices: Sequence[Any]) -> bool:
        """Return whether the least and largest values of indices are within memory of fixed extents."""
        if len(indices) != len(memory.shape):
            return False
        for index, extent in zip(indices, memory.shape, strict=True):
            if not extent.isdigit() or not dtype_of_node(index).startswith(("int", "uint")):
                return False
            least, most = self.spans.of(index)
            if least < 0 or most >= int(extent) or not self.spans.fits(index):
                return False
        return True

    def _outside(self, accesses: Sequence[Any]) -> list[Dim]:
        """Return the begins around the place that have no memory of their own for what a statement writes."""
        begun = [p for p in self.place if isinstance(p, Dim) and p in self.begun]
        written = [self.buffers.get(memory_of(buffer)) for buffer, _, write, *_ in accesses if write] if begun else []
        return [dim for dim in begun if any(memory is None or dim not in memory.dims for memory in written)]

    def _domain(self, space: str, dims: Sequence[Dim]) -> Any:
        """Return where the statement at the place is executed; isl reads ranges of numbers slowly."""
        ranges = {rule: _RANGE.fullmatch(rule) for rule in self._told()}
        rest = " and ".join(rule for rule, found in ranges.items() if found is None) or "true"
        domain, kind = self._parsed(self.isl.Set, f"{{ {space} : {rest} }}"), self.isl.dim_type.set
        places = {dim.var: n for n, dim in enumerate(dims)}
        for name, extent in (found.groups() for found in ranges.values() if found is not None):
            domain = domain.lower_bound_val(kind, places[name], 0).upper_bound_val(kind, places[name], int(extent) - 1)
        return domain

    def _rules(self) -> str:
        return " and ".join(self._told()) or "true"

    def _told(self) -> list[str]:
        told = [rule.told(self) for rule in self.rules]
        told += self.folding.rules if self.folding is not None else []
        return [rule for rule in told if rule]

    def _access(
        self, space: str, domain: Any, extra: Sequence[str], buffer: Any, indices: list[Any], write: bool,
        rules: list[str], exact: bool, way: Way,
    ) -> Access | None:  # fmt: skip
        memory = self.buffers.get(memory_of(buffer))
        if memory is None:
            self.kernel.unread.append(f"memory of '{buffer.name}' from elsewhere")
            return None
        if owner := self.outside.owner(memory, self.place):
            self.kernel.unread.append(f"memory of each {owner} that has a place outside of them: {buffer.name}")
        text, lanes = self._text(), list[str]()
        starts = [self._start(text, index, lanes) for index in indices]
        if self.flat and memory.parameter and not memory.shape and starts == ["0"]:  # one number
            starts = []
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
        wanted = [*(f"{v}" for v in text.names), *extra_names(extra)]
        if not (wanted or flat):
            own, equal = starts, []
        rule = " and ".join([*equal, *rules, *lanes, *text.rules]) or "true"
        rule = f"exists ({', '.join(wanted)} : {' and '.join([rule, *extra])})" if wanted else rule
        homes, flattened = [d.var for d in memory.dims], None if lanes else self._flattened(memory, indices, rules)
        self.said += [rule, *homes, *own]
        if flattened is None:
            home = self._related(space, memory, [*homes, *own], domain, rule)
            element = home.project_out(self.isl.dim_type.out, 0, len(homes)) if homes else home
            element = element.set_tuple_name(self.isl.dim_type.out, memory.space)
        else:
            element = self._related(space, memory, own, domain, rule)
            own, rule = flattened
            home = self._related(space, memory, [*homes, *own], domain, rule)
        if flat:
            element, home = (plain_of(found, found.domain()) for found in (element, home))
        told = text.opaque[0] if text.opaque else f"{buffer.name}[{', '.join(map(str, indices))}]"
        known = self.exact and not text.opaque
        blocks, inside = self._blocks_of(memory, [*starts, rule]), self._inside(memory, indices)
        return Access(memory, element, home, write, exact and known, told, known and not exact, way, blocks=blocks,
                      inside=inside)  # fmt: skip

    def _start(self, text: Any, index: Any, lanes: list[str]) -> str:
        """Return an index; of a vector that is written out any of its lanes, whose rule `lanes` gets."""
        if kind_of(index) == "Broadcast":
            return str(text.index(index.value))
        if kind_of(index) != "Ramp":
            return str(text.index(index))
        count, step = number_of(index.lanes), number_of(index.stride)
        if count is None or step is None or not self.spans.holds_lanes(index.base, count, step):
            return str(text.index(index))
        lane = text.another()
        lanes.append(f"0 <= {lane} < {count}")
        self.kernel.vectors.append(str(index))
        return f"({text.index(index.base)} + {step} * {lane})"

    def _related(self, space: str, memory: Buffer, place: Sequence[str], domain: Any, rule: str) -> Any:
        result = f"{memory.space}[{', '.join(place)}]"
        return self._parsed(self.isl.Map, f"{{ {space} -> {result} : {rule} }}", False).intersect_domain(domain)

    def _flattened(
        self, memory: Buffer, indices: Sequence[Any], rules: Sequence[str]
    ) -> tuple[list[str], str] | None:
        """Return the names and the rule of an element whose last dimensions are one; None for what is not seen so.

        Copies go along a tile by one fused index: of flat memory, nothing is divided.
        """
        first = self.fused.get(memory.number)
        if first is None or len(indices) != len(memory.shape) or not all(e.isdigit() for e in memory.shape):
            return None
        text, names = self._text(), [f"o{n}" for n in range(first + 1)]
        steps = [math.prod(map(int, memory.shape[n + 1 :])) for n in range(first, len(indices))]
        last = indices[first:]
        flat = text.flat(last, steps) if self.folding is None else " + ".join(
            f"{step} * ({text.index(index)})" for step, index in zip(steps, last, strict=True))  # fmt: skip
        told = [*map(text.index, indices[:first]), flat]
        rule = " and ".join([*(f"{n} = {t}" for n, t in zip(names, told, strict=True)), *rules, *text.rules])
        return names, f"exists ({', '.join(text.names)} : {rule})" if text.names else rule

    def _knows(self, dim: Dim) -> bool:
        """Return whether the last statement's accesses or conditions depend on a loop."""
        range_of = f"<= {dim.var} <"
        told = [*(rule.told(self) for rule in self.rules), *self.said]
        return any(re.search(rf"\b{dim.var}\b", rule) for rule in told if range_of not in rule)


@dataclass(frozen=True)
class Rule:
    """A range of a loop, or a condition, around a place.

    Parameters
    ----------
    text : str
        In isl's notation.
    dims : tuple of Dim
        Digits of which it is the range.
    condition : Expr or (Expr, Expr), optional
        Two: the first is less.
    holds : bool
    """

    text: str
    dims: tuple[Dim, ...] = ()
    condition: Any = None
    holds: bool = True

    def told(self, at: Accesses) -> str:
        """Return its text at a statement, '' where the statement's fold says it."""
        if at.folding is None:
            return self.text
        if self.dims:
            return "" if self.dims[0] in at.folding else self.text
        text = at._text()
        if isinstance(self.condition, tuple):
            a, b = self.condition
            return at.folding.compared(a, "<", b) or f"{text.index(a)} < {text.index(b)}"
        if self.condition is not None:
            return closed(text, text.condition(self.condition, self.holds))
        if any(re.search(rf"\b{dim.var}\b", self.text) for dim in at.folding.folded):
            raise Unfoldable
        return self.text


def _at_begins(access: Access, begins: Any) -> Access:
    """Return a write to memory that other blocks write, too: only by blocks that there are."""
    elements, homes = (told.intersect_domain(begins) for told in (access.elements, access.homes))
    return replace(access, elements=elements, homes=homes, near=access.near or access.homes)


def extra_names(extra: Sequence[str]) -> list[str]:
    """Return the variables that rules of the form ``0 <= r1 < 4`` bound."""
    return [rule.split(" <= ")[1].split(" < ")[0] for rule in extra]


def closed(text: Text, rule: str) -> str:
    rule = " and ".join([rule, *text.rules])
    return f"exists ({', '.join(text.names)} : {rule})" if text.names else f"({rule})"


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
    if kind_of(value) == "Select" and own(value.false_value):  # under a condition, else the element stays
        value = value.true_value
    kind = kind_of(value)
    return kind if kind in _COMBINES and (own(value.a) or own(value.b)) else "other"
