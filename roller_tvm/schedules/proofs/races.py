"""No two iterations that run at the same time touch an element of which one writes it; barriers reach all threads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .answers import PROVEN, REFUTED, UNDECIDED, Finding
from .kernel import BLOCK, PARALLEL, THREAD, VECTOR, Access, Buffer, Dim, Kernel, Statement, value_of
from .sets import library
from .witness import element, iteration, parameters_of, point_of

_AT_ONCE = {BLOCK: "blocks", THREAD: "threads", PARALLEL: "parallel loops", VECTOR: "lanes"}


def barriers(kernel: Kernel) -> Finding:
    """Every barrier is reached by all threads of a block, or by none."""
    isl = library()
    for statement in kernel.statements:
        threads = [n for n, d in enumerate(statement.dims) if d.kind == THREAD and d.name.startswith("threadIdx")]
        if not statement.barrier or not threads:
            continue
        if not statement.exact:
            return Finding("barriers", UNDECIDED, f"a condition around the barrier {statement.text}")
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
            return Finding("barriers", REFUTED, f"{iteration(statement, point_of(left))} does not reach a barrier")
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
                found = _race(kernel, buffer, first, write, second, other)
                if found is None:
                    kernel.apart.add(key)
                    continue
                pairs, kind = found
                if not (write.exact and other.exact):
                    undecided = undecided or (other if write.exact else write).text
                    continue
                return Finding("races", REFUTED, _told(kernel, buffer, first, write, second, pairs, kind))
    return Finding("races", UNDECIDED, undecided) if undecided else Finding("races", PROVEN)


def _race(
    kernel: Kernel, buffer: Buffer, first: Statement, write: Access, second: Statement, other: Access
) -> tuple[Any, str] | None:
    rules = list(_at_once(first, second))
    if not rules:
        return None
    cells = [_cell(a) for a in (write, other)]
    same = cells[0].apply_range(cells[1].reverse())
    if same.is_empty():
        return None
    for kind, rule in rules:
        if kind == THREAD and buffer.scope in ("local", "warp"):
            continue
        text = f"{{ {_tuple(first, 'i')} -> {_tuple(second, 'j')} : {rule} }}"
        pairs = same.intersect(library().Map(text))
        if not pairs.is_empty() and kind == THREAD:
            pairs = _without_separated(pairs, kernel, first, second)
        if not pairs.is_empty():
            return pairs, kind
    return None


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


def _cell(access: Access) -> Any:
    """Return an access with the memory that it touches: one allocation in a serial loop is the same each time."""
    isl, dims = library(), access.buffer.dims
    found = access.homes
    for n in reversed(range(len(dims))):
        if dims[n].kind not in (BLOCK, PARALLEL, THREAD, VECTOR):
            found = found.project_out(isl.dim_type.out, n, 1)
    return found.set_tuple_name(isl.dim_type.out, "cell")


def _tuple(statement: Statement, letter: str, barrier: Statement | None = None) -> str:
    """Return a statement's iteration, or (`barrier`) the part of it in the serial loops that it shares with one."""
    dims = [d for d in statement.dims if barrier is None or _is_serial(d, barrier)]
    return f"{statement.space}[{', '.join(f'{letter}{d.number}' for d in dims)}]"


def _common(first: Statement, second: Statement) -> list[Dim]:
    """Return the loops that two statements share, from the outside."""
    shared = []
    for a, b in zip(first.place, second.place, strict=False):
        if a != b:
            break
        if isinstance(a, Dim):
            shared.append(a)
    return shared


def _same(first: Statement, second: Statement, kind: str) -> Iterator[tuple[str, str]]:
    """Yield the values of each thread, or block, of two statements: digit by digit if they have the same digits."""
    names = dict.fromkeys(d.name for d in first.dims if d.kind == kind)
    for name in names:
        one, two = ([d for d in s.dims if d.kind == kind and d.name == name] for s in (first, second))
        if [(d.stride, d.extent) for d in one] == [(d.stride, d.extent) for d in two]:
            yield from ((f"i{a.number}", f"j{b.number}") for a, b in zip(one, two, strict=True))
        elif two:
            yield value_of(one, "i"), value_of(two, "j")


def _at_once(first: Statement, second: Statement) -> Iterator[tuple[str, str]]:
    """Yield (kind, rule): the rule, of iterations i and j, says that they run at the same time."""
    equal: list[str] = []  # of loops outside
    launch: list[str] | None = None  # of loops outside of blocks and threads
    blocks: list[str] = []
    for dim in _common(first, second):
        if dim.kind in (PARALLEL, VECTOR):
            yield dim.kind, " and ".join([*equal, f"i{dim.number} != j{dim.number}"])
        if dim.kind in (BLOCK, THREAD) and launch is None:
            launch = list(equal)
        if dim.kind == BLOCK:
            blocks.append(f"i{dim.number} = j{dim.number}")
        equal.append(f"i{dim.number} = j{dim.number}")
    threads = [f"{a} != {b}" for a, b in _same(first, second, THREAD)]
    if launch is None:
        return  # kernels that run one after the other
    if blocks:
        differ = " or ".join(rule.replace(" = ", " != ") for rule in blocks)
        yield BLOCK, " and ".join([*launch, f"({differ})"])
    if threads:
        yield THREAD, " and ".join([*launch, *blocks, f"({' or '.join(threads)})"])


