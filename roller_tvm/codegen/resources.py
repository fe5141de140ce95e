"""Read the resources of each kernel from a cubin's ELF sections.

Registers, stack and thread limits are attributes in ``.nv.info``; shared memory, constant memory and code are section
sizes. Cubins of either compiler have them. Only ``ptxas -v`` tells how local memory splits into spills and arrays.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from roller_tvm.codegen.compile import Cubin
from roller_tvm.errors import ToolchainError

# Attribute numbers of .nv.info (EIATTR_*), as `cuobjdump -elf` names them.
_MAX_THREADS = 0x05
_PARAMETERS = 0x0A
_FRAME_SIZE = 0x11
_MIN_STACK_SIZE = 0x12
_REGCOUNT = 0x2F
_FORMAT_SIZED = 4  # EIFMT_SVAL: the 16 bits after the number are the length of the value

# On sm_90 and later, shared sections begin with the driver's own part (reservedSharedMemPerBlock).
_RESERVED_SECTION = ".nv.shared.reserved.0"
_RESERVED_SHARED_BYTES = 1024

_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")


@dataclass(frozen=True)
class KernelResources:
    """Resources of one kernel.

    Examples
    --------
    >>> print(KernelResources(registers=64, local_bytes=0, shared_bytes=8192))
    64 registers, 0 B local, 8192 B shared
    """

    registers: int  # 32-bit registers per thread
    local_bytes: int  # stack frame per thread: spilled registers, and arrays that could not be kept in registers
    shared_bytes: int  # static shared memory per block, without the driver's reserved part
    #: Bytes of spill stores plus spill loads per thread; None if the compiler's log does not tell.
    spill_bytes: int | None = None
    constant_bytes: int = 0  # size of constant bank 0: parameters and the driver's additions
    code_bytes: int = 0  # size of the machine code
    max_threads: int | None = None  # most threads per block by ``__launch_bounds__``; None if the kernel has none
    parameter_bytes: int = 0  # size of a launch's arguments, laid out as in a C structure

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value is not None and (not isinstance(value, int) or value < 0):
                raise ValueError(f"{name!r} must be an int >= 0 (got {value!r})")

    def __str__(self) -> str:
        spill = f" ({self.spill_bytes} B of spill traffic)" if self.spill_bytes else ""
        return f"{self.registers} registers, {self.local_bytes} B local{spill}, {self.shared_bytes} B shared"

    @property
    def spills(self) -> bool:
        """True if a thread uses any local memory."""
        return self.local_bytes > 0 or bool(self.spill_bytes)

    def to_json(self) -> dict[str, Any]:
        """Return the resources as plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> KernelResources:
        """Return the resources that `to_json` wrote.

        Examples
        --------
        >>> r = KernelResources(registers=32, local_bytes=0, shared_bytes=0)
        >>> KernelResources.from_json(r.to_json()) == r
        True
        """
        return cls(**data)


def kernel_resources(cubin: Cubin) -> dict[str, KernelResources]:
    """Return the resources of every kernel in a cubin, by (mangled) name.

    Examples
    --------
    >>> from roller_tvm.codegen import compile_cuda
    >>> cubin = compile_cuda('extern "C" __global__ void f(int* x) { *x = 1; }', "sm_80")
    >>> kernel_resources(cubin)["f"].shared_bytes
    0
    """
    try:
        return _read(cubin)
    except (struct.error, IndexError, KeyError, UnicodeDecodeError) as error:
        raise ToolchainError(
            f"the {cubin.arch} cubin from {cubin.compiler} could not be read: {error!r}",
            remedy="compile with the other compiler (nvrtc or nvcc), and report this",
        ) from error


@dataclass(frozen=True)
class _Section:
    name: str
    offset: int
    size: int
    link: int


def _sections(elf: bytes) -> list[_Section]:
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    entry, count, names_at = struct.unpack_from("<HHH", elf, 0x3A)
    raw = [struct.unpack_from("<IIQQQQI", elf, table + i * entry) for i in range(count)]
    names = raw[names_at][4]
    return [_Section(_string(elf, names + r[0]), r[4], r[5], r[6]) for r in raw]


def _string(elf: bytes, at: int) -> str:
    return elf[at : elf.index(b"\0", at)].decode()


def _attributes(elf: bytes, section: _Section) -> Iterator[tuple[int, bytes]]:
    at, end = section.offset, section.offset + section.size
    while at < end:
        form, number, low = elf[at], elf[at + 1], struct.unpack_from("<H", elf, at + 2)[0]
        at += 4
        if form == _FORMAT_SIZED:
            yield number, elf[at : at + low]
            at += low


def _read(cubin: Cubin) -> dict[str, KernelResources]:
    elf = cubin.data
    sections = _sections(elf)
    by_name = {s.name: s for s in sections}
    symbols, strings = by_name[".symtab"], sections[by_name[".symtab"].link]

    def symbol(index: int) -> str:
        (name,) = struct.unpack_from("<I", elf, symbols.offset + index * 24)
        return _string(elf, strings.offset + name)

    told: dict[str, dict[int, int]] = {}
    for number, value in _attributes(elf, by_name[".nv.info"]):
        if number in (_FRAME_SIZE, _MIN_STACK_SIZE, _REGCOUNT):
            index, amount = struct.unpack("<II", value)
            told.setdefault(symbol(index), {})[number] = amount

    reserved = _RESERVED_SHARED_BYTES if _RESERVED_SECTION in by_name else 0
    spills = _spills(cubin.log)
    kernels = {}
    for section in sections:
        name = section.name.removeprefix(".text.")
        info = by_name.get(f".nv.info.{name}")
        if name == section.name or info is None:
            continue
        shared, constant = by_name.get(f".nv.shared.{name}"), by_name.get(f".nv.constant0.{name}")
        if constant is None:
            continue  # a device function that was not inlined; its stack counts in its callers' minimum
        attributes = list(_attributes(elf, info))
        limits = [struct.unpack("<III", v) for n, v in attributes if n == _MAX_THREADS]
        parameters = [struct.unpack_from("<H", v, 6)[0] for n, v in attributes if n == _PARAMETERS]
        amounts = told[name]
        kernels[name] = KernelResources(
            registers=amounts[_REGCOUNT],
            local_bytes=max(amounts.get(_FRAME_SIZE, 0), amounts.get(_MIN_STACK_SIZE, 0)),
            shared_bytes=shared.size - reserved if shared else 0,
            spill_bytes=spills.get(name),
            constant_bytes=constant.size,
            code_bytes=section.size,
            max_threads=limits[0][0] * limits[0][1] * limits[0][2] if limits else None,
            parameter_bytes=parameters[0] if parameters else 0,
        )
    return kernels


def _spills(log: str) -> dict[str, int]:
    spills: dict[str, int] = {}
    name = None
    for line in log.splitlines():
        if entry := _ENTRY.search(line):
            name = entry[1]
        elif (found := _SPILLS.search(line)) and name is not None:
            spills[name] = int(found[2]) + int(found[3])
            name = None
    return spills
