"""Choices of an exploration that are no records, in a file beside these: connected calls, forms of the whole model."""

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
from .layout import ARRANGEMENTS
from .record_files import RECORDS, WORKLOADS
from .targets import for_other_kernels

FILE = "roller_tvm_choices.json"
#: Values of forms -> whether a value of JSON may be one.
FORMS: dict[str, Callable[[Any], bool]] = {
    "winograd": lambda value: value is False,
    "arranged": lambda value: value in ARRANGEMENTS,
    "fuse": lambda value: value is True,
    "cuda_graph": lambda value: value is True,
    "threads": lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= 1,
}


@dataclass(frozen=True)
class Choices:
    """The choices beside records.

    Parameters
    ----------
    connected : dict of str to str
        Key of a chain of functions -> how it is computed (`connected.ConnectTiles`).
    forms : dict
        Name of a value of `FORMS` -> the value.
    tried : tuple of str
        Names of the forms that were tried.

    Examples
    --------
    >>> Choices.read(Path("no such folder"), target).connected
    {}
    """

    connected: Mapping[str, str] = field(default_factory=dict)
    forms: Mapping[str, Any] = field(default_factory=dict)
    tried: tuple[str, ...] = ()

    @classmethod
    def read(cls, folder: Path, target: Any) -> Choices:
        """Return the choices of a folder of records, none if it has no such file.

        Raises
        ------
        RecordError
            The file is broken, or for another target.
        """
        path = folder / FILE
        if not path.exists():
            return cls()
        remedy = "delete it; exploring makes it anew"
        data = foreign.parsed(foreign.read_text(path), str(path), "choices of an exploration", remedy)
        if not isinstance(data, dict) or not isinstance(data.get("target"), str):
            raise RecordError("holds no choices of an exploration: it names no target", str(path), remedy)
        if for_other_kernels(data["target"], str(target)):
            what = f"its choices are for the target {data['target']}, not for {target}"
            raise RecordError(what, str(path), "give that target, or the records of this one")
        connected = data.get("connected", {})
        if not isinstance(connected, dict) or not all(isinstance(label, str) for label in connected.values()):
            raise RecordError("'connected' must map chains to ways", str(path), remedy)
        forms, tried = data.get("forms", {}), data.get("tried", [])
        if not isinstance(forms, dict) or not isinstance(tried, list):
            raise RecordError("'forms' must be an object, and 'tried' a list", str(path), remedy)
        for name, value in forms.items():
            if name not in FORMS or not FORMS[name](value):
                raise RecordError(f"there is no form '{name}' of {value!r}", str(path), remedy)
        return cls(connected, forms, tuple(map(str, tried)))

    def words(self) -> list[str]:
        """Return the forms for a report."""
        return [f"{name}: {value}" for name, value in self.forms.items()]

    def write(self, folder: Path, target: Any) -> None:
        """Write the file, whole or not at all; the folder is one of records then, even without any.

        Raises
        ------
        DiskFull, BadInput
        """
        told = {"target": str(target), "version": __version__, **asdict(self)}
        try:
            for name in (WORKLOADS, RECORDS):
                (folder / name).touch()
            with beside(folder / FILE) as made:
                made.write_text(json.dumps(told, indent=1, sort_keys=True), encoding="utf-8")
        except OSError as error:
            full = "no space left for the choices of the exploration; the file of earlier is intact"
            raise cannot_write(error, str(folder), full, "free some space and explore again: it goes on") from error
