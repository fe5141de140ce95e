"""A model of the Relay line from import to execution: what `roller_tvm.compile` and `load` do here."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from roller_tvm.device import DeviceSpec, cpu_device, default_cpu_target
from roller_tvm.errors import BadInput
from roller_tvm.models import Shapes
from roller_tvm.models.arguments import Signature
from roller_tvm.relay.building import build
from roller_tvm.relay.importers import import_model
from roller_tvm.relay.package import LoadedModel, save_model
from roller_tvm.relay.records import read_kept, read_records
from roller_tvm.relay.tasks import check_device, make_target
from roller_tvm.relay.tuning import find_device, tune
from roller_tvm.tvm_env import import_relay_tvm, use_threads

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
        import_relay_tvm("compiling a model")
        self.target = make_target(default_cpu_target(cpu_device().units) if target is None else target)
        self.device = find_device(self.target if device is None else device, device is None)
        check_device(self.device, self.target)
        if records is not None and Path(records).is_file() and not read_records(records) and not read_kept(records):
            raise BadInput("holds no records", os.fspath(records), "tune first, or leave the records out")
        self.threads = self.device.units if self.device.kind == "cpu" else None
        self.schedules, self.records, self.fuse = schedules, records, fuse_rtasks
        self._tell = progress or (lambda step: None)
        self._asked = asked_threads
        use_threads(asked_threads, self.threads)  # constants are folded by running kernels
        self._tell("import")
        self.name, imported = import_model(model, shapes, layout, params, example_inputs)
        self.mod, self.params, self.inputs, self.notes = imported.mod, imported.params, imported.inputs, imported.notes
        self._library: Any = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    inputs: Signature
    notes: tuple[str, ...]

    def library(self) -> Any:
        """Return what `building.build` makes of the model, once."""
        if self._library is None:
            self._tell("build")
            self._library = build(
                self.mod, self.params, self.target, self.records, self.fuse, schedules=self.schedules,
                device=self.device, threads=self._asked, progress=self._tell,
            )  # fmt: skip
        return self._library

    def load(self) -> LoadedModel:
        """Return the model, ready to run."""
        return LoadedModel.of_library(self.library(), where=self.name)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the model to a library or a package."""
        return save_model(self.library(), path)

    def tune(self, trials: int, records: Any, progress: Any, seconds: float | None) -> Any:
        """Tune into a file of records, and build with it from now on."""
        place = records or self.records
        if place is None:
            self._folder = self._folder or tempfile.TemporaryDirectory(prefix="roller-tvm-")
            place = Path(self._folder.name, "records.json")
        result = tune(
            self.mod, self.params, self.target, place, trials, self.device, progress=progress, fuse_rtasks=self.fuse,
            seconds=seconds,
        )  # fmt: skip
        self.records, self.schedules, self._library = place, "roller", None
        return result


def load(path: Path, device: str) -> LoadedModel:
    """Open a model's file."""
    return LoadedModel(path, device)
