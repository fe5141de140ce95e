"""Errors of emulation: a source that is not understood, a kernel that misbehaves."""

from __future__ import annotations

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
    block, thread : tuple of int
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
