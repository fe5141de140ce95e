"""The iteration whose value a read gets: exact dataflow by isl, threads side by side statement by statement.

A kernel without races computes the same in any order of its threads, so one order is enough.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .answers import PROVEN, REFUTED, UNDECIDED, Finding
from .kernel import BLOCK, PARALLEL, THREAD, Access, Buffer, Dim, Kernel, Statement, dims_of
from .memory import box_of
from .nearest import Visit, setter_of, sources_of
from .sets import library, maps_of
from .walls import tuple_of
from .witness import element, iteration, parameters_of, point_of


@dataclass
class Flow:
    """Sources of every read of memory that the kernel itself writes.

    Attributes
    ----------
    sources : dict
        (statement, number of the read) -> isl.UnionMap from the reading iterations to the writing ones: the last to set
        the element, and all to combine with it since.
    missing : dict
        The same -> isl.UnionSet of iterations without a value.
    finals : dict
        Output -> isl.UnionMap from its elements to the statements whose values they hold at the end.
    writers : dict
        Output that one statement alone writes, maybe several times -> isl.UnionMap from its elements to all iterations
        that write them; its finals are found by ``ended``.
    firsts : dict
        Finals of outputs of which trips of parallel loops write elements again, if the first of these is the last.
    """

    kernel: Kernel
    sources: dict[tuple[int, int], Any] = field(default_factory=dict)
    missing: dict[tuple[int, int], Any] = field(default_factory=dict)
    finals: dict[int, Any] = field(default_factory=dict)
    writers: dict[int, Any] = field(default_factory=dict)
    firsts: dict[int, Any] = field(default_factory=dict)
    whole: bool = False
    roots: dict[tuple[int, int], Any] = field(default_factory=dict)  # what reads get through copies (``Origins``)
    done: set[int] = field(default_factory=set)  # buffers whose reads all have their sources

    def found(self) -> Flow:
        """Return this with all sources found; what was found before isl had enough is kept."""
        written = {a.buffer for s in self.kernel.statements for a in s.accesses if a.write}
        for buffer in self.kernel.buffers:
            if buffer.number in self.done or (buffer.parameter and buffer not in written):
                continue
            if buffer in written:
                self._of_buffer(buffer)
            else:
                self._of_nothing(buffer)
            self.done.add(buffer.number)
        self.whole = True
        return self

    def _of_nothing(self, buffer: Buffer) -> None:
        """Note reads of memory that no statement writes."""
        isl = library()
        for s in self.kernel.statements:
            for n, access in enumerate(s.accesses):
                if access.buffer == buffer:
                    self.sources[s.number, n] = isl.UnionMap("{ }")
                    self.missing[s.number, n] = isl.UnionSet.from_set(access.homes.domain())

    def ended(self) -> Flow:
        """Return this with the finals of all outputs."""
        for number, writers in self.writers.items():
            if number not in self.finals:
                self.finals[number] = writers.lexmax()
                if number in self.kernel.again:
                    self.firsts[number] = writers.lexmin()
        return self

    def turned(self) -> Flow:
        """Return this where of the trips that write an element again the first one is the last."""
        return replace(self, finals={**self.finals, **self.firsts})

    def _of_buffer(self, buffer: Buffer, one: bool = True) -> None:
        """Note sources and values of a buffer; of `one` block, if all blocks do the same to memory of their own."""
        isl = library()
        one = one and _alike(self.kernel, buffer)
        sets: list[Visit] = []
        adds: list[Visit] = []
        times: list[tuple[str, Statement | None]] = []
        reads: dict[str, tuple[Statement, int, Visit]] = {}
        for s in self.kernel.statements:
            used = False
            for n, access in enumerate(s.accesses):
                if access.buffer != buffer:
                    continue
                used = True
                if access.write:
                    (adds if s.update or not access.exact else sets).append(_visit(s, access, one))
                elif not (s.update and is_own(s, access)):
                    reads[f"R{s.number}_{n}"] = s, n, _visit(s, access, one)
            if used:
                times.append((s.space, s))
        ends: list[Visit] = []
        if buffer.parameter:
            box = box_of(buffer, self.kernel).set_tuple_name("F")
            ends.append(Visit(("1",), (), box.identity().set_tuple_name(isl.dim_type.out, buffer.space)))
        if buffer.number in self.kernel.reread:  # whichever iteration is the last
            self._of_all(buffer, sets[0], reads, ends)
            return
        issued = isl.UnionSet("{ }")
        for s in self.kernel.statements:
            if s.issued and s.write is not None and s.write.buffer == buffer:
                issued = issued.union(_visit(s, s.write, one).homes.domain())
        if issued.is_empty():
            for name, (s, n, read) in list(reads.items()):
                if (told := sources_of(read, sets, adds)) is not None:
                    self._note(s, n, told, isl.UnionSet("{ }"), one)
                    del reads[name]
            for end in ends:
                if (told := sources_of(end, sets, adds)) is not None:
                    self.finals[buffer.number] = _union(told)
                    ends = []
                elif len(sets) == 1 and not adds:
                    self.writers[buffer.number] = _union([end.homes.apply_range(sets[0].homes.reverse())])
                    ends = []
        sinks = [read.homes.set_tuple_name(isl.dim_type.in_, name) for name, (_, _, read) in reads.items()]
        sinks += [end.homes for end in ends]
        times += [(name, s) for name, (s, _, _) in reads.items()] + [("F", None) for _ in ends]
        if not sinks:
            return
        info = isl.UnionAccessInfo.from_sink(_union(sinks))
        info = info.set_must_source(_union([one.homes for one in sets])) if sets else info
        info = info.set_may_source(_union([one.homes for one in adds])) if adds else info
        found = info.set_schedule_map(_times(times, buffer, one)).compute_flow()
        whole, lacking = found.get_may_dependence().reverse(), found.get_may_no_source().domain()
        for name, (s, n, read) in reads.items():
            only = isl.UnionSet.from_set(read.homes.domain().set_tuple_name(name))
            back = _union([_renamed(s, name, read.names)])
            told = maps_of(back.apply_range(whole.intersect_domain(only)))
            early = whole.intersect_range(issued).intersect_domain(only).domain()
            # islpy 2026.2.2 may find that nothing lacks a source where its own map of sources lacks it.
            without = only.subtract(whole.intersect_domain(only).domain())
            none = lacking.intersect(only).union(early).union(without)
            if one and not none.is_empty():  # of which block
                self._of_buffer(buffer, False)
                return
            self._note(s, n, told, none, one)
        for end in ends:
            self.finals[buffer.number] = whole.intersect_domain(isl.UnionSet.from_set(end.homes.domain()))

    def _note(self, reader: Statement, number: int, sources: list[Any], missing: Any, one: bool) -> None:
        isl = library()
        if one:
            sources = [self._of_each(reader, source) for source in sources]
        self.sources[reader.number, number] = _union(sources) if sources else isl.UnionMap("{ }")
        self.missing[reader.number, number] = missing

    def _of_each(self, reader: Statement, relation: Any) -> Any:
        """Return the sources in each block from those in one."""
        isl = library()
        writer = self.kernel.statements[int(relation.get_tuple_name(isl.dim_type.out)[1:])]
        for statement, kind in ((reader, isl.dim_type.in_), (writer, isl.dim_type.out)):
            for n, dim in enumerate(statement.dims):
                relation = relation.insert_dims(kind, n, 1) if dim.kind == BLOCK else relation
            relation = relation.set_tuple_name(kind, statement.space)
        equal = " and ".join(f"i{dim.number} = j{dim.number}" for dim in reader.dims if dim.kind == BLOCK)
        relation = relation.intersect(isl.Map(f"{{ {tuple_of(reader, 'i')} -> {tuple_of(writer, 'j')} : {equal} }}"))
        return relation.intersect_domain(reader.domain).intersect_range(writer.domain)

    def _of_all(
        self, buffer: Buffer, wrote: Visit, reads: Mapping[str, tuple[Statement, int, Visit]], ends: Sequence[Visit]
    ) -> None:  # fmt: skip
        """Note all iterations that write an element, before all that read it, as its sources."""
        isl, back = library(), wrote.homes.reverse()
        for s, n, read in reads.values():
            lacking = read.homes.subtract_range(wrote.homes.range()).domain()
            self.sources[s.number, n] = _union([read.homes.apply_range(back)])
            self.missing[s.number, n] = isl.UnionSet.from_set(lacking)
        for end in ends:
            self.writers[buffer.number] = _union([end.homes.apply_range(back)])


def initialised(flow: Flow) -> Finding:
    """Every element that is read was written before."""
    kernel, undecided = flow.kernel, ""
    for (number, n), lacking in flow.missing.items():
        if lacking.is_empty():
            continue
        statement = kernel.statements[number]
        access = statement.accesses[n]
        writes = [a for s in kernel.statements for a in s.accesses if a.write and a.buffer == access.buffer]
        if vague := [a.text for a in (access, *writes) if not a.exact]:
            undecided = undecided or vague[0]
            continue
        sets: list[Any] = []
        lacking.foreach_set(sets.append)
        values = point_of(sets[0])
        point = library().Set(f"{{ {statement.space}[{', '.join(map(str, values))}] }}")
        at = point_of(point.apply(access.elements)) if not kernel.parameters else []
        told = element(access.buffer, at) if at else access.buffer.name
        where = f"{iteration(statement, values)}{parameters_of(sets[0], kernel)}"
        return Finding("initialised", REFUTED, f"{told} is read at {where} before it is written")
    updates = _unset(flow)
    if updates is not None:
        return updates
    return Finding("initialised", UNDECIDED, undecided) if undecided else Finding("initialised", PROVEN)


def _unset(flow: Flow) -> Finding | None:
    """Return a finding if a sum starts from memory that nothing set."""
    isl, kernel = library(), flow.kernel
    for buffer in kernel.buffers:
        adding = [s for s in kernel.statements if s.update and s.write is not None and s.write.buffer == buffer]
        if not adding:
            continue
        setting = [s for s in kernel.statements if not s.update for a in s.accesses if a.write and a.buffer == buffer]
        one = _alike(kernel, buffer)
        starts = [_visit(s, a, one) for s in setting for a in s.accesses if a.write and a.buffer == buffer and a.exact]
        adding = [s for s in adding if not s.write or setter_of(_visit(s, s.write, one), starts) is None]
        if not adding:
            continue
        sinks = [s.write.homes.set_tuple_name(isl.dim_type.in_, f"U{s.number}") for s in adding if s.write]
        times = _times([*((f"U{s.number}", s) for s in adding), *((s.space, s) for s in setting)], buffer)
        info = isl.UnionAccessInfo.from_sink(_union(sinks))
        if setting:
            info = info.set_must_source(_union([s.write.homes for s in setting if s.write]))
        found = info.set_schedule_map(times).compute_flow()
        known = found.get_may_dependence().range()
        lacking = found.get_must_no_source().domain().union(_union(sinks).domain().subtract(known))
        if lacking.is_empty():
            continue
        sets: list[Any] = []
        lacking.foreach_set(sets.append)
        name = sets[0].get_tuple_name()
        statement = kernel.statements[int(name[1:])]
        values = point_of(sets[0])
        if not all(s.exact for s in (*adding, *setting)):
            return Finding("initialised", UNDECIDED, f"{buffer.name} under a condition")
        told = f"{buffer.name} is added to at {iteration(statement, values)} before it is set"
        return Finding("initialised", REFUTED, f"{told}{parameters_of(sets[0], kernel)}")
    return None


def is_own(statement: Statement, access: Access) -> bool:
    """Return whether a read is of the element that the statement writes."""
    write = statement.write
    return write is not None and bool(access.elements.is_subset(write.elements))


def _alike(kernel: Kernel, buffer: Buffer) -> bool:
    """Return whether all blocks do the same to memory of their own."""
    accesses = [a for s in kernel.statements for a in s.accesses if a.buffer == buffer]
    return not buffer.parameter and all(access.of_one_block is not None for access in accesses)


def _visit(statement: Statement, access: Access, one: bool = False) -> Visit:
    """Return a statement's access; of `one` block alone."""
    entries, _ = _entries(statement, one)
    names = (dim.var for dim in dims_of(statement.dims, one))
    return Visit(tuple(entries), tuple(names), access.of_one_block if one else access.homes)


