"""Fused kernels in OpenCL C: the same plans from the text of another code generator, for another compiler.

In OpenCL a barrier is for all threads of a block, and only a kernel declares shared memory. So an operator's arrays are
in an arena that it gets as an argument. If an operator with barriers has fewer threads than its block, the others go
along: they read the elements that its last thread reads, and store nothing.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from math import prod

from ..codegen.cuda_text import CudaSource, blanked, split_top
from .cuda_functions import ALIGNMENT, CannotFuse, DeviceFunction, Extents, element_bytes, kernel_text, preamble, spans
from .dialect import Dialect

_KERNEL = re.compile(r"\b__kernel\b([^(]*)\(([^)]*)\)")
_LOCAL = re.compile(r"\b__local\s+([\w ]+?)\s+(\w+)\s*\[(\d+)\]\s*;")
_PLACE = re.compile(r"\bget_(local|group)_id\s*\(\s*([012])\s*\)")
#: Text that TVM writes in no kernel; it is refused here.
_STRANGE = re.compile(r"\bget_(?!local_id|group_id)\w+|\b__local\s+\w+\s+\w+|\basync_\w+")
_ASSIGNED = re.compile(r"(?<![=!<>])(?:[-+*/%|&^]|<<|>>)?=(?!=)")
_ALONE = "leave the operator a kernel of its own"


def opencl_function(source: str, kernel: str, threads: Extents, blocks: Extents, block_threads: int,
                    dynamic_shared: int = 0) -> DeviceFunction:  # fmt: skip
    """Return a kernel as a function for blocks of `block_threads`; see `device_code.device_function`.

    Parameters
    ----------
    source : str
        OpenCL C as TVM generates it.
    kernel, threads, blocks, block_threads, dynamic_shared
        As for `device_function`. A block is one row of threads.

    Raises
    ------
    CannotFuse
        If it declares shared memory or asks for sizes in a way that TVM does not, or if idle threads would have to go
        along with a statement that is not understood; names the kernel.

    Examples
    --------
    >>> text = "__kernel void f(__global float* restrict A) { __local float S[4]; A[get_group_id(0)] = S[0]; }"
    >>> made = opencl_function(text, "f", (4, 1, 1), (2, 1, 1), 32)
    >>> made.shared_bytes, made.syncs, made.lanes, made.parameters[0].c_type
    (16, False, 4, 'float')
    """
    if dynamic_shared:
        raise CannotFuse(f"{dynamic_shared} B of dynamic shared memory", where=f"kernel '{kernel}'", remedy=_ALONE)
    known = _as_cuda(source)
    found = CudaSource(known).kernel(kernel)
    _, body = kernel_text(known, kernel)
    own = lanes = prod(threads)
    plain = blanked(body)
    syncs = bool(re.search(r"\bbarrier\s*\(", plain))
    live = ""
    if syncs and own < block_threads:
        lanes = block_threads
        shared = {*(m[2] for m in _LOCAL.finditer(plain)), *(p.name for p in found.parameters if p.pointer)}
        body = _going_along(body, kernel, shared)
        live = f"  const bool rammer_live = get_local_id(0) < {own}u;\n"
    body, size = _arena(body, kernel)
    body = spans(body, ((m.start(), m.end(), f"rammer_{'thread' if m[1] == 'local' else 'block'}.{'xyz'[int(m[2])]}")
                        for m in _PLACE.finditer(blanked(body))))
    each = [f"__global {p.c_type}* {p.name}" if p.pointer else f"{p.c_type} {p.name}" for p in found.parameters]
    places = [f"const rammer_index rammer_{what}" for what in ("thread", "block")]
    parameters = ", ".join([*each, "__local unsigned char* rammer_arena", *places])
    text = f"void rammer_self({parameters}) {{\n{live}{body.strip(chr(10))}\n}}\n"
    return DeviceFunction(text, found.parameters, size, syncs, lanes)


def opencl_preamble(source: str) -> tuple[str, ...]:
    """Return the parts of a source outside of kernels, in pieces; see `device_code.preamble`.

    Examples
    --------
    >>> opencl_preamble('#define A\\n// Function: f\\n__kernel void f(__global int* x) { }')
    ('#define A',)
    """
    return preamble(_as_cuda(source))


def _as_cuda(source: str) -> str:
    """Return the source with the heads of its kernels in CUDA C++, and without the comment that names the function."""
    def head(match: re.Match[str]) -> str:
        return f"__global__{match[1]}({re.sub(r'__global|restrict', '', match[2])})"

    return _KERNEL.sub(head, re.sub(r"^// Function:.*\n", "", source, flags=re.M))


def _arena(body: str, kernel: str) -> tuple[str, int]:
    """Return the body with its shared arrays in the arena, and their bytes."""
    changes, size = [], 0
    for match in _LOCAL.finditer(blanked(body)):
        c_type, name, extent = match.groups()
        there = f"__local {c_type}* {name} = (__local {c_type}*)(rammer_arena + {size});"
        changes.append((match.start(), match.end(), there))
        size += -(-element_bytes(c_type, name, kernel) * int(extent) // ALIGNMENT) * ALIGNMENT
    body = spans(body, changes)
    if strange := _STRANGE.search(blanked(body)):
        raise CannotFuse(f"it contains {strange.group()!r}", where=f"kernel '{kernel}'", remedy=_ALONE)
    return body, size


def _going_along(body: str, kernel: str, shared: Collection[str]) -> str:
    """Return the body for more threads than its own: they meet at its barriers and store nothing that others see.

    They still compute their private values, so that they read where the last thread reads.
    """
    changes, plain = [], blanked(body)
    for start, end, ends in _statements(plain):
        text = plain[start:end]
        if ends == ";" and _stores(text, shared, kernel):
            changes.append((start, start, "if (rammer_live) "))
        elif ends == "{" and not re.match(r"(?:if|else|for|while|do)\b|$", text):
            raise _not_understood(text, kernel)
    return spans(body, changes)


def _statements(plain: str) -> Iterator[tuple[int, int, str]]:
    """Yield (start, end, ending character) of each statement, and of the text before each block."""
    depth = start = 0
    for at, char in enumerate(plain):
        depth += (char in "([") - (char in ")]")
        if char in ";{}" and not depth:
            start += len(plain[start:at]) - len(plain[start:at].lstrip())
            yield start, max(start, at), char
            start = at + 1


def _stores(text: str, shared: Collection[str], kernel: str) -> bool:
    """Return whether a statement writes memory that other threads see.

    Raises
    ------
    CannotFuse
        If that is unknown.
    """
    if re.search(r"\breturn\b|\batom", text):
        raise _not_understood(text, kernel)
    if found := _ASSIGNED.search(_outside(text)):
        where = text[: found.start()].split("[")[0]
        if not _named(where, shared) and "*" in where:  # by way of a pointer
            raise _not_understood(text, kernel)
        return _named(where, shared)
    if re.match(r"vstore\w*\s*\(", text):
        return _named(split_top(text[text.index("(") + 1 : text.rindex(")")], ",")[-1].split("[")[0], shared)
    if not re.fullmatch(r"(?:barrier\s*\(\w+\)|[\w\s]+(?:\[\d+\])?)?", text.strip()):
        raise _not_understood(text, kernel)
    return False


def _named(text: str, names: Collection[str]) -> bool:
    return any(word in names for word in re.findall(r"\w+", text))


def _outside(text: str) -> str:
    """Return the text with the contents of brackets replaced by spaces."""
    result, depth = "", 0
    for char in text:
        depth -= char in ")]"
        result += " " if depth else char
        depth += char in "(["
    return result


def _not_understood(text: str, kernel: str) -> CannotFuse:
    return CannotFuse(f"the block's other threads would have to go along with {' '.join(text.split())!r}",
                      where=f"kernel '{kernel}'", remedy="give the operators kernels of as many threads")


OPENCL = Dialect(
    name="OpenCL C",
    read=opencl_function,
    preamble=opencl_preamble,
    helpers="typedef struct { unsigned x, y, z; } rammer_index;\n",
    kernel="__kernel __attribute__((reqd_work_group_size({threads}, 1, 1))) void",
    memory="__global ",
    index="(rammer_index)",
    thread="get_local_id(0)",
    block="get_group_id(0)",
    arena="__local unsigned char rammer_arena[{size}] __attribute__((aligned(128)))",
    dynamic_arena="",
    waits=False,
)
