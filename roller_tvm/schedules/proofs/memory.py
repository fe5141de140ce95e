"""Accesses within bounds, outputs written, memory within the device."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

from ...device import DeviceSpec
from .answers import PROVEN, REFUTED, UNDECIDED, Finding
from .kernel import Buffer, Dim, Kernel, Statement
from .sets import library
from .witness import element, of_access, parameters_of, point_of


def box_of(buffer: Buffer, kernel: Kernel) -> Any:
    """Return all elements of a buffer as an isl.Set."""
    names = [f"o{n}" for n in range(len(buffer.shape))]
    rules = [f"0 <= {n} < {extent}" for n, extent in zip(names, buffer.shape, strict=True)]
    text = f"{{ {buffer.space}[{', '.join(names)}] : {' and '.join([*rules, kernel.context or 'true'])} }}"
    head = f"[{', '.join(sorted(kernel.parameters))}] -> " if kernel.parameters else ""
    return library().Set(head + text)


def bounds(kernel: Kernel, known: Collection[tuple[int, int]] = ()) -> Finding:
    """Every access is within its buffer, or `known` to be, by its statement and number."""
    undecided = ""
    for statement in kernel.statements:
        for number, access in enumerate(statement.accesses):
            if (statement.number, number) in known or access.inside:
                continue
            if access.elements.dim(library().dim_type.out) != len(access.buffer.shape):
                undecided = undecided or f"{access.text} in another shape than its memory"
                continue
            outside = access.elements.subtract_range(box_of(access.buffer, kernel))
            if outside.is_empty():
                continue
            if access.exact:
                shape = ", ".join(access.buffer.shape)
                told = f"{of_access(access, outside, statement, kernel)} is outside of [{shape}]"
                return Finding("bounds", REFUTED, told)
            undecided = undecided or access.text
    return Finding("bounds", UNDECIDED, undecided) if undecided else Finding("bounds", PROVEN)


def written(kernel: Kernel) -> Finding:
    """Every element of every output is written."""
    undecided = ""
    for buffer in kernel.buffers:
        writes = [a for s in kernel.statements for a in s.accesses if a.write and a.buffer == buffer]
        if not buffer.parameter or not writes:
            continue
        left = box_of(buffer, kernel)
        for access in writes:
            if access.exact:
                left = left.subtract(access.elements.range())
        if left.is_empty():
            continue
        if all(access.exact for access in writes):
            told = f"{element(buffer, point_of(left))} is never written{parameters_of(left, kernel)}"
            return Finding("written", REFUTED, told)
        undecided = undecided or next(a.text for a in writes if not a.exact)
    return Finding("written", UNDECIDED, undecided) if undecided else Finding("written", PROVEN)


def within_device(kernel: Kernel, device: DeviceSpec | None) -> Finding:
    """Shared memory and threads of each kernel are within the device's."""
    limits = device.limits if device is not None else None
    shared = sum(buffer.bytes for buffer in kernel.buffers if buffer.scope == "shared")
    limit = (limits.shared_per_block_optin_bytes or limits.shared_per_block_bytes) if limits is not None else None
    if limit is not None and shared > limit and len(_kernels(kernel)) <= 1:
        return Finding("memory", REFUTED, f"{shared} B of shared memory, a block has {limit} B")
    most = limits.max_threads_per_block if limits is not None else None
    for threads in (kernel.threads, *map(_threads, kernel.statements)):
        if most is not None and threads > most:
            return Finding("memory", REFUTED, f"{threads} threads a block, at most {most} start")
    return Finding("memory", PROVEN)


def _threads(statement: Statement) -> int:
    dims = (p for p in statement.place if isinstance(p, Dim))
    return math.prod(dim.extent for dim in dims if dim.name.startswith("threadIdx"))


def _kernels(kernel: Kernel) -> set[Any]:
    return {s.place[0] for s in kernel.statements if s.place and isinstance(s.place[0], int)}
