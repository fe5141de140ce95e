"""Panels of operands that a flattened function reads, and prefetches of the next ones; for either TVM line."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..device.cpu_data import estimate
from .flat_loops import PARALLEL, Sum, access_of, kind_of, loads_of, names_of, nests, number_of, sum_of, with_body
from .prefetch import Around, next_panel

_BITS_OF_A_BYTE = 8
#: Arguments of LLVM's prefetch: for reading, kept in the second level of cache, data.
_READ, _SECOND_LEVEL, _DATA = 0, 2, 1


@dataclass(frozen=True)
class Reads:
    """Neighbouring vectors of one tensor that the body of an innermost loop reads.

    Parameters
    ----------
    buffer : buffer
    start : Sum
        Index of the first element.
    width : int
        Number of elements.
    loops : tuple of For
        Loops around the reads, outermost first.
    """

    buffer: Any
    start: Sum
    width: int
    loops: tuple[Any, ...]


def vector_reads(body: Any) -> Iterator[Reads]:
    """Yield the whole vectors that the innermost loops of a flattened function read, one tensor at a time.

    Parameters
    ----------
    body : tvm.tir.Stmt or tvm.tirx.Stmt
    """
    named = names_of(body)
    for loops, innermost in nests(body, ()):
        variables = {hash(loop.loop_var) for loop in loops}
        found: dict[int, tuple[Any, list[tuple[Sum, int]]]] = {}
        usable = True
        for load in loads_of(innermost):
            buffer, indices = access_of(load)
            if len(indices) != 1 or kind_of(indices[0]) != "Ramp" or number_of(indices[0].stride) != 1:
                continue
            start, lanes = sum_of(indices[0].base, named, variables), number_of(indices[0].lanes)
            if start is None or lanes is None:
                usable = False
                continue
            found.setdefault(hash(buffer), (buffer, []))[1].append((start, lanes))
        if not usable:  # an index that is no sum: what moves with the loops is not known
            continue
        for buffer, parts in found.values():
            first = min(parts, key=lambda part: part[0].number)[0]
            least = [start.plus(first, -1) for start, _ in parts]
            if not all(other.is_number for other in least):
                continue  # they lie apart in a way that depends on the loops
            ends = sorted({(o.number, o.number + lanes) for o, (_, lanes) in zip(least, parts, strict=True)})
            if all(ends[n][1] == ends[n + 1][0] for n in range(len(ends) - 1)):
                yield Reads(buffer, first, ends[-1][1], loops)


def asked_ahead(func: Any, left_out: Collection[int], tir: Any, intrinsic: Any) -> dict[int, list[Any]]:
    """Return statements that prefetch panels, for the innermost loops of a flattened function.

    Parameters
    ----------
    func : tvm.tir.PrimFunc or tvm.tirx.PrimFunc
    left_out : collection of int
        Buffers (by hash) not to prefetch: those that the function writes.
    tir : module
        ``tvm.tir`` or ``tvm.tirx``.
    intrinsic : function of (address, int, int, int)
        A call of LLVM's prefetch.

    Returns
    -------
    dict
        Loop variable (by hash) -> statements that belong at the beginning of its body.
    """
    found: dict[int, list[Any]] = {}
    threads, line_bytes = _threads(func), int(estimate("line"))
    for reads in vector_reads(func.body):
        loops = [loop for loop in reads.loops if number_of(loop.extent) != 1]
        if hash(reads.buffer) in left_out or any(number_of(loop.extent) is None for loop in loops):
            continue
        around = [
            Around(int(loop.extent), reads.start.of(loop.loop_var), int(loop.kind) == PARALLEL) for loop in loops
        ]
        line = line_bytes // _element_bytes(reads.buffer)
        ahead = next_panel(around, reads.width, line, threads)
        if ahead is None:
            continue
        moved = dict(reads.start.terms)
        for loop, stride in zip(loops, ahead.strides, strict=True):
            moved[hash(loop.loop_var)] = loop.loop_var, stride
        index = Sum(reads.start.number + ahead.shift, moved)
        for n in range(ahead.lines):
            address = tir.address_of(tir.BufferLoad(reads.buffer, [index.plus(Sum(n * line)).expression(tir)]))
            call = intrinsic(address, *(tir.const(flag, "int32") for flag in (_READ, _SECOND_LEVEL, _DATA)))
            found.setdefault(hash(reads.loops[-1].loop_var), []).append(tir.Evaluate(call))
    return found


def asking(loop: Any, asked: Mapping[int, list[Any]], tir: Any) -> Any | None:
    """Return the loop with the prefetches that `asked_ahead` found for it; None if there are none."""
    asks = asked.get(hash(loop.loop_var))
    return None if asks is None else with_body(loop, tir.SeqStmt([*asks, loop.body]), tir)


def _element_bytes(buffer: Any) -> int:
    import tvm

    return max(1, tvm.DataType(str(buffer.dtype)).bits // _BITS_OF_A_BYTE)


def _threads(func: Any) -> int:
    """Return the threads that share a function's parallel loops: its target's num-cores, else the number of CPUs."""
    target = (func.attrs or {}).get("target")
    return int((target.attrs.get("num-cores") if target is not None else 0) or os.cpu_count() or 1)
