"""The four levels of a program as values, in isl's notation: computed, ordered and placed, stored, communicated.

Of a tensor expression, nothing is placed yet: stages run one after the other and all tensors are in global memory. Of a
scheduled function, all is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..ir import Index, Stage, TensorExpression
from .proofs.kernel import SERIAL, Buffer, Dim, Kernel, Statement
from .proofs.sets import library

#: Isl's words, which no loop or tensor may be called.
_WORDS = ("and", "ceil", "ceild", "exists", "false", "floor", "floord", "implies", "inf", "infinity", "infty", "mod",
          "nan", "not", "or", "true")  # fmt: skip


@dataclass(frozen=True)
class Levels:
    """Sets and maps of a program as text; ``isl.UnionSet`` and ``isl.UnionMap`` read it.

    A statement is called after the tensor that it writes, with a '_' behind it (and a number, if others write it too).

    Parameters
    ----------
    domain : str
        Level I: the iterations of each statement.
    reads, writes : str
        Level I: iterations -> elements.
    schedule : str
        Level II: iterations -> time and place, in lexicographic order. Dimensions called after blocks, threads,
        lanes or 'parallel' are places: their iterations run at the same time.
    storage : str
        Level III: elements -> places in memory, by the name of the memory.
    copies : str
        Level IV: elements of one memory -> the elements of another that become copies of them.
    barriers : str
        Level IV: iterations at which the threads of a block wait for each other.

    Examples
    --------
    >>> from roller_tvm.ir.operators import operator
    >>> levels = levels_of(operator("relu", shape=(4, 8)))
    >>> levels.writes
    '{ relu_[i0, i1] -> relu[i0, i1] : 0 <= i0 <= 3 and 0 <= i1 <= 7 }'
    >>> levels.schedule
    '{ relu_[i0, i1] -> [0, i0, i1] : 0 <= i0 <= 3 and 0 <= i1 <= 7 }'
    """

    domain: str
    reads: str
    writes: str
    schedule: str
    storage: str
    copies: str = "{  }"
    barriers: str = "{  }"

    def __str__(self) -> str:
        shown = (("I   domain", self.domain), ("I   reads", self.reads), ("I   writes", self.writes),
                 ("II  schedule", self.schedule), ("III storage", self.storage), ("IV  copies", self.copies),
                 ("IV  barriers", self.barriers))  # fmt: skip
        return "\n".join(f"{name:<13} {part}" for name, text in shown for part in _lines(text))


def levels_of(program: TensorExpression | Kernel) -> Levels:
    """Return the levels of a tensor expression or of a function read as integer sets (``read_kernel``).

    Raises
    ------
    NoIntegerSets
        Without islpy.
    """
    return _of_kernel(program) if isinstance(program, Kernel) else _of_expression(program)


def _lines(text: str) -> list[str]:
    """Return a union, one part a line."""
    parts = text.strip("{} ").split("; ")
    return [f"{{ {part} }}" for part in sorted(parts) if part] or ["{ }"]


def _name(text: str, taken: Iterable[str] = ()) -> str:
    """Return a name that isl reads: letters, digits and '_'."""
    name = re.sub(r"\W", "_", text)
    name = f"{name}_" if name in _WORDS or name in taken else name
    return name if name[:1].isalpha() or name.startswith("_") else f"_{name}"


def _union(kind: Any, texts: Sequence[str]) -> str:
    whole = kind("{  }")
    for text in texts:
        whole = whole.union(kind(text))
    return str(whole.coalesce())


# Tensor expressions ---------------------------------------------------------------------------------------------------


def _of_expression(expression: TensorExpression) -> Levels:
    isl = library()
    domains, reads, writes, order = [], [], [], []
    names = {name: _name(name) for name in expression.tensors}
    depth = max(len(stage.axes) for stage in expression.stages)
    for number, stage in enumerate(expression.stages):
        axes = [_name(axis.name) for axis in stage.axes]
        own = f"{names[stage.name]}_[{', '.join(axes)}]"
        rule = " and ".join(f"0 <= {n} < {axis.extent}" for n, axis in zip(axes, stage.axes, strict=True)) or "true"
        domains.append(f"{{ {own} : {rule} }}")
        writes.append(f"{{ {own} -> {names[stage.name]}[{', '.join(axes[: len(stage.spatial)])}] : {rule} }}")
        time = [str(number), *axes, *["0"] * (depth - len(axes))]
        order.append(f"{{ {own} -> [{', '.join(time)}] : {rule} }}")
        for access in stage.reads:
            box = expression.tensors[access.tensor].shape
            reads.append(_read(own, rule, names[access.tensor], access.indices, stage, box))
    storage = [_stored(names[t.name], list(map(str, t.shape)), "global") for t in expression.tensors.values()]
    return Levels(_union(isl.UnionSet, domains), _union(isl.UnionMap, reads), _union(isl.UnionMap, writes),
                  _union(isl.UnionMap, order), _union(isl.UnionMap, storage))  # fmt: skip


def _read(own: str, rule: str, tensor: str, indices: Sequence[Index], stage: Stage, box: Sequence[int]) -> str:
    elements = [f"o{n}" for n in range(len(indices))]
    rules = [rule, *(f"0 <= {o} < {extent}" for o, extent in zip(elements, box, strict=True))]
    for element, index in zip(elements, indices, strict=True):
        if index.opaque or index.clamped:
            continue  # any element
        total = " + ".join([*(f"{factor} * {_name(axis)}" for axis, factor in index.terms), str(index.const)])
        rules.append(f"{element} = floor(({total})/{index.divisor})" if index.divisor > 1 else f"{element} = {total}")
    return f"{{ {own} -> {tensor}[{', '.join(elements)}] : {' and '.join(rules)} }}"


def _stored(tensor: str, shape: Sequence[str], memory: str, sizes: Iterable[str] = ()) -> str:
    """Return where the elements of a tensor are: row by row, or their coordinates if a size is open."""
    names = [f"o{n}" for n in range(len(shape))]
    rules = " and ".join(f"0 <= {n} < {extent}" for n, extent in zip(names, shape, strict=True)) or "true"
    known = all(extent.isdigit() for extent in shape)
    steps = [1] * len(shape)
    for n in range(len(shape) - 2, -1, -1):
        steps[n] = steps[n + 1] * (int(shape[n + 1]) if known else 1)
    place = " + ".join(f"{step} * {n}" for n, step in zip(names, steps, strict=True)) or "0"
    head = f"[{', '.join(sorted(sizes))}] -> " if sizes else ""
    return (
        f"{head}{{ {tensor}[{', '.join(names)}] -> {_name(memory)}[{place if known else ', '.join(names)}] : {rules} }}"
    )


# Scheduled functions --------------------------------------------------------------------------------------------------


def _of_kernel(kernel: Kernel) -> Levels:
    isl, names = library(), _Names(kernel)
    domains, reads, writes, order, copies, barriers = (list[str]() for _ in range(6))
    for statement in kernel.statements:
        own = names.domain(statement)
        (barriers if statement.barrier else domains).append(str(own))
        order.append(str(names.time(statement).intersect_domain(own)))
        for access in statement.accesses:
            (writes if access.write else reads).append(str(names.access(statement, access)))
        write, others = statement.write, statement.reads
        if write is not None and len(others) == 1 and others[0].buffer.scope != write.buffer.scope:
            moved = others[0].elements.reverse().apply_range(write.elements)
            moved = moved.set_tuple_name(isl.dim_type.in_, names.buffers[others[0].buffer])
            copies.append(str(moved.set_tuple_name(isl.dim_type.out, names.buffers[write.buffer])))
    storage = [_stored(names.buffers[b], b.shape, b.scope, kernel.parameters) for b in kernel.buffers]
    return Levels(_union(isl.UnionSet, domains), _union(isl.UnionMap, reads), _union(isl.UnionMap, writes),
                  _union(isl.UnionMap, order), _union(isl.UnionMap, storage), _union(isl.UnionMap, copies),
                  _union(isl.UnionSet, barriers))  # fmt: skip


class _Names:
    """Names of people for what a kernel counts."""

    def __init__(self, kernel: Kernel) -> None:
        self.buffers: dict[Buffer, str] = {}
        for buffer in kernel.buffers:
            self.buffers[buffer] = _name(buffer.name, self.buffers.values())
        self.statements: dict[int, str] = {}
        for statement in kernel.statements:
            write = statement.write
            wanted = "barrier" if statement.barrier or write is None else self.buffers[write.buffer]
            name, number = f"{wanted}_", 1
            while name in self.statements.values():
                number += 1
                name = f"{wanted}_{number}"
            self.statements[statement.number] = name
        self.depth = max((len(s.place) for s in kernel.statements), default=0)

    def loops(self, dims: Sequence[Dim]) -> list[str]:
        """Return names of loops; a loop in another of the same name, or a digit, gets a number."""
        found: list[str] = []
        for dim in dims:
            name, number = _name(dim.name), 1
            while name in found:
                number += 1
                name = f"{_name(dim.name)}_{number}"
            found.append(name)
        return found

    def domain(self, statement: Statement) -> Any:
        isl, found = library(), statement.domain
        for n, name in enumerate(self.loops(statement.dims)):
            found = found.set_dim_name(isl.dim_type.set, n, name)
        return found.set_tuple_name(self.statements[statement.number])

    def access(self, statement: Statement, access: Any) -> Any:
        isl, found = library(), access.elements
        for n, name in enumerate(self.loops(statement.dims)):
            found = found.set_dim_name(isl.dim_type.in_, n, name)
        found = found.set_tuple_name(isl.dim_type.in_, self.statements[statement.number])
        return found.set_tuple_name(isl.dim_type.out, self.buffers[access.buffer])

    def time(self, statement: Statement) -> Any:
        """Return when and where iterations run."""
        isl, loops = library(), self.loops(statement.dims)
        own = iter(loops)
        entries, places = [], []
        for part in statement.place:
            if isinstance(part, Dim):
                name = next(own)
                entries.append(name)
                places.append("" if part.kind == SERIAL else name if _is_thread(part) else f"{part.kind}_{name}")
            else:
                entries.append(str(part))
                places.append("")
        entries += ["0"] * (self.depth - len(entries))
        found = isl.Map(f"{{ {self.statements[statement.number]}[{', '.join(loops)}] -> [{', '.join(entries)}] }}")
        for n, place in enumerate(places):
            if place:
                found = found.set_dim_name(isl.dim_type.out, n, f"{place}_")
        return found


def _is_thread(dim: Dim) -> bool:
    return dim.name.startswith(("blockIdx", "threadIdx", "vthread", "cthread"))
