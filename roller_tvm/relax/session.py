"""A model of the Relax line from import to execution: the work of `roller_tvm.compile` and `load`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from .. import session
from .devices import device_of
from .importers import import_model
from .package import LoadedModel, save_model, with_signature
from .pipeline import build, prepare
from .targets import make_target
from .tuning import tune

__all__ = ["Session", "load"]


class Session(session.Session):
    """A Relax module built with `pipeline.build`; `session.Session` has the parameters."""

    PLACE = "records"

    def __init__(self, model: Any, request: session.Request) -> None:
        target = make_target(request.target)
        super().__init__(request, target, device_of(request.device, target))
        self.name, imported = import_model(
            model, request.shapes, request.layout, request.params, request.example_inputs
        )
        self.inputs, self.notes = imported.inputs, imported.notes
        self._mod = with_signature(imported.mod, imported.inputs)
        self._prepared: Any = None

    def prepared(self) -> Any:
        """Return the module legalized, laid out and fused, once."""
        if self._prepared is None:
            self.tell("layouts")
            self._prepared = prepare(self._mod, self.target, None, self.device)
        return self._prepared

    def _build(self) -> Any:
        mod = self.prepared() if self.schedules == "roller" else self._mod
        self.tell("build")
        return build(
            mod, self.target, None, self.records, self.device, fuse_rtasks=self.request.fuse_rtasks,
            schedules=self.schedules, threads=self.request.threads, progress=self.tell,
        )  # fmt: skip

    def load(self) -> LoadedModel:
        """Return the model, ready to run."""
        return LoadedModel.of_executable(self.built(), where=self.name)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the model to a library."""
        return save_model(self.built(), path)

    def _tune(self, trials: int, place: Any, progress: Any, seconds: float | None) -> Any:
        return tune(
            self.prepared(), None, self.target, place, max_trials_per_task=trials, device=self.device,
            progress=progress, fuse_rtasks=self.request.fuse_rtasks, seconds=seconds,
        )[1]  # fmt: skip


def load(path: Path, device: str) -> LoadedModel:
    """Open a model's file."""
    return LoadedModel(path, device)
