"""A scheduled function of either TVM line, before its buffers are flattened, read as integer sets."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ...codegen.flat import LETS, access_of, called, is_load, kind_of, number_of, parts_of
from ...ir.stage import dtype_bytes
from ...te.numbering import dtype_of_node
from .affine import Text
from .kernel import BLOCK, PARALLEL, SERIAL, THREAD, VECTOR, Access, Buffer, Dim, Kernel, Statement
from .sets import library, plain_of

#: ``For.kind`` -> kind of a loop; a loop of threads (4) says its own.
_KINDS = {0: SERIAL, 1: PARALLEL, 2: VECTOR, 3: SERIAL}
_COMBINES = ("Add", "Mul", "Max", "Min", "Sub")


def read_kernel(func: Any, largest: int = 2**20, flat: bool = False) -> Kernel:
    """Return a function as integer sets.

    Parameters
    ----------
    func : PrimFunc
        Lowered to loops.
    largest : int
        Open sizes are from 1 to this.
    flat : bool
        True if it goes along its parameters by one index for all dimensions.
    """
    reader = _Reader(largest, flat)
    reader.function(func)
    return reader.kernel


class _Reader:
    def __init__(self, largest: int, flat: bool) -> None:
        self.flat = flat
        self.isl, self.kernel, self.largest = library(), Kernel(), largest
        self.dims: dict[int, Dim] = {}  # loop variable -> its dimension
        self.sizes: dict[int, str] = {}
        self.values: dict[int, Any] = {}  # bound name -> its value
        self.buffers: dict[int, Buffer] = {}  # by the memory's variable
        self.shapes: dict[int, Any] = {}
        self.place: list[int | Dim] = []
        self.rules: list[str] = []  # ranges of loops and conditions around the place
        self.reduced: dict[str, tuple[Dim, str]] = {}
        self.exact = True
        self.loops = 0
        self.said: list[str] = []  # rules of the last statement's accesses

    # Functions and statements -----------------------------------------------------------------------------------------

    def function(self, func: Any) -> None:
        mapped = getattr(func, "buffer_map", None)
        for param in func.params:
            buffer = mapped.get(param, None) if mapped is not None else param
            if buffer is not None and hasattr(buffer, "shape") and hasattr(buffer, "dtype"):
                self._buffer(buffer, "global", parameter=True)
        self._sequence([func.body])
        names = sorted(self.sizes.values())
        self.kernel.context = " and ".join(f"1 <= {name} <= {self.largest}" for name in names)

    def _sequence(self, parts: Sequence[Any]) -> None:
        for number, part in enumerate(parts):
            self.place.append(number)
            self.visit(part)
            self.place.pop()

    def visit(self, stmt: Any) -> None:
        kind = kind_of(stmt)
        if kind == "SeqStmt":
            self._sequence(list(stmt.seq))
        elif kind == "For":
            self._loop(stmt)
        elif kind == "IfThenElse":
            self._branch(stmt)
        elif kind in LETS:
            self.values[hash(stmt.var)] = stmt.value
            self._within(stmt)
        elif kind == "AttrStmt":
            self._attribute(stmt)
        elif kind in ("Allocate", "AllocBuffer", "DeclBuffer", "AllocateConst", "BufferRealize"):
            self._allocation(stmt, kind)
            self._within(stmt)
        elif kind == "BufferStore":
            self._store(stmt)
        elif kind == "Evaluate":
            self._call(stmt.value)
        elif kind == "AssertStmt":
            self._within(stmt)
        elif kind in ("SBlockRealize", "BlockRealize"):
            self.visit(stmt.block.body)
        else:
            self.kernel.unread.append(f"a statement of kind {kind}")

    def _within(self, stmt: Any) -> None:
        if (body := getattr(stmt, "body", None)) is not None:
            self.visit(body)

    def _loop(self, loop: Any) -> None:
        kind = int(loop.kind)
        binding = getattr(loop, "thread_binding", None)
        if kind == 4 and binding is not None:
            self._thread(str(binding.thread_tag), loop.loop_var, loop.min, loop.extent, loop.body)
            return
        self._ranged(loop.loop_var, loop.min, loop.extent, _KINDS.get(kind, SERIAL), str(loop.loop_var.name), loop.body)

    def _thread(self, tag: str, var: Any, start: Any, extent: Any, body: Any) -> None:
        kind = BLOCK if tag.startswith("blockIdx") else THREAD
        same = [p for p in self.place if isinstance(p, Dim) and p.kind == kind and p.name == tag]
        if same and not tag.startswith(("vthread", "cthread")):  # another name of the same thread
            self.dims[hash(var)] = same[0]
            self.rules.append(f"{same[0].var} < {self._text().index(extent)}")
            self.visit(body)
            self.rules.pop()
            return
        self._ranged(var, start, extent, kind, tag, body)

    def _ranged(self, var: Any, start: Any, extent: Any, kind: str, name: str, body: Any) -> None:
        dim = Dim(self.loops, name, kind, number_of(extent) or 0)
        self.loops += 1
        text = self._text()
        low, count = text.index(start), text.index(extent)
        exact, rules = self.exact, len(self.rules)
        self.dims[hash(var)] = dim
        self.rules.append(f"{low} <= {dim.var} < {low} + {count}")
        if text.opaque or text.names:
            self.kernel.unread.append(f"the range of loop '{name}': {(text.opaque or ['a choice'])[0]}")
        self.place.append(dim)
        self.visit(body)
        self.place.pop()
        del self.rules[rules:]
        self.exact = exact

    def _branch(self, stmt: Any) -> None:
        for holds, body in ((True, stmt.then_case), (False, stmt.else_case)):
            if body is None:
                continue
            text, exact = self._text(), self.exact
            rule = text.condition(stmt.condition, holds)
            self.rules.append(_closed(text, rule))
            self.exact = self.exact and not text.opaque
            self.place.append(0 if holds else 1)
            self.visit(body)
            self.place.pop()
            self.rules.pop()
            self.exact = exact

    def _attribute(self, stmt: Any) -> None:
        key = str(stmt.attr_key).rsplit(".", 1)[-1]
        if key in ("thread_extent", "virtual_thread"):
            var = stmt.node.var
            known = self.dims.get(hash(var))
            if known is not None and known in self.place:
                self.visit(stmt.body)
                return
            tag = str(stmt.node.thread_tag) or "vthread"
            self._thread(tag, var, 0, stmt.value, stmt.body)
        elif key in ("async_scope", "async_commit_queue_scope", "async_wait_queue_scope", "double_buffer_scope"):
            self.kernel.unread.append(f"copies that run ahead ({key})")
            self.visit(stmt.body)
        else:
            self.visit(stmt.body)

    def _allocation(self, stmt: Any, kind: str) -> None:
        if kind in ("AllocBuffer", "BufferRealize"):
            self._buffer(stmt.buffer, _scope(stmt.buffer))
        elif kind == "Allocate":
            var = stmt.buffer_var
            shape = tuple(self._shape(e) for e in stmt.extents)
            self._add(hash(var), str(var.name), shape, _scope_of_var(var), str(stmt.dtype))
        elif kind == "DeclBuffer" and _memory(stmt.buffer) not in self.buffers:
            data = getattr(stmt, "data", None)
            seen = [hash(p) for p in parts_of(data) if kind_of(p) == "Var"] if data is not None else []
            found = next((self.buffers[n] for n in seen if n in self.buffers), None)
            if found is not None:
                self.buffers[_memory(stmt.buffer)] = found
            else:
                self._buffer(stmt.buffer, _scope(stmt.buffer))

    def _buffer(self, buffer: Any, scope: str, parameter: bool = False) -> Buffer:
        shape = tuple(self._shape(e) for e in buffer.shape)
        return self._add(_memory(buffer), str(buffer.name), shape, scope, str(buffer.dtype), parameter)

    def _add(
        self, key: int, name: str, shape: tuple[str, ...], scope: str, dtype: str, parameter: bool = False
    ) -> Buffer:
        dims = tuple(p for p in self.place if isinstance(p, Dim))
        dims = () if parameter else tuple(d for d in dims if not (scope == "shared" and d.kind == THREAD))
        numbers = [int(e) for e in shape if e.isdigit()]
        lanes = re.search(r"x(\d+)$", dtype)
        size = dtype_bytes(dtype.split("x")[0]) * (int(lanes[1]) if lanes else 1)
        total = math.prod(numbers) * size if len(numbers) == len(shape) else 0
        made = Buffer(len(self.kernel.buffers), name, shape, scope.split(".")[0], dims, parameter, total)
        self.kernel.buffers.append(made)
        self.buffers[key] = made
        return made

    def _shape(self, extent: Any) -> str:
        text = self._text()
        found = text.index(extent)
        if text.opaque:
            self.kernel.unread.append(f"the size {text.opaque[0]}")
        return found

    # Accesses ---------------------------------------------------------------------------------------------------------

    def _text(self) -> Text:
        return Text(self._name, self.values)

    def _name(self, var: Any) -> str | None:
        dim = self.dims.get(hash(var))
        if dim is not None:
            return self.reduced.get(dim.var, (dim, dim.var))[1]
        if not dtype_of_node(var).startswith(("int", "uint")):
            return None
        if hash(var) not in self.sizes:
            name = f"p{len(self.sizes)}"
            self.sizes[hash(var)] = name
            self.kernel.parameters[name] = str(var.name)
        return self.sizes[hash(var)]

    def _store(self, store: Any) -> None:
        value, indices = store.value, list(store.indices)
        accesses: list[tuple[Any, list[Any], bool, list[str], bool]] = []
        self._loads(value, [], True, accesses)
        for index in indices:
            self._loads(index, [], True, accesses)
        update = _updates(value, store.buffer, indices)
        accesses.append((store.buffer, indices, True, [], True))
        self._statement(accesses, f"{store.buffer.name}[{', '.join(map(str, indices))}]", update)

    def _loads(self, node: Any, rules: list[str], exact: bool, found: list[Any]) -> None:
        """Collect the loads of an expression, each with the conditions under which it is read."""
        kind = kind_of(node)
        if kind in ("Var", "SizeVar"):
            if hash(node) in self.values:
                self._loads(self.values[hash(node)], rules, exact, found)
            return
        if kind == "Select" or called(node) == "if_then_else":
            condition, yes, no = (
                (node.condition, node.true_value, node.false_value) if kind == "Select" else node.args
            )
            self._loads(condition, rules, exact, found)
            for holds, part in ((True, yes), (False, no)):
                text = self._text()
                rule = _closed(text, text.condition(condition, holds))
                self._loads(part, [*rules, rule], exact and not text.opaque, found)
            return
        if kind == "Let":
            self.values[hash(node.var)] = node.value
            self._loads(node.body, rules, exact, found)
            return
        if is_load(node):
            buffer, indices = access_of(node)
            found.append((buffer, indices, False, rules, exact))
            for index in indices:
                self._loads(index, rules, exact, found)
            return
        if called(node) in ("address_of", "tvm_access_ptr", "access_ptr"):
            self.kernel.unread.append(f"an address: {node}")
            return
        for part in _direct_parts(node):
            self._loads(part, rules, exact, found)

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
            Statement(number, tuple(self.place), domain, tuple(made), text, update, exact=exact)
        )

    def _access(
        self, space: str, around: str, extra: Sequence[str], buffer: Any, indices: list[Any], write: bool,
        rules: list[str], exact: bool,
    ) -> Access | None:  # fmt: skip
        memory = self.buffers.get(_memory(buffer))
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
        equal = [f"{o} = {e}" for o, e in zip(own, starts, strict=False)]
        if flat:  # one index for all dimensions
            steps = [math.prod(map(int, memory.shape[n + 1 :])) for n in range(len(own))]
            equal = [" + ".join(f"{step} * {o}" for step, o in zip(steps, own, strict=True)) + f" = {starts[0]}"]
            equal += [f"0 <= {o} < {extent}" for o, extent in zip(own[1:], memory.shape[1:], strict=True)]
        rule = " and ".join([*equal, *rules, *lanes, *text.rules]) or "true"
        wanted = [*(f"{v}" for v in text.names), *extra_names(extra)]
        rule = f"exists ({', '.join(wanted)} : {' and '.join([rule, *extra])})" if wanted else rule
        homes = [d.var for d in memory.dims]
        self.said += [rule, *homes]
        around = f"({around}) and {rule}"
        element = self._parsed(self.isl.Map, f"{{ {space} -> {memory.space}[{', '.join(own)}] : {around} }}")
        home = self._parsed(self.isl.Map, f"{{ {space} -> {memory.space}[{', '.join([*homes, *own])}] : {around} }}")
        if flat:
            element, home = (plain_of(found, found.domain()) for found in (element, home))
        told = text.opaque[0] if text.opaque else f"{buffer.name}[{', '.join(map(str, indices))}]"
        known = self.exact and not text.opaque
        return Access(memory, element, home, write, exact and known, told, known and not exact)

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

    # Calls ------------------------------------------------------------------------------------------------------------

    def _call(self, call: Any) -> None:
        name = called(call)
        if name in ("tvm_storage_sync", "storage_sync"):
            self._statement([], "barrier")
            self.kernel.statements[-1] = replace(self.kernel.statements[-1], barrier=True)
        elif name in ("tvm_thread_allreduce", "thread_allreduce"):
            self._reduction(call)
        elif number_of(call) is None and name not in ("tvm_storage_sync", "assume", ""):
            self.kernel.unread.append(f"a call of {name}")

    def _reduction(self, call: Any) -> None:
        """Read a reduction over threads: each thread's result holds what all threads of the group give."""
        args = list(call.args)
        count = number_of(args[0]) or 1
        sources, condition = args[1 : 1 + count], args[1 + count]
        results, variables = args[2 + count : 2 + 2 * count], args[2 + 2 * count :]
        writes: list[Any] = []
        for result in results:
            if not is_load(result):
                self.kernel.unread.append("the result of a reduction over threads")
                return
            buffer, indices = access_of(result)
            writes.append((buffer, indices, True, [], True))
        reads: list[Any] = []
        extra: list[str] = []
        dims = [self.dims[hash(v)] for v in variables if hash(v) in self.dims]
        group = {d.var: (d, f"r{d.number}") for d in dims}
        extra = [f"0 <= r{d.number} < {d.extent}" for d in dims]
        space_rules = self.rules
        self.reduced = group
        text = self._text()
        holds = _closed(text, text.condition(condition))
        for source in sources:
            self._loads(source, [holds], not text.opaque, reads)
        # Sources are of other threads: their homes are those threads'.
        made_reads = [self._of_group(read, group, extra) for read in reads]
        self.reduced = {}
        self.rules = space_rules
        self._statement(writes, "a reduction over threads")
        last = self.kernel.statements[-1]
        found = tuple(a for a in made_reads if a is not None)
        self.kernel.statements[-1] = replace(last, accesses=(*found, *last.accesses))

    def _of_group(self, read: Any, group: dict[str, tuple[Dim, str]], extra: list[str]) -> Access | None:
        number, dims = len(self.kernel.statements), [p for p in self.place if isinstance(p, Dim)]
        space = f"S{number}[{', '.join(d.var for d in dims)}]"
        made = self._access(space, " and ".join(self.rules) or "true", extra, *read)
        if made is None:
            return None
        memory = made.buffer
        swapped = [group.get(d.var, (d, d.var))[1] for d in memory.dims]
        own = [f"o{n}" for n in range(len(read[1]))]
        text = self._text()
        equal = [f"{o} = {text.index(i)}" for o, i in zip(own, read[1], strict=True)]
        rule = " and ".join([*self.rules, *equal, *read[3], *text.rules, *extra])
        names = ", ".join([*text.names, *extra_names(extra)])
        homes = [f"h{n}" for n in range(len(swapped))]
        rule = " and ".join([rule, *(f"{h} = {s}" for h, s in zip(homes, swapped, strict=True))])
        result = f"{memory.space}[{', '.join([*homes, *own])}]"
        home = self._parsed(self.isl.Map, f"{{ {space} -> {result} : exists ({names} : {rule}) }}")
        return replace(made, homes=home)


def extra_names(extra: Sequence[str]) -> list[str]:
    """Return the variables that rules of the form ``0 <= r1 < 4`` bound."""
    return [rule.split(" <= ")[1].split(" < ")[0] for rule in extra]


def _closed(text: Text, rule: str) -> str:
    rule = " and ".join([rule, *text.rules])
    return f"exists ({', '.join(text.names)} : {rule})" if text.names else f"({rule})"


def _memory(buffer: Any) -> int:
    """Return the same number for a buffer and its other views."""
    if kind_of(buffer) == "Var" or not hasattr(buffer, "data"):
        return hash(buffer)
    data = buffer.data
    return hash(data) if kind_of(data) == "Var" else hash(buffer)


def _scope(buffer: Any) -> str:
    scope = buffer.scope
    return str(scope() if callable(scope) else scope) or "global"


def _scope_of_var(var: Any) -> str:
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
        return _memory(memory) == _memory(buffer) and all(_same(x, y) for x, y in zip(at, indices, strict=True))

    if not any(own(part) for part in parts_of(value)):
        return ""
    kind = kind_of(value)
    return kind if kind in _COMBINES and (own(value.a) or own(value.b)) else "other"
