"""The update tree: the choices of a model, which of them influence each other, and which are the same.

It has Astra's three modes, a level each. Epochs do not influence each other: they are explored in *parallel*, all in
the same run. An epoch's phases are explored in *prefix* mode, one after the other, the best of each kept for the next.
The choices of a phase influence each other: their combinations are tried *exhaustively*.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod

from ..errors import BadInput, must_be

#: The options taken, by the name of their choice.
Configuration = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Choice:
    """Something that can be done in several ways (Astra: an adaptive variable).

    Parameters
    ----------
    name : str
    options : tuple of str
        The first is where the exploration starts.
    """

    name: str
    options: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.options or len(set(self.options)) < len(self.options):
            raise BadInput(must_be("options", "at least one, each once", self.options), f"choice '{self.name}'")


@dataclass(frozen=True)
class Phase:
    """Choices that influence each other.

    Examples
    --------
    >>> phase = Phase((Choice("kernel", ("a", "b")), Choice("threads", ("2", "1"))))
    >>> [dict(c)["kernel"] + dict(c)["threads"] for c in phase.configurations()]
    ['a2', 'a1', 'b2', 'b1']
    """

    choices: tuple[Choice, ...]

    def configurations(self) -> Iterator[Configuration]:
        """Yield every combination of options, that of the first options first."""
        names = [choice.name for choice in self.choices]
        for options in product(*(choice.options for choice in self.choices)):
            yield tuple(zip(names, options, strict=True))

    def __len__(self) -> int:
        return prod(len(choice.options) for choice in self.choices)


@dataclass(frozen=True)
class Epoch:
    """One or several operators whose choices influence each other and nothing else, with one time to judge them by.

    Parameters
    ----------
    name : str
    phases : tuple of Phase
    members : tuple of str
        Its equivalence class: places in a run where the same is to be chosen. Each is tried on its own, in the same
        run too, and what one learns holds for all.

    Examples
    --------
    >>> epoch = Epoch("conv2d", (Phase((Choice("kernel", ("a", "b")),)),), ("block1", "block2"))
    >>> epoch.start
    (('kernel', 'a'),)
    """

    name: str
    phases: tuple[Phase, ...]
    members: tuple[str, ...]

    def __post_init__(self) -> None:
        names = [choice.name for phase in self.phases for choice in phase.choices]
        if not self.members or len(set(names)) < len(names):
            raise BadInput("an epoch has members, and choices of different names", f"epoch '{self.name}'")

    @property
    def start(self) -> Configuration:
        """The configuration that exploration starts from."""
        return tuple((c.name, c.options[0]) for phase in self.phases for c in phase.choices)

    def candidates(self, phase: int, kept: Configuration) -> list[Configuration]:
        """Return the configurations of a phase; what other phases choose is as in `kept`."""
        return [tuple({**dict(kept), **dict(chosen)}.items()) for chosen in self.phases[phase].configurations()]


@dataclass(frozen=True)
class UpdateTree:
    """All epochs of a model.

    Examples
    --------
    >>> tree = UpdateTree((Epoch("dense", (Phase((Choice("kernel", ("a", "b", "c")),)),), ("head",)),))
    >>> len(tree)
    3
    """

    epochs: tuple[Epoch, ...]

    def __post_init__(self) -> None:
        names = [epoch.name for epoch in self.epochs]
        if len(set(names)) < len(names):
            raise BadInput("two epochs have the same name", "update tree")

    def __len__(self) -> int:
        """Return the number of configurations that may be tried."""
        return sum(len(phase) for epoch in self.epochs for phase in epoch.phases)
