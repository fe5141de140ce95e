"""A kernel's fault, and its words made from the emulator's numbers."""

from __future__ import annotations

import ctypes
import signal
from collections.abc import Sequence

from roller_tvm.codegen.cuda_text import dtype_bytes
from roller_tvm.errors import WrongAnswer


class KernelFault(WrongAnswer):
    """A kernel did something that would fail on a GPU, or that makes its results depend on luck.

    Attributes
    ----------
    kind : str
        'out of bounds', 'uninitialised', 'in flight', 'race', 'divergent barrier', 'divergent warp', 'misaligned',
        'crash', 'timeout', 'trap', 'shared memory', 'launch' or 'unwritten'.
    kernel, buffer : str
        Names of the kernel and the buffer; '' if no buffer is concerned.
    line : int
        Line of the CUDA source; 0 if unknown.
    """

    def __init__(
        self, what: str, where: str = "", remedy: str = "", kind: str = "", kernel: str = "", buffer: str = "",
        block: tuple[int, ...] = (), thread: tuple[int, ...] = (), line: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(what, where, remedy)
        self.kind, self.kernel, self.buffer = kind, kernel, buffer
        self.block, self.thread, self.line = block, thread, line


class Dim(ctypes.Structure):
    _fields_ = [("x", ctypes.c_uint), ("y", ctypes.c_uint), ("z", ctypes.c_uint)]

    def tuple(self) -> tuple[int, int, int]:
        return self.x, self.y, self.z


class Error(ctypes.Structure):
    _fields_ = [
        ("kind", ctypes.c_int), ("space", ctypes.c_int), ("line", ctypes.c_int), ("other_line", ctypes.c_int),
        ("buffer", ctypes.c_int), ("write", ctypes.c_int), ("other_write", ctypes.c_int), ("size", ctypes.c_uint),
        ("offset", ctypes.c_longlong), ("extent", ctypes.c_ulonglong),
        ("block", Dim), ("thread", Dim), ("other_block", Dim), ("other_thread", Dim),
        ("waiting", ctypes.c_uint), ("arrived", ctypes.c_uint), ("gone", ctypes.c_uint), ("signal", ctypes.c_int),
        ("pc", ctypes.c_ulonglong), ("name", ctypes.c_char * 64), ("text", ctypes.c_char * 160),
    ]  # fmt: skip


# Kinds, as in runtime/emulator.h.
KINDS = {
    1: "out of bounds", 2: "uninitialised", 3: "in flight", 4: "race", 5: "race", 6: "divergent barrier",
    7: "divergent warp", 8: "misaligned", 9: "crash", 10: "timeout", 11: "trap", 12: "shared memory",
}  # fmt: skip
_SHARED = 2  # the space of an access
_NO_THREAD = 0xFFFFFFFF


def place(index: int, shape: Sequence[int]) -> str:
    """Return an element's index as text.

    Examples
    --------
    >>> place(7, (2, 5)), place(7, (9,))
    ('[1, 2]', '[7]')
    """
    place = []
    for extent in reversed(shape):
        place.append(index % extent)
        index //= extent
    return str(place[::-1])


def words(e: Error, buffer: str, shape: Sequence[int], dtype: str, grid: Sequence[int]) -> str:
    """Return a fault as text.

    Parameters
    ----------
    buffer : str
        Name of the array or buffer; '' for none.
    shape, dtype
        Shape and dtype of a global buffer; () and '' if unknown.
    """
    kind, text = KINDS[e.kind], e.text.decode()
    if kind in ("out of bounds", "uninitialised", "in flight", "race", "misaligned"):
        return _access(e, buffer, shape, dtype, grid)
    if kind == "divergent barrier":
        line = f" at line {e.line}" if e.line else ""
        does = f"waits at line {e.other_line}" if e.other_line else "has left"
        return (
            f"divergent barrier: {e.waiting} threads wait{line}, {e.arrived} elsewhere, {e.gone} have left the kernel; "
            f"thread {e.other_thread.tuple()} {does}"
        )
    if kind == "divergent warp":
        said = f"{text}: not every lane that its mask names arrives"
        if e.other_thread.tuple() == (0, 0, 0) and not e.other_line:
            return said
        at = f"at line {e.other_line}" if e.other_line else "elsewhere"
        return f"{said}; thread {e.other_thread.tuple()} is {at}"
    if kind == "crash":
        return f"{signal.Signals(e.signal).name} at address {e.offset & (2**64 - 1):#x}"
    if kind == "timeout":
        return "still running when its time was over (blocks run one after another: a barrier of the whole grid hangs)"
    if kind == "shared memory":
        return f"{buffer!r} makes {e.offset} bytes of shared memory, more than {e.extent}"
    return text


def _access(e: Error, buffer: str, shape: Sequence[int], dtype: str, grid: Sequence[int]) -> str:
    kind, text = KINDS[e.kind], e.text.decode()
    if kind == "out of bounds" and e.space == 0:
        return f"index {e.offset} beyond an array of the thread's own, or of the block"
    where = f"shared memory {buffer!r}" if e.space == _SHARED else repr(buffer) if buffer else "memory"
    at = f"byte {e.offset} of {e.extent}"
    size = dtype_bytes(dtype) if dtype else 0
    if size and e.offset % size == 0:
        index = e.offset // size
        inside = f" {place(index, shape)}" if 0 <= e.offset < e.extent else ""
        at = f"element {index}{inside} of {e.extent // size}"
    if kind == "out of bounds" and text:
        return f"an address in {where} at {at}: {text}"
    access = f"a {'write' if e.write else 'read'} of {e.size} bytes, {where} at {at}"
    did = "wrote" if e.other_write else "read"
    if kind == "out of bounds":
        return f"{access}: out of bounds"
    if kind == "uninitialised":
        # Threads run one after another up to a barrier: what a later one is to write is not there yet.
        yet = ", or a barrier is missing after the write" if e.space == _SHARED else ""
        return f"{access}: nobody wrote it{yet}"
    if kind == "in flight":
        return f"{access}: a cp.async brings it that nobody has waited for"
    if kind == "misaligned":
        return f"{access}: not aligned to {e.size} bytes"
    if e.kind == 5:
        number = e.other_block.x
        block = (number % grid[0], number // grid[0] % grid[1], number // grid[0] // grid[1])
        return f"{access}: block {block} {did} it in the same launch"
    other = f"thread {e.other_thread.tuple()}" if e.other_thread.x != _NO_THREAD else "another thread"
    return f"{access}: {other} {did} it, with no barrier in between"
