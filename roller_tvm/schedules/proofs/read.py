"""A scheduled function of either TVM line, before its buffers are flattened, read as integer sets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ...codegen.flat import (
    LETS,
    Memory,
    access_of,
    called,
    is_load,
    kind_of,
    memory_of,
    number_of,
    parts_of,
    remembered,
    statements,
)
from ...codegen.waiting import REGION, all_wait, function_of
from .accesses import Accesses, Rule, closed, extra_names
from .ahead import COPY, WAIT, Landing, Unreadable, landings_of
from .begins import Begin, Unbegun, ranges_of
from .blocks import INSTANCE, Blocks
from .cases import ANY, Sizes, condition_of, turns_of
from .digits import cuts_of, strides_of
from .folds import Folding, Unfoldable
from .held import held_in
from .kernel import BLOCK, PARALLEL, SERIAL, THREAD, VECTOR, Access, Dim, Kernel, value_of
from .launches import launch_of
from .matching import added, instance_of
from .scopes import is_copy, scope_of, scope_of_var
from .virtual import unlike_threads
from .ways import EITHER, combiner_of

#: ``For.kind`` -> kind of a loop; a loop of threads (4) says its own.
_KINDS = {0: SERIAL, 1: PARALLEL, 2: VECTOR, 3: SERIAL}


def read_kernel(
    func: Any, sizes: Sizes = ANY, flat: bool = False, folds: bool = True, blocks: Blocks | None = None,
    begins: Mapping[int, Begin] | None = None,
) -> Kernel:  # fmt: skip
    """Return a function as integer sets.

    Parameters
    ----------
    func : PrimFunc
        Lowered to loops.
    sizes : Sizes
        For which it is read.
    flat : bool
        True if it goes along its parameters by one index for all dimensions.
    folds : bool
        Whether copies have dimensions of their own (``Fold``), else those of their loops alone.
    blocks : Blocks, optional
        Those of the function before its schedule; stores are marked with their instances.
    begins : mapping
        Hash of a block's variable -> the begin of its tile, which stands in place of it. If there are some, or an empty
        one is given, the kernel is read for more begins, and more sizes, than there are.

    Raises
    ------
    Unbegun
    """
    reader = _Reader(sizes, flat, folds, blocks, begins)
    reader.cuts, reader.launches = _cuts(func, folds), folds
    try:
        reader.function(func)
    except Unfoldable:  # of all statements of a kernel
        reader = _Reader(sizes, flat, folds, blocks, begins)
        reader.cuts = _cuts(func, True)
        try:
            reader.function(func)
        except Unfoldable:  # nor of single copies
            return read_kernel(func, sizes, flat, False, blocks, begins) if folds else reader.kernel
    if reader.unfolded and not reader.kernel.unread:  # copies that are not folded get the threads' own digits
        again = _Reader(sizes, flat, folds, blocks, begins)
        again.cuts, again.divided = _cuts(func, False), reader.unfolded
        again.function(func)
        return again.kernel
    return reader.kernel


def _cuts(func: Any, apart: bool) -> dict[int, Counter[int]]:
    """Return by how much variables are divided, but for copies, which may have digits of their own, or with these."""
    if apart:
        return dict(remembered(func.body, "cuts but for copies", lambda body: cuts_of(body, is_copy)))
    return dict(remembered(func.body, "cuts", cuts_of))


def _stores(body: Any) -> int:
    """Return the number of statements in a loop that store or call."""
    return sum(kind_of(part) in ("BufferStore", "Evaluate") for part in statements(body))


def _quotient(extent: Any) -> tuple[Any, int] | None:
    """Return what is divided, and by which number, None if an extent is no quotient."""
    by = number_of(extent.b) if kind_of(extent) == "FloorDiv" else None
    return (extent.a, by) if by is not None and by > 0 else None


class _Reader(Accesses):
    landings: dict[int, list[Landing]]
    memory: Memory
    turns: list[Any]  # launches under conditions of their own
    settled: set[int]  # choices by sizes whose conditions are rules of the sizes
    stored: set[int]  # memory that stores, or calls, change
    launches = False  # whether threads of all blocks may be one number
    threads: dict[Dim, Any]  # first digit of a loop -> the first name of its variable
    combiner = ""  # of the reduction over threads around the place
    named: tuple[str, list[Any]] | None = None  # the block around the place, and the values of its axes

    def __init__(
        self, open_sizes: Sizes, flat: bool, folds: bool, blocks: Blocks | None, begins: Mapping[int, Begin] | None
    ) -> None:  # fmt: skip
        super().__init__(open_sizes, flat, folds)
        self.near, self.begins = begins is not None, dict(begins or {})
        self.blocks, self.present, self.their_sizes = blocks, frozenset[str](), dict[int, Any]()
        self.kernel.blocks = blocks

    def function(self, func: Any) -> None:
        mapped = getattr(func, "buffer_map", None)
        for param in func.params:
            buffer = mapped.get(param, None) if mapped is not None else param
            if buffer is not None and hasattr(buffer, "shape") and hasattr(buffer, "dtype"):
                self._buffer(buffer, "global", parameter=True)
            elif kind_of(param) in ("Var", "SizeVar"):
                self._name(param)  # a size: in the order of the parameters, scheduled or not
        self.threads, self.settled = {}, set()
        self.values |= remembered(func.body, "held", held_in)
        self.turns = turns_of(func.body)
        self.memory = remembered(func.body, "memory", Memory.of_body)
        self.stored = set()
        for part in statements(func.body):
            if kind_of(part) == "BufferStore":
                self.stored.add(self.memory.of(part.buffer))
            elif kind_of(part) == "Evaluate":  # what a reduction over threads writes is an argument
                self.stored |= {self.memory.of(access_of(p)[0]) for p in parts_of(part.value) if is_load(p)}
        self.kernel.unread += remembered(func.body, "virtual threads", unlike_threads)
        self.present = self._present(func.body)
        if self.blocks is not None and not self.blocks.are_of(func):
            self.blocks = self.kernel.blocks = None
        self.their_sizes = self.blocks.sizes_of(func) if self.blocks is not None else {}
        self.within = self.open_sizes.within(self.kernel.parameters)
        if not self._chosen(func.body):
            return
        self.kernel.told = " and ".join([*self._ranges(), *self.within])
        if self.near:
            self._hull()
        try:
            self.landings = landings_of(func.body)
        except Unreadable as error:
            self.kernel.unread.append(str(error))
            return
        self._sequence([func.body])
        self.kernel.context = " and ".join([*self._ranges(), *self.within])

    def _hull(self) -> None:
        """Take more sizes, if those of the case are several ranges: what holds for all of them holds for these."""
        names = sorted(self.sizes.values())
        own = self._parsed(self.isl.Set, "{ [] :  true }") if names else None
        if own is not None and not own.is_empty():
            hull = str(own.simple_hull().remove_divs())
            self.within, self.bounded = [hull.partition(":")[2].rpartition("}")[0].strip() or "true"], {*names}

    def _chosen(self, body: Any) -> bool:
        """Add the conditions by which the case is chosen; return whether there are such sizes."""
        for part in statements(body) if self.open_sizes.case else ():
            holds = self.open_sizes.case.get(hash(part))
            if holds is None:
                continue
            condition = condition_of(part)
            names = {hash(p) for p in parts_of(condition) if kind_of(p) in ("Var", "SizeVar")}
            if names <= set(self.sizes):
                text = self._text()
                rule = text.condition(condition, holds)
                if not (text.opaque or text.names):
                    self.kernel.case.append(rule)
                    self.settled.add(hash(part))
        case = " and ".join(self.kernel.case) or "true"
        self.kernel.never = bool(self._parsed(self.isl.Set, f"{{ [] : {case} }}").is_empty())
        self.within += self.kernel.case
        return not self.kernel.never

    def _present(self, body: Any) -> frozenset[str]:
        """Return the blocks that the schedule left."""
        marks = (stmt for stmt in statements(body) if kind_of(stmt) == "AttrStmt" and stmt.attr_key == INSTANCE)
        found = (self.blocks.named(str(mark.value.args[0].value)) for mark in marks if self.blocks is not None)
        return frozenset(block.name for block in found if block is not None)

    def _instance(self, store: Any) -> None:
        if self.blocks is not None:
            last = self.kernel.statements[-1]
            if is_load(store.value):
                self.kernel.copies.add(last.number)
            made = instance_of(self, store, last, self.named, self.blocks, self.present, self.their_sizes)
            self.kernel.statements[-1] = replace(last, instance=made, adds=added(store, last))

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
            self._named(stmt)
            self._within(stmt)
        elif kind == "AttrStmt":
            self._attribute(stmt)
        elif kind in ("Allocate", "AllocBuffer", "DeclBuffer", "AllocateConst", "BufferRealize"):
            self._allocation(stmt, kind)
            self._within(stmt)
        elif kind == "BufferStore":
            self._store(stmt)
        elif kind == "Evaluate":
            if not function_of(stmt):  # threads wait at the end of a parallel loop, as `_attribute` has checked
                self._call(stmt.value)
        elif kind == "AssertStmt":
            if number_of(stmt.condition) != 1:
                self.kernel.unread.append(f"an assertion: {stmt.condition}")
            self._within(stmt)
        elif kind in ("SBlockRealize", "BlockRealize"):
            self.visit(stmt.block.body)
        else:
            self.kernel.unread.append(f"a statement of kind {kind}")

    def _within(self, stmt: Any) -> None:
        if (body := getattr(stmt, "body", None)) is not None:
            self.visit(body)

    def _named(self, stmt: Any) -> None:
        """Note the value of a name; one that is read may have changed where the name is used."""
        self.values[hash(stmt.var)] = stmt.value
        read = {self.memory.of(access_of(p)[0]) for p in parts_of(stmt.value) if is_load(p)}
        if not read.isdisjoint(self.stored):
            self.kernel.unread.append(f"an element that has a name: {stmt.value}")

    def _loop(self, loop: Any) -> None:
        kind, step = int(loop.kind), getattr(loop, "step", None) if hasattr(type(loop), "step") else None
        if step is not None and number_of(step) != 1:
            self.kernel.unread.append(f"the steps of loop '{loop.loop_var.name}': {step}")
        binding = getattr(loop, "thread_binding", None)
        if kind == 4 and binding is not None:
            self._thread(str(binding.thread_tag), loop.loop_var, loop.min, loop.extent, loop.body)
            return
        if (condition := condition_of(loop)) is not None:
            self.values[hash(loop.loop_var)] = loop.min  # one trip where it holds
            if len(self.turns) > 1 and hash(loop) not in self.open_sizes.case:
                self.kernel.unread.append(f"launches that each take a turn, {condition}")
            elif self.open_sizes.case.get(hash(loop), True):
                self._under(condition, True, loop.body, hash(loop) in self.settled)
            return
        name, inside = str(loop.loop_var.name), partial(self.visit, loop.body)
        if _stores(loop.body) == 1:
            self.leaves.add(hash(loop.loop_var))
        self._ranged(loop.loop_var, loop.min, loop.extent, _KINDS.get(kind, SERIAL), name, inside)

    def _thread(self, tag: str, var: Any, start: Any, extent: Any, body: Any) -> None:
        kind = BLOCK if tag.startswith("blockIdx") else THREAD
        if self.launch is not None and hash(var) in self.launch.group_of:
            self._threads_of_all(body, self.launch)
            return
        if hash(var) in self.begins:
            self._begins_at(tag, var, extent, self.begins[hash(var)], body)
            return
        if self.launches and tag == "blockIdx.x" and number_of(start) == 0:
            self.launch = launch_of(self, var, extent, body)
            if self.launch is not None:
                self.visit(body)
                self.launch = None
                return
        same = [p for p in self.place if isinstance(p, Dim) and p.kind == kind and p.name == tag]
        if any(dim in self.begun for dim in same):
            raise Unbegun
        if same and not tag.startswith(("vthread", "cthread")):  # another name of the same thread
            self.dims[hash(var)] = tuple(same)
            first = self.threads[same[0]]
            self.values[hash(var)] = first
            before, number = len(self.rules), number_of(extent)
            if number is None or number < same[0].stride * same[0].extent:  # fewer of them
                self.rules.append(Rule(f"{value_of(same)} < {self._text().index(extent)}", condition=(first, extent)))
            self.visit(body)
            del self.rules[before:]
            return
        self._ranged(var, start, extent, kind, tag, partial(self.visit, body))

    def _begins_at(self, tag: str, var: Any, extent: Any, begin: Begin, body: Any) -> None:
        """Read a launch whose blocks are told by the begins of their tiles."""
        if any(isinstance(p, Dim) and p.name == tag for p in self.place):  # another name of the same block
            raise Unbegun
        dim = Dim(self.digits, tag, BLOCK, 0, self.loops)
        self.digits, self.loops = self.digits + 1, self.loops + 1
        self.spans.add(hash(var), (0, max(self.spans.of(extent)[1] - 1, 0)))
        self.values.ranged(hash(var), 0)
        near, self.begun[dim] = ranges_of(self, var, extent, begin, dim)
        self.spans.add(hash(begin.var), self.spans.of(begin.value))
        self.dims[hash(begin.var)] = (dim,)
        self.threads[dim] = begin.var
        self.kernel.ranges[dim] = near
        self.rules.append(Rule(near, (dim,)))
        self.place.append(dim)
        self.visit(body)
        self.place.pop()
        self.rules.pop()

    def _threads_of_all(self, body: Any, launch: Folding) -> None:
        dims, before = launch.groups[0].dims, len(self.rules)
        self.digits, self.loops = self.digits + len(dims), self.loops + 1
        self.rules += [Rule(rule, dims) for rule in launch.rules]
        self.place += dims
        self.visit(body)
        del self.place[-len(dims) :], self.rules[before:]

    def _ranged(
        self, var: Any, start: Any, extent: Any, kind: str, name: str, inside: Callable[[], None]
    ) -> None:  # fmt: skip
        text, whole = self._text(), number_of(extent) or 0
        low, count = text.index(start), text.index(extent)
        (least, most), (_, trips) = self.spans.of(start), self.spans.of(extent)
        self.spans.add(hash(var), (least, most + max(trips - 1, 0)))
        exact, rules = self.exact, len(self.rules)
        strides = strides_of(whole, self.cuts.get(hash(var), {})) if number_of(start) == 0 else (1,)
        dims, outer = [], whole
        for stride in strides:
            dims.append(Dim(self.digits, name, kind, outer // stride, self.loops, stride))
            self.digits, outer = self.digits + 1, stride
        self.loops += 1
        self.dims[hash(var)] = tuple(dims)
        self.values.ranged(hash(var), whole if number_of(start) == 0 else 0)
        self.threads[dims[0]] = var
        if len(dims) > 1:
            self.rules += [Rule(f"0 <= {dim.var} < 0 + {dim.extent}", (dim,)) for dim in dims]
        else:
            whole_of = _quotient(extent) if not whole else None
            if text.names:  # which leaves all undecided, below
                self.rules.append(Rule(f"{dims[0].var} >= 0", (dims[0],)))
            elif whole_of is not None and low == "0":  # trips that a quotient counts, without it
                told = f"{whole_of[1]}*{dims[0].var} + {whole_of[1]} <= {text.index(whole_of[0])}"
                self.rules.append(Rule(f"0 <= {dims[0].var} and {told}", (dims[0],)))
            else:
                self.rules.append(Rule(f"{low} <= {dims[0].var} < {low} + {count}", (dims[0],)))
            self.kernel.ranges[dims[0]] = self.rules[-1].text
        if text.opaque or text.names:
            self.kernel.unread.append(f"the range of loop '{name}': {(text.opaque or ['a choice'])[0]}")
        self.place += dims
        inside()
        del self.place[-len(dims) :]
        del self.rules[rules:]
        self.exact = exact

    def _branch(self, stmt: Any) -> None:
        chosen = self.open_sizes.case.get(hash(stmt))
        for holds, body in ((True, stmt.then_case), (False, stmt.else_case)):
            if body is None or chosen not in (None, holds):
                continue
            self._under(stmt.condition, holds, body, hash(stmt) in self.settled)

    def _under(self, condition: Any, holds: bool, body: Any, known: bool = False) -> None:
        """Read what stands under a condition; sizes are `known` to meet it."""
        if known:
            self.place.append(0 if holds else 1)
            self.visit(body)
            self.place.pop()
            return
        text, exact = self._text(), self.exact
        rule = text.condition(condition, holds)
        self.rules.append(Rule(closed(text, rule), (), condition, holds))
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
            if known is not None and known[0] in self.place:
                self.visit(stmt.body)
                return
            tag = str(stmt.node.thread_tag) or "vthread"
            self._thread(tag, var, 0, stmt.value, stmt.body)
        elif key == COPY:
            before, self.issuing = self.issuing, not self.landing
            self.visit(stmt.body)
            self.issuing = before
        elif key == WAIT:
            for number, landing in enumerate(self.landings[hash(stmt)]):
                self.place.append(number)
                self._lands(landing)
                self.place.pop()
            self.place.append(len(self.landings[hash(stmt)]))
            self.visit(stmt.body)
            self.place.pop()
        elif key == INSTANCE:
            self.named = str(stmt.value.args[0].value), list(stmt.value.args)[1:]
            self.visit(stmt.body)
            self.named = None
        elif key == "reduce_scope":
            outer, self.combiner = self.combiner, combiner_of(stmt.node)
            self.visit(stmt.body)
            self.combiner = outer
        elif key == REGION:
            if not all_wait(stmt.body):
                self.kernel.unread.append("loops whose threads do not wait for one another")
            self.visit(stmt.body)
        elif key == "double_buffer_scope":
            self.kernel.unread.append(f"copies that run ahead ({key})")
            self.visit(stmt.body)
        else:
            self.visit(stmt.body)

    def _lands(self, landing: Landing) -> None:
        """Read the copies of a commit where a wait completes them."""
        wait = self._name(landing.wait_loop.loop_var) if landing.wait_loop is not None else ""
        loop = landing.loop
        before = self.dims.get(hash(loop.loop_var)) if loop is not None else None

        def copies() -> None:
            own = self._name(loop.loop_var) if loop is not None else ""
            self.rules.append(Rule(landing.rule(own or "", wait or "")))
            self.landing = True
            self.visit(landing.body)
            self.landing = False
            self.rules.pop()

        if loop is None:
            copies()
            return
        self._ranged(loop.loop_var, loop.min, loop.extent, SERIAL, str(loop.loop_var.name), copies)
        if before is not None:
            self.dims[hash(loop.loop_var)] = before

    def _allocation(self, stmt: Any, kind: str) -> None:
        if kind in ("AllocBuffer", "BufferRealize"):
            self._buffer(stmt.buffer, scope_of(stmt.buffer))
        elif kind == "Allocate":
            var = stmt.buffer_var
            shape = tuple(self._shape(e) for e in stmt.extents)
            self._add(hash(var), str(var.name), shape, scope_of_var(var), str(stmt.dtype))
        elif kind == "DeclBuffer" and (list(stmt.buffer.strides) or number_of(stmt.buffer.elem_offset)):
            self.kernel.unread.append(f"a view: {stmt.buffer.name}")
        elif kind == "DeclBuffer" and memory_of(stmt.buffer) not in self.buffers:
            data = getattr(stmt, "data", None)
            seen = [hash(p) for p in parts_of(data) if kind_of(p) == "Var"] if data is not None else []
            found = next((self.buffers[n] for n in seen if n in self.buffers), None)
            if found is not None:
                self.buffers[memory_of(stmt.buffer)] = found
            else:
                self._buffer(stmt.buffer, scope_of(stmt.buffer))

    # Calls ------------------------------------------------------------------------------------------------------------

    def _call(self, call: Any) -> None:
        name = called(call)
        if name in ("tvm_storage_sync", "storage_sync"):
            if self.landing:
                return
            if not str(getattr(call.args[0], "value", "")).startswith("shared"):
                self.kernel.unread.append(f"a barrier of other threads: {call}")
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
            writes.append((buffer, indices, True, [], True, ()))
        reads: list[Any] = []
        extra: list[str] = []
        dims = [dim for v in variables for dim in self.dims.get(hash(v), ())]
        group = {d.var: (d, f"r{d.number}") for d in dims}
        extra = [f"0 <= r{d.number} < {d.extent}" for d in dims]
        space_rules = self.rules
        self.reduced = group
        text = self._text()
        holds = closed(text, text.condition(condition))
        for source in sources:
            self._loads(source, [holds], not text.opaque, (self.combiner,), reads)
        # Sources are of other threads: their homes are those threads'.
        made_reads = [self._of_group(read, group, extra) for read in reads]
        self.reduced = {}
        self.rules = space_rules
        self._statement(writes, "a reduction over threads")
        last = self.kernel.statements[-1]
        found = tuple(a for a in made_reads if a is not None)
        plain = len(sources) == len(reads) == len(found) == 1 and is_load(sources[0]) and number_of(condition) == 1
        adds = (self.combiner, 0) if plain and self.combiner in EITHER else None
        self.kernel.statements[-1] = replace(last, accesses=(*found, *last.accesses), adds=adds, meets=True,
                                               tree=None if adds is None else 0)  # fmt: skip

    def _of_group(self, read: Any, group: dict[str, tuple[Dim, str]], extra: list[str]) -> Access | None:
        number, dims = len(self.kernel.statements), [p for p in self.place if isinstance(p, Dim)]
        space = f"S{number}[{', '.join(d.var for d in dims)}]"
        domain = self._parsed(self.isl.Set, f"{{ {space} : {self._rules()} }}")
        made = self._access(space, domain, extra, *read)
        if made is None:
            return None
        memory = made.buffer
        swapped = [group.get(d.var, (d, d.var))[1] for d in memory.dims]
        own = [f"o{n}" for n in range(len(read[1]))]
        text = self._text()
        equal = [f"{o} = {text.index(i)}" for o, i in zip(own, read[1], strict=True)]
        rule = " and ".join([self._rules(), *equal, *read[3], *text.rules, *extra])
        names = ", ".join([*text.names, *extra_names(extra)])
        homes = [f"h{n}" for n in range(len(swapped))]
        rule = " and ".join([rule, *(f"{h} = {s}" for h, s in zip(homes, swapped, strict=True))])
        result = f"{memory.space}[{', '.join([*homes, *own])}]"
        home = self._parsed(self.isl.Map, f"{{ {space} -> {result} : exists ({names} : {rule}) }}")
        return replace(made, homes=home)
