"""Switch: a rewrite of generated code that is on or off within contexts, separately in each thread."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from typing import Self  # Python 3.11


class Switch:
    """A context in which generated code is rewritten; it may be entered again.

    Parameters
    ----------
    on : bool
        False restores TVM's own code inside of another such context.
    """

    #: Whether it is on here; each subclass has its own.
    state: ClassVar[ContextVar[bool]]

    def __init__(self, on: bool = True) -> None:
        self.on = on
        self._before: list[Any] = []

    @classmethod
    def active(cls) -> bool:
        """Return whether the rewrite is on here and now."""
        return cls.state.get()

    @staticmethod
    def install() -> None:
        """Install the rewrite in TVM; called before each context that is on."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        if self.on:
            self.install()
        self._before.append(self.state.set(self.on))
        return self

    def __exit__(self, *_: object) -> None:
        self.state.reset(self._before.pop())