def _without_separated(pairs: Any, kernel: Kernel, first: Statement, second: Statement) -> Any:
    """Return the pairs without those between which every thread waits at a barrier."""
    isl = library()
    for barrier in kernel.statements:
        if not barrier.barrier:
            continue
        whole = _for_all(barrier)
        for early, late, turned in ((first, second, False), (second, first, True)):
            one, two = (_before(*both, whole) for both in ((early, barrier), (barrier, late)))
            if not one or not two:
                continue
            spaces = [_tuple(s, letter, barrier if whole else None)
                      for s, letter in ((early, "i"), (barrier, "j"), (barrier, "i"), (late, "j"))]  # fmt: skip
            waits = _serial(barrier.domain, barrier, barrier) if whole else barrier.domain
            before = isl.Map(f"{{ {spaces[0]} -> {spaces[1]} : {one} }}").intersect_range(waits)
            after = isl.Map(f"{{ {spaces[2]} -> {spaces[3]} : {two} }}").intersect_domain(waits)
            apart = before.apply_range(after)
            apart = apart.reverse() if turned else apart
            if whole:  # it depends on the loops around the barrier alone
                if _serial_pairs(pairs, first, second, barrier).is_subset(apart):
                    return pairs.subtract(pairs)
                apart = _serial_of(pairs, first, second, barrier, apart)
            pairs = pairs.subtract(apart)
            if pairs.is_empty():
                return pairs
    return pairs


def _is_serial(dim: Dim, barrier: Statement) -> bool:
    return dim.kind not in (BLOCK, THREAD) and dim in barrier.dims


def _for_all(barrier: Statement) -> bool:
    """Return whether the threads and blocks that reach a barrier are the same in each iteration of its other loops."""
    isl, dims = library(), barrier.dims
    others = [n for n, d in enumerate(dims) if not _is_serial(d, barrier)]
    box = _serial(barrier.domain, barrier, barrier)
    kept = ", ".join(d.var for n, d in enumerate(dims) if n not in others)
    rules = [f"{barrier.domain.dim_min_val(n)} <= {dims[n].var} <= {barrier.domain.dim_max_val(n)}" for n in others]
    every = isl.Map(f"{{ {barrier.space}[{kept}] -> {_tuple(barrier, 'i')} : {' and '.join(rules) or 'true'} }}")
    return bool(barrier.domain.is_equal(box.apply(every)))


def _serial(domain: Any, statement: Statement, barrier: Statement) -> Any:
    """Return a statement's iterations of the loops that it shares with a barrier, but blocks and threads."""
    isl = library()
    for n in reversed(range(len(statement.dims))):
        if not _is_serial(statement.dims[n], barrier):
            domain = domain.project_out(isl.dim_type.set, n, 1)
    return domain.set_tuple_name(statement.space)


def _serial_pairs(pairs: Any, first: Statement, second: Statement, barrier: Statement) -> Any:
    isl = library()
    for kind, statement in ((isl.dim_type.in_, first), (isl.dim_type.out, second)):
        for n in reversed(range(len(statement.dims))):
            if not _is_serial(statement.dims[n], barrier):
                pairs = pairs.project_out(kind, n, 1)
        pairs = pairs.set_tuple_name(kind, statement.space)
    return pairs


def _serial_of(pairs: Any, first: Statement, second: Statement, barrier: Statement, apart: Any) -> Any:
    """Return the pairs of iterations whose serial parts a barrier separates."""
    isl = library()
    down = isl.Map(f"{{ {_tuple(first, 'i')} -> {_tuple(first, 'i', barrier)} }}")
    up = isl.Map(f"{{ {_tuple(second, 'j', barrier)} -> {_tuple(second, 'j')} }}")
    return down.apply_range(apart).apply_range(up)


def _before(first: Statement, second: Statement, of_one_block: bool) -> str:
    """Return the rule by which iteration i of one statement comes before j of another in the same block's order."""
    found: list[str] = []
    equal = [] if of_one_block else [f"{a} = {b}" for a, b in _same(first, second, BLOCK)]
    for a, b in zip(first.place, second.place, strict=False):
        if isinstance(a, Dim) and isinstance(b, Dim) and a == b:
            if a.kind in (BLOCK, THREAD):
                continue
            found.append(" and ".join([*equal, f"i{a.number} < j{a.number}"]))
            equal.append(f"i{a.number} = j{a.number}")
        elif isinstance(a, int) and isinstance(b, int):
            if a < b:
                found.append(" and ".join(equal) or "true")
            if a != b:
                break
        else:
            break
    return " or ".join(f"({rule})" for rule in found)
