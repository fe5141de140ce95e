"""What can go wrong in emulation: a source that is not understood, a kernel that misbehaves."""

from __future__ import annotations

from roller_tvm.errors import BadInput, WrongAnswer


class NotEmulated(BadInput):
    """The source uses something that the emulator does not know: an instruction of inline PTX, a type."""


class KernelFault(WrongAnswer):
    """A kernel did what a GPU would not survive, or what makes its answer a matter of luck.

    Attributes
    ----------
    kind : str
        'out of bounds', 'uninitialised', 'in flight', 'race', 'divergent barrier', 'divergent warp', 'misaligned',
        'crash', 'timeout', 'trap', 'shared memory', 'launch' or 'unwritten'.
    kernel, buffer : str
        Where; the buffer is empty where none is concerned.
    block, thread : tuple of int
    line : int
        Of the CUDA source; 0 where it is not known.
    """

    def __init__(
        self, what: str, where: str = "", remedy: str = "", kind: str = "", kernel: str = "", buffer: str = "",
        block: tuple[int, ...] = (), thread: tuple[int, ...] = (), line: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(what, where, remedy)
        self.kind, self.kernel, self.buffer = kind, kernel, buffer
        self.block, self.thread, self.line = block, thread, line
