"""A kernel's CUDA text as a device function with its block and threads as arguments, so that any block may run it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod

from ..codegen.cuda_text import CudaSource, Parameter, blanked, dtype_bytes, matching
from ..errors import RollerError

_SHARED = re.compile(r"(?P<extern>\bextern\s+)?\b__shared__\b(?P<rest>[^;]*);")
_ALIGN = re.compile(r"(?:alignas|__align__)\s*\(\s*(\d+)\s*\)")
_ARRAY = re.compile(r"\s*(?P<type>.*?)\s*\b(?P<name>\w+)\s*(?P<extents>(?:\[[^\]]*\]\s*)*)$", re.S)
_INDICES = {"threadIdx": "rammer_thread", "blockIdx": "rammer_block", "blockDim": "rammer_threads",
            "gridDim": "rammer_blocks"}  # fmt: skip
#: Alignment of arrays in the arena: the widest access of a thread.
ALIGNMENT = 16
#: Alignment of the arena.
_LINE = 128
#: Barriers that need every thread of the block; there is no such instruction for fewer threads.
_WHOLE_BLOCK = re.compile(r"\b(?:__syncthreads_(?:count|and|or)|__barrier_sync)\b|\bgrid_group\b|\bthis_grid\b")
#: Assignment to an element of an array, or to a vector of them: the array, the operator, the value.
_STORE = re.compile(
    r"\s*(?:\*\s*\([^()]*\)\s*\()?\s*(\w+)\s*[\[+].*?(?<![=!<>])([+\-*/|&^]?=)(?!=)(.*)$", re.S
)
_SYNC = re.compile(r"\b__syncthreads\s*\(\s*\)")
_SIZES = {"float4": 16, "float2": 8, "uint4": 16, "uint2": 8, "int4": 16, "int2": 8, "half2": 4, "uchar4": 4}

Extents = tuple[int, int, int]


class CannotFuse(RollerError):
    """A kernel's text does something that a kernel of several operators cannot do."""


@dataclass(frozen=True)
class DeviceFunction:
    """A kernel turned into a device function.

    Parameters
    ----------
    text : str
        Its shared memory as a struct, then the function; ``rammer_self`` stands for its name.
    parameters : tuple of Parameter
        The kernel's parameters. The function takes the arena, the thread and the block after them.
    syncs : bool
        True if its threads meet at barriers.
    lanes : int
        Threads that run it: the kernel's, or whole warps of them. Extra ones do the work of the kernel's last thread.
    """

    text: str
    parameters: tuple[Parameter, ...]
    shared_bytes: int
    syncs: bool
    lanes: int


def preamble(source: str) -> tuple[str, ...]:
    """Return the parts of a source outside of kernels, in independent pieces: directives with their text, declarations.

    Examples
    --------
    >>> preamble('#include <x.h>\\n#if A\\nint a;\\n#endif\\n\\nint b() {\\n\\n}\\n__global__ void f() { }')
    ('#include <x.h>', '#if A\\nint a;\\n#endif', 'int b() {\\n\\n}')
    """
    text = CudaSource(source).only([]).text
    text = re.sub(r'extern\s*"C"\s*(?:__global__[^;{]*;|$)', "", text)
    pieces: list[str] = []
    held: list[str] = []
    depth = 0
    plain = blanked(text).splitlines()
    for line, bare in zip(text.splitlines(), plain, strict=True):
        if not held and not line.strip():
            continue
        held.append(line)
        word = re.match(r"\s*#\s*(if|endif)", bare)
        depth += (bare.count("{") - bare.count("}")) + ({"if": 1, "endif": -1}[word[1]] if word else 0)
        whole = bare.lstrip().startswith("#") or bare.rstrip().endswith((";", "}"))
        if depth <= 0 and (whole or not line.strip()) and not line.rstrip().endswith("\\"):
            pieces.append("\n".join(held).strip("\n"))
            held, depth = [], 0
    if held:
        pieces.append("\n".join(held))
    return tuple(pieces)


