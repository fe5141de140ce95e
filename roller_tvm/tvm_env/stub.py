"""Writes a tiny shared library whose functions all return one error code; no compiler needed.

TVM built with CUDA binds ``libcuda.so.1`` (the driver) at load time. If there is no driver, a library of this name with
"no device" for every call lets TVM load, compile for GPUs, and report that none is present.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

CUDA_ERROR_NO_DEVICE = 100

# What libtvm.so of the PyPI wheel asks of the driver: `nm -D --undefined-only libtvm.so | grep ' cu[A-Z]'`.
DRIVER_SYMBOLS = (
    "cuDeviceGetName",
    "cuFuncSetAttribute",
    "cuGetErrorName",
    "cuLaunchKernel",
    "cuMemsetD32_v2",
    "cuModuleGetFunction",
    "cuModuleGetGlobal_v2",
    "cuModuleLoadData",
    "cuModuleUnload",
)

_PAGE = 0x1000
_PT_LOAD, _PT_DYNAMIC, _PT_GNU_STACK = 1, 2, 0x6474E551
_R, _W, _X = 4, 2, 1
_DT_NULL, _DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_SYMENT, _DT_SONAME = 0, 4, 5, 6, 10, 11, 14


def elf_hash(name: bytes) -> int:
    """System V hash of a symbol name."""
    h = 0
    for byte in name:
        h = (h << 4) + byte
        g = h & 0xF0000000
        h = (h ^ (g >> 24)) & ~g & 0xFFFFFFFF
    return h


def stub_library(soname: str, symbols: Sequence[str], returns: int) -> bytes:
    """Bytes of an x86-64 ELF library called `soname`; each of `symbols` is a function returning `returns`.

    Examples
    --------
    >>> stub_library("libcuda.so.1", DRIVER_SYMBOLS, CUDA_ERROR_NO_DEVICE)[:4]
    b'\\x7fELF'
    """
    names = [s.encode() for s in symbols]
    strings, name_at = b"\0", []
    for name in [*names, soname.encode()]:
        name_at.append(len(strings))
        strings += name + b"\0"

    # First page, read and execute: headers, symbols, strings, hash table, code. Second page, writable: the
    # dynamic section, which older glibc relocates in place.
    headers = 64 + 4 * 56
    symtab = headers
    strtab = symtab + 24 * (len(names) + 1)
    hashtab = (strtab + len(strings) + 7) & ~7
    buckets = len(names)
    code = (hashtab + 4 * (2 + buckets + len(names) + 1) + 15) & ~15
    body = b"\xb8" + struct.pack("<i", returns) + b"\xc3"  # mov eax, returns; ret
    text_end = code + len(body)
    if text_end > _PAGE:
        raise ValueError(f"{len(names)} symbols do not fit the stub's one page")

    def symbol(name: int, info: int, section: int, value: int, size: int) -> bytes:
        return struct.pack("<IBBHQQ", name, info, 0, section, value, size)

    # 0x12: global function. Section 1 stands for "defined"; the loader asks no more.
    table = symbol(0, 0, 0, 0, 0) + b"".join(symbol(at, 0x12, 1, code, len(body)) for at in name_at[:-1])
    heads, chain = [0] * buckets, [0] * (len(names) + 1)
    for index, name in enumerate(names, start=1):
        slot = elf_hash(name) % buckets
        chain[index], heads[slot] = heads[slot], index
    hashes = struct.pack(f"<{2 + buckets + len(chain)}I", buckets, len(chain), *heads, *chain)
    dynamic = b"".join(
        struct.pack("<QQ", tag, value)
        for tag, value in (
            (_DT_SONAME, name_at[-1]),
            (_DT_HASH, hashtab),
            (_DT_STRTAB, strtab),
            (_DT_SYMTAB, symtab),
            (_DT_STRSZ, len(strings)),
            (_DT_SYMENT, 24),
            (_DT_NULL, 0),
        )
    )

    def segment(kind: int, flags: int, at: int, size: int, align: int) -> bytes:
        return struct.pack("<IIQQQQQQ", kind, flags, at, at, at, size, size, align)

    ident = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)  # 64-bit, little-endian
    header = ident + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, 4, 64, 0, 0)
    segments = (
        segment(_PT_LOAD, _R | _X, 0, text_end, _PAGE)
        + segment(_PT_LOAD, _R | _W, _PAGE, len(dynamic), _PAGE)
        + segment(_PT_DYNAMIC, _R | _W, _PAGE, len(dynamic), 8)
        + segment(_PT_GNU_STACK, _R | _W, 0, 0, 16)  # without it the loader asks for an executable stack
    )
    image = bytearray(_PAGE + len(dynamic))
    for at, part in (
        (0, header),
        (64, segments),
        (symtab, table),
        (strtab, strings),
        (hashtab, hashes),
        (code, body),
        (_PAGE, dynamic),
    ):
        image[at : at + len(part)] = part
    return bytes(image)


def write_driver_stub(path: Path) -> None:
    """Write the stand-in for ``libcuda.so.1`` to `path`."""
    path.write_bytes(stub_library("libcuda.so.1", DRIVER_SYMBOLS, CUDA_ERROR_NO_DEVICE))
