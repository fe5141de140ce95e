"""Switch: a way to generate code that is on or off within contexts, for each thread on its own."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from typing import Self  # Python 3.11


class Switch:
    """A context in which kernels are built in another way than TVM's; it may be entered again.

    Parameters
    ----------
    on : bool
        False: as TVM does it, inside of a context that does otherwise.
    """

    #: Of each way its own.
    state: ClassVar[ContextVar[bool]]

    def __init__(self, on: bool = True) -> None:
        self.on = on
        self._before: list[Any] = []

    @classmethod
    def active(cls) -> bool:
        """Whether kernels that are built here and now are built so."""
        return cls.state.get()

    @staticmethod
    def install() -> None:
        """Make it possible; asked before each context that is on."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        if self.on:
            self.install()
        self._before.append(self.state.set(self.on))
        return self

    def __exit__(self, *_: object) -> None:
        self.state.reset(self._before.pop())