def _times(spaces: Sequence[tuple[str, Statement | None]], buffer: Buffer, one: bool = False) -> Any:
    """Return when iterations run: in the order of the function, threads side by side; None is the end.

    What all have in common tells nothing: nor do loops of which each trip has memory of its own.
    """
    rows = [(["1"], list[str]()) if s is None else _entries(s, one) for _, s in spaces]
    depth = max(len(row) + len(threads) for row, threads in rows)
    whole = [[*row, *["0"] * (depth - len(row) - len(threads)), *threads] for row, threads in rows]
    own = {dim.var for dim in buffer.dims}
    kept = [n for n in range(depth)
            if len({row[n] for row in whole}) > 1 or not (whole[0][n].isdigit() or whole[0][n] in own)]  # fmt: skip
    maps = []
    for (space, statement), row in zip(spaces, whole, strict=True):
        dims = dims_of(statement.dims, one) if statement is not None else []
        names = [d.var for d in dims] if statement is not None else [f"f{n}" for n in range(len(buffer.shape))]
        told = ", ".join(row[n] for n in kept) or "0"
        maps.append(library().Map(f"{{ {space}[{', '.join(names)}] -> [{told}] }}"))
    return _union(maps)


def _entries(statement: Statement, one: bool = False) -> tuple[list[str], list[str]]:
    """Return the place of a statement in time, in `one` block, and its threads."""
    entries: list[str] = []
    threads = [dim.var for fold in statement.folds for dim in fold.dims]
    for part in statement.place:
        if isinstance(part, Dim) and part in statement.folded:
            entries += [] if part.kind == THREAD else ["0"]
        elif isinstance(part, Dim) and one and part.kind == BLOCK:
            continue
        elif isinstance(part, Dim):
            (threads if part.kind == THREAD else entries).append(part.var)
        else:
            entries.append(str(part))
    return entries, threads


def _renamed(statement: Statement, name: str, dims: Sequence[str]) -> Any:
    names = ", ".join(dims)
    return library().Map(f"{{ {statement.space}[{names}] -> {name}[{names}] }}")


def _union(maps: list[Any]) -> Any:
    isl = library()
    found = isl.UnionMap.from_map(maps[0])
    for one in maps[1:]:
        found = found.union(isl.UnionMap.from_map(one))
    return found


__all__ = ["BLOCK", "PARALLEL", "Flow", "initialised"]
