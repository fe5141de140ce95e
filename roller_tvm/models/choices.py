"""Choices of an exploration that are no records, kept in a file beside these: connected calls, forms of a whole model.

A form is a way to build or to run a model, one of its choices turned. `TURNED` names them all, for both lines.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .. import foreign
from ..errors import RecordError, cannot_write
from ..folders import beside
from ..version import __version__

#: How activations may be arranged; a line knows some of these.
ARRANGEMENTS = ("NCHW", "NHWC", "blocked")


@dataclass(frozen=True)
class Turned:
    """A field of `models.line.Job` that a form turns.

    Parameters
    ----------
    holds : function
        Whether a value of JSON may be its value.
    prepares : bool
        Whether it is taken before a job is prepared.
    remakes : bool
        Whether there are other operators to explore then.
    builds : bool
        Whether another model is built then.
    """

    holds: Callable[[Any], bool]
    prepares: bool = False
    remakes: bool = False
    builds: bool = True


TURNED: Mapping[str, Turned] = {
    "winograd": Turned(lambda value: isinstance(value, bool), prepares=True, remakes=True),
    "arranged": Turned(lambda value: value in ARRANGEMENTS, prepares=True, remakes=True),
    "connected": Turned(lambda value: value is True, remakes=True),
    "packed": Turned(lambda value: value is False),
    "fuse": Turned(lambda value: value is True),
    "cuda_graph": Turned(lambda value: value is True),
    "threads": Turned(lambda value: type(value) is int and value >= 1, builds=False),
}


def prepares(values: Mapping[str, Any]) -> bool:
    """Return whether values of a form are taken before a job is prepared.

    Examples
    --------
    >>> prepares({"threads": 1}), prepares({"winograd": False, "threads": 1})
    (False, True)
    """
    return any(TURNED[name].prepares for name in values)


def remakes(values: Mapping[str, Any]) -> bool:
    """Return whether a model has other operators with values of a form.

    Examples
    --------
    >>> remakes({"threads": 1}), remakes({"connected": True})
    (False, True)
    """
    return any(TURNED[name].remakes for name in values)


def builds(values: Mapping[str, Any]) -> bool:
    """Return whether another model is built with values of a form.

    Examples
    --------
    >>> builds({"threads": 1}), builds({"fuse": True})
    (False, True)
    """
    return any(TURNED[name].builds for name in values)


@dataclass(frozen=True)
class Form:
    """A way to build or to run a whole model, which an exploration tries beside the one in use.

    Parameters
    ----------
    name : str
        In messages.
    values : dict
        Fields of `Job` (`TURNED`), as JSON values: what is kept if it is taken. `fuse` is true for ``FuseRTasks``.
    why : str
        Why it is not tried.
    cheap : bool
        Whether nothing is built for it: it is tried at any time, while requests are served too.
    """

    name: str
    values: Mapping[str, Any]
    why: str = ""
    cheap: bool = False


@dataclass(frozen=True)
class Choices:
    """The choices beside records.

    Parameters
    ----------
    connected : dict of str to str
        Key of a chain of functions -> how it is computed (Relax line: `connected.ConnectTiles`).
    forms : dict
        The values of the forms that were taken, together.
    tried : tuple of str
        Names of the forms that were tried.

    Examples
    --------
    >>> Choices.read(Path("no such file"), "llvm", lambda kept, wanted: kept != wanted)
    Choices(connected={}, forms={}, tried=())
    """

    connected: Mapping[str, str] = field(default_factory=dict)
    forms: Mapping[str, Any] = field(default_factory=dict)
    tried: tuple[str, ...] = ()

    @classmethod
    def read(cls, path: Path, target: str, other: Callable[[str, str], bool]) -> Choices:
        """Return the choices in a file, none if there is no such file.

        Parameters
        ----------
        other : function of two targets
            Whether they contradict each other.

        Raises
        ------
        RecordError
            The file is broken, or for another target.
        """
        if not path.exists():
            return cls()
        remedy = "delete it; exploring makes it anew"
        data = foreign.parsed(foreign.read_text(path), str(path), "choices of an exploration", remedy)
        if not isinstance(data, dict) or not isinstance(data.get("target"), str):
            raise RecordError("holds no choices of an exploration: it names no target", str(path), remedy)
        if other(data["target"], target):
            what = f"its choices are for the target {data['target']}, not for {target}"
            raise RecordError(what, str(path), "give that target, or the records of this one")
        connected = data.get("connected", {})
        if not isinstance(connected, dict) or not all(isinstance(label, str) for label in connected.values()):
            raise RecordError("'connected' must map chains to ways", str(path), remedy)
        forms, tried = data.get("forms", {}), data.get("tried", [])
        if not isinstance(forms, dict) or not isinstance(tried, list):
            raise RecordError("'forms' must be an object, and 'tried' a list", str(path), remedy)
        for name, value in forms.items():
            if name not in TURNED or not TURNED[name].holds(value):
                raise RecordError(f"there is no form '{name}' of {value!r}", str(path), remedy)
        return cls(connected, forms, tuple(map(str, tried)))

    def words(self) -> list[str]:
        """Return the forms for a report."""
        return [f"{name}: {value}" for name, value in self.forms.items()]

    def write(self, path: Path, target: str) -> None:
        """Write the file, whole or not at all.

        Raises
        ------
        DiskFull, BadInput
        """
        told = {"target": target, "version": __version__, **asdict(self)}
        try:
            with beside(path) as made:
                made.write_text(json.dumps(told, indent=1, sort_keys=True), encoding="utf-8")
        except OSError as error:
            full = "no space left for the choices of the exploration; the file of earlier is intact"
            raise cannot_write(error, str(path), full, "free some space and explore again: it goes on") from error
