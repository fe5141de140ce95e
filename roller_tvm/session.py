"""Requests of the short API, and the part of a session that both TVM lines share. Imports no TVM."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from roller_tvm.device import DeviceSpec
from roller_tvm.models.arguments import Signature
from roller_tvm.tvm_env import use_threads

#: Values of `schedules`: Roller's first plan for operators without a record, or TVM's own schedule.
SCHEDULES = ("roller", "tvm")


@dataclass(frozen=True)
class Request:
    """The arguments of `roller_tvm.compile` beside the model; see there."""

    target: Any = None
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    example_inputs: Sequence[Any] | None = None
    params: Any = None
    records: str | os.PathLike[str] | None = None
    schedules: str = "roller"
    layout: str | None = None
    device: DeviceSpec | str | None = None
    threads: int | None = None
    fuse_rtasks: bool = False
    progress: Callable[[str], None] | None = None


class Session:
    """A model from import to execution, on one TVM line.

    Parameters
    ----------
    request : Request
    target : Target
        The target in full.
    device : DeviceSpec
        The device to plan for.

    Attributes
    ----------
    name : str
        The model's name in messages.
    inputs : dict
        Name -> (shape, dtype).
    notes : tuple of str
        Checks left out at import, each with the reason.
    threads : int or None
        Threads that the device scales to; None if it is no CPU.
    """

    name: str
    inputs: Signature
    notes: tuple[str, ...]
    #: Name of a temporary place for records: a file or a folder.
    PLACE: str

    def __init__(self, request: Request, target: Any, device: DeviceSpec) -> None:
        self.request, self.target, self.device = request, target, device
        self.records, self.schedules = request.records, request.schedules
        self.threads = device.units if device.kind == "cpu" else None
        self._built: Any = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        use_threads(request.threads, self.threads)  # constants are folded by running kernels
        self.tell("import")

    def tell(self, step: str) -> None:
        """Tell the caller the step at work."""
        if self.request.progress is not None:
            self.request.progress(step)

    def built(self) -> Any:
        """Return the built model, once."""
        if self._built is None:
            self._built = self._build()
        return self._built

    def tune(self, trials: int, records: Any, progress: Any, seconds: float | None) -> Any:
        """Tune into records, and build with them from now on."""
        place = records or self.records
        if place is None:
            self._folder = self._folder or tempfile.TemporaryDirectory(prefix="roller-tvm-")
            place = Path(self._folder.name, self.PLACE)
        result = self._tune(trials, place, progress, seconds)
        self.records, self.schedules, self._built = place, "roller", None
        return result

    def load(self) -> Any:
        """Return the model, ready to run: a `LoadedModel` of the line."""
        raise NotImplementedError

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the model to a file."""
        raise NotImplementedError

    def _build(self) -> Any:
        raise NotImplementedError

    def _tune(self, trials: int, place: Any, progress: Any, seconds: float | None) -> Any:
        raise NotImplementedError