def device_function(source: str, kernel: str, threads: Extents, blocks: Extents, block_threads: int,
                    dynamic_shared: int = 0) -> DeviceFunction:  # fmt: skip
    """Return a kernel as a device function for blocks of `block_threads`, some of which may be idle in it.

    Parameters
    ----------
    source : str
        CUDA C++ as TVM generates it.
    threads, blocks : tuple of int
        Launch dimensions of the kernel.
    block_threads : int
        Threads of the fused kernel's blocks.

    Raises
    ------
    CannotFuse
        If it has barriers of part of a warp or of the whole block, or shared memory of unknown size; names the kernel.

    Examples
    --------
    >>> text = "__global__ void f(float* __restrict__ A) { __shared__ float S[4]; A[blockIdx.x] = S[threadIdx.x]; }"
    >>> made = device_function(text, "f", (4, 1, 1), (2, 1, 1), 32)
    >>> made.shared_bytes, made.syncs, made.lanes
    (16, False, 4)
    """
    found = CudaSource(source).kernel(kernel)
    declared, body = kernel_text(source, kernel)
    parameters = re.sub(r"\b(?:__restrict__|__restrict|__grid_constant__)\b", "", declared)
    own = lanes = prod(threads)
    syncs = bool(_SYNC.search(blanked(body)) or _WHOLE_BLOCK.search(blanked(body)))
    if syncs and re.search(r"\breturn\b", blanked(body)):  # it would come to the next barrier, not leave the block
        raise CannotFuse("threads return while others of the block wait at barriers", where=f"kernel '{kernel}'",
                         remedy="leave the operator a kernel of its own")
    if syncs and own < block_threads:
        lanes = -(-own // 32) * 32
        body = _own_barrier(body, kernel, own, lanes, block_threads)
    body, members, size = _arena(body, kernel, dynamic_shared)
    # Data of another block is no constant: the path that caches constants would miss its writes.
    body = _words(body, _INDICES | {"__ldg": "rammer_load"})
    dims = "".join(
        f"  const rammer_index {name} = {{{', '.join(map(str, extents))}}};\n"
        for name, extents in (("rammer_threads", threads), ("rammer_blocks", blocks)) if name in body
    )  # fmt: skip
    struct = f"struct rammer_self_shared {{\n{members}}};\n" if members else ""
    last = "unsigned char* rammer_arena, const rammer_index rammer_thread, const rammer_index rammer_block"
    parameters = f"{parameters.strip()}, {last}" if parameters.strip() else last
    text = f"{struct}static __device__ __forceinline__ void rammer_self({parameters}) {{\n{dims}{body.rstrip()}\n}}\n"
    return DeviceFunction(text, found.parameters, size, syncs, lanes)


def kernel_text(source: str, kernel: str) -> tuple[str, str]:
    """Return a kernel's parameters and its body, without their brackets.

    Examples
    --------
    >>> kernel_text("__global__ void f(int* x); __global__ void f(int* x) { *x = 0; }", "f")
    ('int* x', ' *x = 0; ')
    """
    _, parameters, body = kernel_spans(source, kernel)
    return source[slice(*parameters)], source[slice(*body)]


def kernel_spans(source: str, kernel: str) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
    """Return where in a source a kernel's name, its parameters and its body begin and end, brackets left out."""
    plain = blanked(source)
    for head in re.finditer(rf"__global__[^;{{}}]*?\b({re.escape(kernel)})\s*\(", plain):
        closed = matching(plain, head.end() - 1)
        opened = closed + 1 + len(plain[closed + 1 :]) - len(plain[closed + 1 :].lstrip())
        if plain[opened] == "{":  # elsewhere a declaration
            return head.span(1), (head.end(), closed), (opened + 1, matching(plain, opened))
    raise ValueError(f"the source has no kernel '{kernel}'")


def _own_barrier(body: str, kernel: str, own: int, lanes: int, block_threads: int) -> str:
    """Return the body with barriers of only the threads that run it: the block's other threads do not reach them.

    Barriers count warps. The rest of an incomplete warp repeats the last thread's work: the same values go to the
    same places, which is harmless unless one statement reads and writes a place.
    """
    plain = blanked(body)
    if whole := _WHOLE_BLOCK.search(plain):
        raise CannotFuse(f"{whole.group()} in a block of {own} threads, while other operators have {block_threads}",
                         where=f"kernel '{kernel}'", remedy="give the operators kernels of as many threads")
    if lanes > own and (twice := _twice(plain)):
        raise CannotFuse(f"its {own} threads are no whole warps, other operators have {block_threads}, and this "
                         f"cannot be done twice: {twice}", where=f"kernel '{kernel}'",
                         remedy="give it a kernel of whole warps")
    return spans(body, ((m.start(), m.end(), f"rammer_sync({lanes})") for m in _SYNC.finditer(plain)))


def _twice(plain: str) -> str:
    """Return a statement that two threads cannot both execute as one would; '' if there is none."""
    if found := re.search(r"\b(?:atomic\w+|__shfl\w*|__ballot\w*|__activemask|__any\w*|__all\w*|asm)\b", plain):
        return found.group()
    private = set(re.findall(r"\b\w+\s+(\w+)\s*\[\d+\]\s*;", _SHARED.sub("", plain)))
    for statement in re.split(r"[;{}]", plain):
        stored = _STORE.match(statement)
        if stored and stored[1] not in private and (stored[2] != "=" or re.search(rf"\b{stored[1]}\b", stored[3])):
            return " ".join(statement.split())
    return ""


def _arena(body: str, kernel: str, dynamic_shared: int) -> tuple[str, str, int]:
    """Return the body with its shared arrays in the arena, their declarations as members, and their bytes."""
    changes, members, size = [], "", 0
    declarations = list(_SHARED.finditer(blanked(body)))
    # Open-ended arrays are all the same memory; the others lie behind it, not in it.
    first = -(-dynamic_shared // _LINE) * _LINE if any(match["extern"] for match in declarations) else 0
    at = f"(rammer_arena + {first}u)" if first else "rammer_arena"
    for match in declarations:
        declared = body[match.start("rest") : match.end("rest")]
        align = max([ALIGNMENT, *map(int, _ALIGN.findall(declared))])
        found = _ARRAY.match(_ALIGN.sub(" ", declared))
        if not found:
            raise CannotFuse(f"unknown declaration of shared memory: {match.group()!r}", where=f"kernel '{kernel}'",
                             remedy="leave the operator a kernel of its own")
        c_type, name, extents = " ".join(found["type"].split()), found["name"], found["extents"].strip()
        if match["extern"]:
            changes.append((match.start(), match.end(), f"auto* {name} = ({c_type}*)rammer_arena;"))
            continue
        numbers = re.findall(r"\[\s*(\d+)\s*\]", extents)
        width = element_bytes(c_type, name, kernel)
        if len(numbers) != extents.count("["):
            raise CannotFuse(f"shared memory of {extents} elements", where=f"kernel '{kernel}', '{name}'",
                             remedy="leave the operator a kernel of its own")
        size = -(-size // align) * align + width * prod(map(int, numbers))
        members += f"  __align__({align}) {c_type} {name}{extents};\n"
        changes.append((match.start(), match.end(), f"auto& {name} = ((rammer_self_shared*){at})->{name};"))
    size = first + size if members else dynamic_shared if first else 0
    return spans(body, changes), members, -(-size // ALIGNMENT) * ALIGNMENT


def element_bytes(c_type: str, name: str, kernel: str) -> int:
    dtype = CudaSource(f"__global__ void f({c_type}* {name}) {{ }}").kernels[0].parameters[0].dtype
    if c_type in _SIZES:
        return _SIZES[c_type]
    if not dtype or dtype == "void":
        raise CannotFuse(f"shared memory of type '{c_type}', whose size is not known",
                         where=f"kernel '{kernel}', '{name}'", remedy="leave the operator a kernel of its own")
    return dtype_bytes(dtype)


def _words(text: str, names: Mapping[str, str]) -> str:
    words = re.compile(rf"(?<![.\w])(?:{'|'.join(names)})\b")
    return spans(text, ((m.start(), m.end(), names[m.group()]) for m in words.finditer(blanked(text))))


def spans(text: str, changes: Iterable[tuple[int, int, str]]) -> str:
    result, done = [], 0
    for start, end, new in changes:
        result += [text[done:start], new]
        done = end
    return "".join([*result, text[done:]])
