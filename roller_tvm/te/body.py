"""One te.compute as a stage: its axes, its reads, its arithmetic."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from math import prod
from typing import Any

from ..errors import UnsupportedOperator
from ..ir.affine import Index
from ..ir.stage import Access, Axis, Stage
from .affine import Affine, Splits, affine, constant
from .combiners import begins_neutral, combiner_of, is_product
from .nodes import (
    REMEDY,
    analyzer_here,
    callee_of,
    canonical,
    dtype_of,
    extent_of,
    literal,
    low_of,
    misjudges_axes,
    read_by,
    unique,
    value_at,
)
from .numbering import PARTS, Numbering, dtype_of_node
from .quotient import Quotient, nodes_of, quotient

_ARITHMETIC = {
    **dict.fromkeys(("Add", "Sub"), "add"),
    **dict.fromkeys(("Div", "FloorDiv", "Mod", "FloorMod"), "div"),
    **dict.fromkeys(("Min", "Max", "EQ", "NE", "LT", "LE", "GT", "GE"), "cmp"),
    "Mul": "mul",
    "Cast": "cast",
    # Calls on the Relay line, nodes on the other.
    **dict.fromkeys(("LShift", "RShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot"), "add"),
    "Select": "cmp",  # computes both, so that neither is guarded
}
# Calls that are not 'special' functions (log, sin, ...), which everything else counts as.
_CALLS = {
    **dict.fromkeys(("sqrt", "rsqrt"), "sqrt"),
    **dict.fromkeys(("likely", "reinterpret"), ""),
    **dict.fromkeys(("fabs", "floor", "ceil", "round", "trunc", "nearbyint", "isnan"), "cmp"),
    **dict.fromkeys(("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not"), "add"),
    **dict.fromkeys(("shift_left", "shift_right"), "add"),
    "fma": "fma",
}
#: Functions that ``VectorMath`` replaces by arithmetic in kernels for CPUs.
VECTOR_MATH = ("exp", "erf", "tanh", "sigmoid")
#: Comparisons that tell which axis is further on.
_COMPARISONS = ("LT", "LE", "GT", "GE")



#: Contents of an expression: nothing, reads of tensors, values that vary from trip to trip of the innermost loops.
NOTHING, READS, VARIES = 0, 1, 2
#: Least number of trips of the innermost loops together, if the output has so many.
INNERMOST = 4
#: An index over digits of axes, and over whole axes; None if it has no such form.
Form = tuple[Affine | None, Quotient | None]


@dataclass
class StageReader:
    """Reads one ComputeOp: its axes, its reads, its arithmetic."""

    op: Any
    name: str
    names: dict[Any, str]
    counts: dict[str, int] = field(default_factory=dict)
    loads: list[tuple[str, list[Form], bool]] = field(default_factory=list)
    uneven: list[str] = field(default_factory=list)
    initial: bool = False
    read_into: dict[int, int] = field(default_factory=dict)  # variables of Let, and what they hold
    walked: dict[tuple[int, bool], tuple[int, Any]] = field(default_factory=dict)  # expressions by address, with them
    counted: set[int] = field(default_factory=set)  # numbers of expressions

    def read(self) -> tuple[Stage, dict[str, tuple[str, ...]]]:
        """Return the stage, and for each of its loops the names of the axes that the loop became."""
        try:
            return self._read()
        except RecursionError:
            raise UnsupportedOperator("its expressions are nested too deeply", self.name, REMEDY) from None

    def _read(self) -> tuple[Stage, dict[str, tuple[str, ...]]]:
        iters = [*self.op.axis, *self.op.reduce_axis]
        self.kinds = ["spatial"] * len(self.op.axis) + ["reduce"] * len(self.op.reduce_axis)
        used: set[str] = set()
        self.variables = [iv.var for iv in iters]
        plain = [str(v.name) for v in self.variables]
        self.axis_names = [unique(getattr(iv, "label", n), used) for iv, n in zip(iters, plain, strict=True)]
        self.lows = [low_of(iv, self.name) for iv in iters]
        self.extents = [
            extent_of(iv.dom.extent, self.name, f"axis '{n}'") if kind == "spatial" else self._length(iv, n)
            for iv, n, kind in zip(iters, self.axis_names, self.kinds, strict=True)
        ]
        self.innermost = self._innermost()
        self.number = Numbering(self._which)
        self.by_name = {n: [i for i, p in enumerate(plain) if p == n] for n in plain}
        combiner = self._body(list(self.op.body))
        return self._stage(combiner)

    def _innermost(self) -> set[int]:
        """Return the positions of the reduction axes, or of the last axes that have `INNERMOST` iterations together."""
        if "reduce" in self.kinds:
            return {i for i, kind in enumerate(self.kinds) if kind == "reduce"}
        found: set[int] = set()
        for i in reversed(range(len(self.extents))):
            if prod(self.extents[n] for n in found) >= INNERMOST:
                break
            found.add(i)
        return found

    def _length(self, iv: Any, name: str) -> int:
        """Return the length of a reduction axis; the largest one if it depends on an output axis."""
        length = analyzer_here().simplify(iv.dom.extent)
        if constant(length) is not None:
            return extent_of(length, self.name, f"axis '{name}'")
        for axis, own in zip(self.op.axis, self.axis_names, strict=False):
            extent = extent_of(axis.dom.extent, self.name, f"axis '{own}'")
            lengths = [n for value in range(extent) if (n := value_at(length, axis.var, value)) is not None]
            if len(lengths) == extent:
                self.uneven.append(own)
                return extent_of(max(lengths), self.name, f"axis '{name}'")
        raise UnsupportedOperator(
            f"axis '{name}' has the extent {length}, which is neither constant nor follows from one output axis",
            self.name, "fix the shape when importing the model, or " + REMEDY)  # fmt: skip

    def _axis_of(self, var: Any) -> tuple[int, int, int] | None:
        if hash(var) in self.read_into:  # it is bound in the body
            return None
        found = self.by_name.get(str(var.name), [])
        if len(found) > 1:
            found = [i for i in found if var.same_as(self.variables[i])]
        return (found[0], self.lows[found[0]], self.extents[found[0]]) if found else None

    def _body(self, bodies: list[Any]) -> str:
        first = bodies[0]
        if type(first).__name__ != "Reduce":
            for body in bodies:
                self._walk(body, False)
            return ""
        combiner = self._combined(first)
        condition = first.condition
        self.initial = bool(list(first.init)) or not begins_neutral(first.combiner, combiner)
        guarded = not self._always(condition)
        for initial in first.init:
            self._walk(initial, False)
        self.counts.clear()  # the initial value is read once a result, not once a point
        for source in first.source:
            self._walk(source, guarded)
        if guarded:
            self._walk(condition, False)
        product = is_product(first.source[0])
        if combiner == "sum" and product and self.counts.get("mul"):
            self._count("mul", -1)
            self._count("fma")
        else:
            self._count({"sum": "add", "prod": "mul"}.get(combiner, "cmp"))
        return combiner

    def _combined(self, reduce: Any) -> str:
        return combiner_of(reduce.combiner)

    def _count(self, kind: str, by: int = 1) -> None:
        self.counts[kind] = self.counts.get(kind, 0) + by

    def _walk(self, node: Any, guarded: bool) -> int:
        """Record the reads and arithmetic below a node; return its contents as READS and VARIES, or'ed.

        Arithmetic on axes and constants alone is not counted, nor arithmetic that stays the same along the innermost
        loops: it is done once a loop, not once a point. A repeated subexpression is counted once.
        """
        kind = type(node).__name__
        if kind in ("Var", "SizeVar"):
            axis = self._axis_of(node)
            return self.read_into.get(hash(node), NOTHING) if axis is None else VARIES * (axis[0] in self.innermost)
        if kind in ("IntImm", "FloatImm", "StringImm"):
            return NOTHING
        at = hash(node), guarded
        if at in self.walked:
            return self.walked[at][0]
        made = NOTHING
        if (load := self._access(node)) is not None:
            made = self._load(*load, guarded)
        elif kind == "Call":
            made = self._call(node, guarded)
        elif kind == "Let":
            made = self.read_into[hash(node.var)] = self._walk(node.value, guarded)
            made |= self._walk(node.body, guarded)
        elif kind == "Select" and self._always(node.condition):
            made = self._walk(node.true_value, guarded)
        elif (parts := PARTS.get(kind)) is not None:
            for name in parts:
                made |= self._walk(getattr(node, name), guarded)
            if kind in _COMPARISONS and not made & READS and misjudges_axes():
                self._check_comparison(node)
            self._count_once(_ARITHMETIC.get(kind, ""), node, made)
        else:
            raise UnsupportedOperator(f"'{kind}' in its body cannot be planned", self.name, REMEDY)
        self.walked[at] = made, node
        return made

    def _check_comparison(self, node: Any) -> None:
        """Refuse a comparison of two axes: this TVM simplifies it wrongly once an axis is split."""
        a, b = (affine(side, self._axis_of) for side in (node.a, node.b))
        terms = a.plus(b, -1).terms if a is not None and b is not None else {}
        if len({c > 0 for c in terms.values()}) > 1 and len({axis for axis, _, _ in terms}) > 1:
            what = f"'{node}' compares axes: this TVM simplifies it wrongly once one is split"
            raise UnsupportedOperator(what, self.name, "TVM's own schedule is used; TVM 0.25 or later can plan it")

    def _count_once(self, kind: str, node: Any, made: int) -> None:
        if kind and made == READS | VARIES and (number := self.number(node)) not in self.counted:
            self.counted.add(number)
            self._count(kind)

    def _choice(self, condition: Any, yes: Any, no: Any, guarded: bool) -> int:
        if self._always(condition):
            return self._walk(yes, guarded)
        return self._walk(condition, guarded) | self._walk(yes, True) | self._walk(no, True)

    def _always(self, condition: Any) -> bool:
        """Return whether the extents alone prove a condition (layout transforms have many such)."""
        kind = type(condition).__name__
        if kind == "And":
            return self._always(condition.a) and self._always(condition.b)
        if kind == "Call" and str(getattr(condition.op, "name", "")).endswith("likely"):
            return self._always(condition.args[0])
        if kind not in ("LT", "LE", "GT", "GE"):
            return constant(condition) == 1
        a, b = affine(condition.a, self._axis_of), affine(condition.b, self._axis_of)
        if a is None or b is None:
            return False
        low, high = a.plus(b, -1).range()
        return {"LT": high < 0, "LE": high <= 0, "GT": low > 0, "GE": low >= 0}[kind]

    def _call(self, node: Any, guarded: bool) -> int:
        callee = callee_of(node)
        if callee == "if_then_else":
            condition, yes, no = node.args
            return self._choice(condition, yes, no, guarded)
        made = NOTHING
        for argument in node.args:
            made |= self._walk(argument, guarded)
        # Compilers make a product of a square, whatever they may do to other powers.
        square = callee == "pow" and literal(node.args[1]) == 2
        cost = "mul" if square else _CALLS.get(callee, "special")
        if callee in VECTOR_MATH and dtype_of_node(node) == "float32":
            cost = "exp"
        self._count_once(cost, node, made)
        return made

    def _access(self, node: Any) -> tuple[str, list[Any]] | None:
        """Return the name of the tensor that an expression reads, and its indices; None if it reads none."""
        found = read_by(node)
        return None if found is None else (self.names[found[0].op], found[1])

    def _which(self, node: Any) -> tuple[Hashable, list[Any]] | None:
        """Return a key of the tensor that an expression reads, and its indices; a stage may produce several tensors."""
        found = read_by(node)
        return None if found is None else ((hash(found[0]), found[0].value_index), found[1])

    def _load(self, tensor: str, indices: Iterable[Any], guarded: bool) -> int:
        forms: list[Form] = []
        for index in indices:
            form, other = affine(index, self._axis_of), None
            plain = form is not None
            if form is not None and any((lo, hi) != (1, self.extents[v]) for v, lo, hi in form.terms):
                other = quotient(index, self._axis_of)
            if form is None:
                simple = canonical(index, self.variables, self.lows, self.extents)
                form, other = affine(simple, self._axis_of), quotient(simple, self._axis_of)
                other = other or quotient(index, self._axis_of)
            if not plain and any(self._access(node) is not None for node in nodes_of(index)):
                self._inner_loads(index, guarded)
            forms.append((form, other))
        self.loads.append((tensor, forms, guarded))
        used = [form if form is not None else other.form if other is not None else None for form, other in forms]
        inner = any(form is None or any(v in self.innermost for v, _, _ in form.terms) for form in used)
        return READS | VARIES if inner or not self.innermost else READS

    def _inner_loads(self, index: Any, guarded: bool) -> None:
        """Record the reads of an index itself (a gather), without counting their arithmetic."""
        before = dict(self.counts), dict(self.walked), set(self.counted)
        self._walk(index, guarded)
        self.counts, self.walked, self.counted = before

    def _stage(self, combiner: str) -> tuple[Stage, dict[str, tuple[str, ...]]]:
        splits = Splits(self.extents)
        whole = self._over_whole_axes(bool(combiner))
        loads = [
            (tensor, [_chosen(form, splits, whole) for form in forms], guarded)
            for tensor, forms, guarded in self.loads
        ]
        parts: list[tuple[Axis, ...]] = [
            splits.axes(i, n, e, k)
            for i, (n, e, k) in enumerate(zip(self.axis_names, self.extents, self.kinds, strict=True))
        ]
        names = [tuple(a.name for a in p) for p in parts]
        reads: dict[Access, None] = {}
        for tensor, forms, guarded in loads:
            indices = tuple(_index(form, splits, names) for form in forms)
            reads[Access(tensor, indices, guarded)] = None
        ops = tuple((k, n) for k, n in self.counts.items() if n)
        try:
            stage = Stage(
                self.name,
                tuple(a for p in parts for a in p),
                tuple(reads),
                dtype_of(self.op.output(0).dtype, self.name),
                ops,
                combiner,
                len(self.op.body),
                self.initial,
                tuple(dict.fromkeys(self.uneven)),
            )
        except ValueError as error:
            raise UnsupportedOperator(str(error), self.name, REMEDY) from error
        return stage, dict(zip(self.axis_names, names, strict=True))


    def _over_whole_axes(self, reduces: bool) -> bool:
        """Return whether quotients are better than parts of axes: no index needs a remainder, for which parts exist.

        Tiles of a reduction are exact over parts.
        """
        forms = [form for _, forms, _ in self.loads for form, _ in forms if form is not None]
        return not reduces and all(hi == self.extents[var] for form in forms for var, _, hi in form.terms)


def _chosen(form: Form, splits: Splits, whole: bool) -> Affine | Quotient | None:
    """Return the index over whole axes if `whole` is set or its digits clash with others; else over digits."""
    digits, over_axes = form
    if whole and over_axes is not None and not over_axes.clamped:
        return over_axes
    return digits if digits is not None and splits.accept(digits.terms) else over_axes


def _index(form: Affine | Quotient | None, splits: Splits, names: list[tuple[str, ...]]) -> Index:
    if form is None:
        return Index.whole()
    if isinstance(form, Affine):
        return splits.index(form, names)
    over = splits.index(form.form, names)
    return Index.of(dict(over.terms), over.const, form.divisor, form.clamped)
