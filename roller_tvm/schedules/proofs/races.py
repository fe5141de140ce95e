"""No two iterations that run at the same time touch an element of which one writes it; barriers reach all threads."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from .answers import PROVEN, REFUTED, UNDECIDED, Finding
from .kernel import BLOCK, PARALLEL, THREAD, VECTOR, Access, Buffer, Dim, Kernel, Statement, dims_of
from .sets import by_digits, library
from .walls import Walls, same_of, tuple_of
from .witness import element, iteration, parameters_of, point_of

_AT_ONCE = {BLOCK: "blocks", THREAD: "threads", PARALLEL: "parallel loops", VECTOR: "lanes"}


#: A place that all threads reach: whether it reduces over them -> its words.
_BARRIER = {False: "a barrier", True: "a reduction over threads"}


def barriers(kernel: Kernel) -> Finding:
    """Every barrier, and every reduction over threads, is reached by all threads of a block, or by none."""
    isl = library()
    for statement in kernel.statements:
        threads = [n for n, d in enumerate(statement.dims) if d.kind == THREAD and d.name.startswith("threadIdx")]
        if not (statement.barrier or statement.meets) or not threads:
            continue
        if not statement.exact:
            return Finding("barriers", UNDECIDED, f"a condition around {_BARRIER[statement.meets]}")
        domain, dims = statement.domain, statement.dims
        everyone = domain
        for n in reversed(threads):
            everyone = everyone.project_out(isl.dim_type.set, n, 1)
        kept = [d.var for n, d in enumerate(dims) if n not in threads]
        ranges = " and ".join(f"0 <= {dims[n].var} < {dims[n].extent}" for n in threads)
        every = isl.Map(f"{{ T[{', '.join(kept)}] -> {statement.space}[{', '.join(d.var for d in dims)}] : {ranges} }}")
        everyone = everyone.set_tuple_name("T").apply(every)
        left = everyone.subtract(domain)
        if not left.is_empty():
            told = f"{iteration(statement, point_of(left))} does not reach {_BARRIER[statement.meets]}"
            return Finding("barriers", REFUTED, told)
    return Finding("barriers", PROVEN)


def races(kernel: Kernel) -> Finding:
    """Elements that one of several iterations at a time writes are touched by no other."""
    undecided = ""
    for buffer in kernel.buffers:
        touching = [(s, n, a) for s in kernel.statements for n, a in enumerate(s.accesses) if a.buffer == buffer]
        writes = [(s, a) for s, _, a in touching if a.write]
        for first, write in writes:
            for second, number, other in touching:
                key = first.number, second.number, number
                if (other.write and second.number < first.number) or key in kernel.apart:
                    continue  # seen from the other side, or in another try
                found = kernel.meeting.get(key) or _race(kernel, buffer, first, write, second, other)
                if found is None:
                    kernel.apart.add(key)
                    continue
                kernel.meeting[key] = pairs, kind = found
                if not (write.exact and other.exact):
                    undecided = undecided or (other if write.exact else write).text
                    continue
                told = _told(kernel, buffer, first, write, second, pairs, kind)
                readers = [s for s, _, a in touching if not a.write]
                alone = other is write and len(writes) == 1
                if not (alone and _again(kernel, buffer, first, write, readers)):
                    return Finding("races", REFUTED, told)
                kernel.again[buffer.number] = told
                kernel.reread |= {buffer.number} if readers else set()
    return Finding("races", UNDECIDED, undecided) if undecided else Finding("races", PROVEN)


def _again(kernel: Kernel, buffer: Buffer, statement: Statement, write: Access, readers: list[Statement]) -> bool:
    """Return whether the race may do no harm: trips of parallel loops write an element again.

    A last tile that begins earlier does that, and writes the same values. That these are the same is asked with the
    values. Others may read the element after all of these trips.
    """
    if buffer.dims or statement.update or not (readers or buffer.parameter):
        return False
    if not all(_follows(reader, statement) for reader in readers):
        return False
    return _race(kernel, buffer, statement, write, statement, write, (THREAD, VECTOR)) is None


def _follows(later: Statement, earlier: Statement) -> bool:
    """Return whether a statement comes after another, and no loop is around both."""
    for one, other in zip(later.place, earlier.place, strict=False):
        if isinstance(one, Dim) or isinstance(other, Dim):
            return False
        if one != other:
            return one > other
    return False


def twice(kernel: Kernel) -> Finding:
    """No element that trips of parallel loops write again is written by more than two: one of them is the last."""
    for statement in kernel.statements:
        write = statement.write
        if write is not None and write.buffer.number in kernel.again:
            back = write.elements.reverse()
            if not back.subtract(back.lexmax()).subtract(back.lexmin()).is_empty():
                return Finding("races", REFUTED, kernel.again[write.buffer.number])
    return Finding("races", PROVEN)


def _race(
    kernel: Kernel, buffer: Buffer, first: Statement, write: Access, second: Statement, other: Access,
    kinds: Collection[str] = tuple(_AT_ONCE),
) -> tuple[Any, str] | None:  # fmt: skip
    own = {f"i{dim.number} = j{dim.number}" for dim in buffer.dims}  # of each trip there is memory of its own
    rules = [(kind, rule) for kind, rule in _at_once(first, second, own)
             if kind in kinds and not (kind == THREAD and buffer.scope in ("local", "warp"))]  # fmt: skip
    if not rules:
        return None
    kernel.walls = walls = kernel.walls or Walls(kernel)
    if all(kind == THREAD for kind, _ in rules) and walls.apart(first, second):
        return None
    if _apart_in_a_block(walls, first, write, second, other, rules):
        return None
    cells = [_cell(a) for a in (write, other)]
    if first is second and write is other and (by_digits(cells[0]) or cells[0].is_injective()):
        return None
    same = cells[0].apply_range(cells[1].reverse())
    if same.is_empty():
        return None
    for kind, rule in rules:
        pairs = same
        if kind == THREAD:  # whichever the threads are, which is more, but simple
            pairs = walls.together(pairs, first, second)
        text = f"{{ {tuple_of(first, 'i')} -> {tuple_of(second, 'j')} : {rule} }}"
        for differing in () if pairs.is_empty() else library().Map(text).get_basic_maps():
            if not (found := pairs.intersect(library().Map.from_basic_map(differing))).is_empty():
                return found, kind
    return None


def _apart_in_a_block(
    walls: Walls, first: Statement, write: Access, second: Statement, other: Access, rules: list[tuple[str, str]]
) -> bool:  # fmt: skip
    """Return whether accesses of memory of each block do not meet, whatever they are; False says nothing."""
    if write.of_one_block is None or other.of_one_block is None or any(kind == BLOCK for kind, _ in rules):
        return False
    cells = [_cell(a, True) for a in (write, other)]
    if first is second and write is other and by_digits(cells[0]):
        return True
    same = cells[0].apply_range(cells[1].reverse())
    blocks = [f"i{dim.number} = j{dim.number} and " for dim in first.dims if dim.kind == BLOCK]
    one, two = (tuple_of(s, x, dims_of(s.dims, True)) for s, x in ((first, "i"), (second, "j")))
    for kind, rule in rules:
        if same.is_empty():
            return True
        pairs = walls.together(same, first, second, True) if kind == THREAD else same
        for block in blocks:
            rule = rule.replace(block, "")
        if not pairs.is_empty() and not pairs.intersect(library().Map(f"{{ {one} -> {two} : {rule} }}")).is_empty():
            return False
    return True


def _told(
    kernel: Kernel, buffer: Buffer, first: Statement, write: Access, second: Statement, pairs: Any, kind: str
) -> str:
    values, count = point_of(pairs), len(first.dims)
    one, two = values[:count], values[count : count + len(second.dims)]
    point = library().Set(f"{{ {first.space}[{', '.join(map(str, one))}] }}")
    at = point_of(point.apply(write.elements))
    doing = "written" if second.write is not None and second.write.buffer == buffer else "read"
    told = f"{element(buffer, at)} is written at {iteration(first, one)} and {doing} at {iteration(second, two)}"
    return f"{told}, {_AT_ONCE[kind]} at the same time{parameters_of(pairs, kernel)}"


def _cell(access: Access, of_one_block: bool = False) -> Any:
    """Return an access with the memory that it touches: one allocation in a serial loop is the same each time."""
    isl, found = library(), access.of_one_block if of_one_block else access.homes
    dims = dims_of(access.buffer.dims, of_one_block)
    for n in reversed(range(len(dims))):
        if dims[n].kind not in (BLOCK, PARALLEL, THREAD, VECTOR):
            found = found.project_out(isl.dim_type.out, n, 1)
    return found.set_tuple_name(isl.dim_type.out, "cell")


def _common(first: Statement, second: Statement) -> list[Dim]:
    """Return the loops that two statements share, from the outside."""
    shared = []
    for a, b in zip(first.place, second.place, strict=False):
        if a != b:
            break
        if isinstance(a, Dim):
            shared.append(a)
    return shared


def _at_once(first: Statement, second: Statement, own: set[str]) -> Iterator[tuple[str, str]]:
    """Yield (kind, rule): the rule, of iterations i and j, says that they run at the same time.

    Rules of `own` hold, and may be left out.
    """
    equal: list[str] = []  # of loops outside
    launch: list[str] | None = None  # of loops outside of blocks and threads
    blocks: list[str] = []
    for dim in _common(first, second):
        if dim.kind in (PARALLEL, VECTOR) and f"i{dim.number} = j{dim.number}" not in own:
            yield dim.kind, " and ".join([*equal, f"{first.value(dim, 'i')} != {second.value(dim, 'j')}"])
        if dim.kind in (BLOCK, THREAD) and launch is None:
            launch = list(equal)
        if dim.kind == BLOCK:
            blocks.append(f"i{dim.number} = j{dim.number}")
        equal.append(f"{first.value(dim, 'i')} = {second.value(dim, 'j')}")
    threads = [f"{a} != {b}" for a, b in same_of(first, second, THREAD)]
    if launch is None:
        return  # kernels that run one after the other
    if differ := " or ".join(rule.replace(" = ", " != ") for rule in blocks if rule not in own):
        yield BLOCK, " and ".join([*launch, f"({differ})"])
    if threads:
        yield THREAD, " and ".join([*launch, *blocks, f"({' or '.join(threads)})"])
