"""A model of the Relax line from import to execution: what `roller_tvm.compile` and `load` do here."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..device import DeviceSpec
from ..models import Shapes
from ..models.arguments import Signature
from ..tvm_env import use_threads
from .devices import device_of
from .importers import import_model
from .package import LoadedModel, save_model, with_signature
from .pipeline import build, prepare
from .targets import make_target
from .tuning import tune

__all__ = ["Session", "load"]


class Session:
    """A model imported for a target, built when it is asked for.

    Parameters
    ----------
    model, target, shapes, options
        See `roller_tvm.compile`.
    """

    def __init__(
        self, model: Any, target: Any, shapes: Shapes, *, example_inputs: Any, params: Any, records: Any,
        schedules: str, layout: str | None, device: DeviceSpec | str | None, fuse_rtasks: bool,
        progress: Callable[[str], None] | None, asked_threads: int | None,
    ) -> None:  # fmt: skip
        self.target = make_target(target)
        self.device = device_of(device, self.target)
        self.threads = self.device.units if self.device.kind == "cpu" else None
        self.schedules, self.records, self.fuse = schedules, records, fuse_rtasks
        self._tell = progress or (lambda step: None)
        self._asked = asked_threads
        use_threads(asked_threads, self.threads)  # constants are folded by running kernels
        self._tell("import")
        self.name, imported = import_model(model, shapes, layout, params, example_inputs)
        self.mod, self.inputs, self.notes = imported.mod, imported.inputs, imported.notes
        self._prepared: Any = None
        self._executable: Any = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    inputs: Signature
    notes: tuple[str, ...]

    def prepared(self) -> Any:
        """Return the model legalized, laid out and fused, once."""
        if self._prepared is None:
            self._tell("layouts")
            self._prepared = prepare(with_signature(self.mod, self.inputs), self.target, None, self.device)
        return self._prepared

    def executable(self) -> Any:
        """Return what `pipeline.build` makes of the model, once."""
        if self._executable is None:
            ours = self.schedules == "roller"
            mod = self.prepared() if ours else with_signature(self.mod, self.inputs)
            self._tell("build")
            self._executable = build(
                mod, self.target, None, self.records, self.device, fuse_rtasks=self.fuse, schedules=self.schedules,
                threads=self._asked, progress=self._tell,
            )  # fmt: skip
        return self._executable

    def load(self) -> LoadedModel:
        """Return the model, ready to run."""
        return LoadedModel.of_executable(self.executable(), where=self.name)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the model to a library."""
        return save_model(self.executable(), path)

    def tune(self, trials: int, records: Any, progress: Any, seconds: float | None) -> Any:
        """Tune into a folder of records, and build with it from now on."""
        place = records or self.records
        if place is None:
            self._folder = self._folder or tempfile.TemporaryDirectory(prefix="roller-tvm-")
            place = Path(self._folder.name, "records")
        _, result = tune(
            self.prepared(), None, self.target, place, max_trials_per_task=trials, device=self.device,
            progress=progress, fuse_rtasks=self.fuse, seconds=seconds,
        )  # fmt: skip
        self.records, self.schedules, self._executable = place, "roller", None
        return result


def load(path: Path, device: str) -> LoadedModel:
    """Open a model's file."""
    return LoadedModel(path, device)
