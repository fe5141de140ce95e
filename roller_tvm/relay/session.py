"""A model of the Relay line from import to execution: the work of `roller_tvm.compile` and `load`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from roller_tvm import session
from roller_tvm.device import cpu_device, default_cpu_target
from roller_tvm.errors import BadInput
from roller_tvm.relay.building import build
from roller_tvm.relay.importers import import_model
from roller_tvm.relay.package import LoadedModel, save_model
from roller_tvm.relay.records import read_kept, read_records
from roller_tvm.relay.tasks import check_device, find_device, make_target
from roller_tvm.relay.tuning import tune
from roller_tvm.tvm_env import import_relay_tvm

__all__ = ["Session", "load"]


class Session(session.Session):
    """A Relay module built with `building.build`; `session.Session` has the parameters."""

    PLACE = "records.json"

    def __init__(self, model: Any, request: session.Request) -> None:
        import_relay_tvm("compiling a model")
        asked = request.target
        target = make_target(default_cpu_target(cpu_device().units) if asked is None else asked)
        device = find_device(target if request.device is None else request.device, request.device is None)
        check_device(device, target)
        records = request.records
        if records is not None and Path(records).is_file() and not read_records(records) and not read_kept(records):
            raise BadInput("holds no records", os.fspath(records), "tune first, or leave the records out")
        super().__init__(request, target, device)
        self.name, imported = import_model(
            model, request.shapes, request.layout, request.params, request.example_inputs
        )
        self.inputs, self.notes = imported.inputs, imported.notes
        self._mod, self._params = imported.mod, imported.params

    def _build(self) -> Any:
        self.tell("build")
        return build(
            self._mod, self._params, self.target, self.records, self.request.fuse_rtasks, schedules=self.schedules,
            device=self.device, threads=self.request.threads, progress=self.tell,
        )  # fmt: skip

    def load(self) -> LoadedModel:
        """Return the model, ready to run."""
        return LoadedModel.of_library(self.built(), where=self.name)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the model to a library or a package."""
        return save_model(self.built(), path)

    def _tune(self, trials: int, place: Any, progress: Any, seconds: float | None) -> Any:
        return tune(
            self._mod, self._params, self.target, place, trials, self.device, progress=progress,
            fuse_rtasks=self.request.fuse_rtasks, seconds=seconds,
        )  # fmt: skip


def load(path: Path, device: str) -> LoadedModel:
    """Open a model's file."""
    return LoadedModel(path, device)
