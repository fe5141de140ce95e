"""A model's exploration from beginning to end, over the protocol of a TVM line: the work of ``Model.explore``."""

from __future__ import annotations

import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import UsageError
from .explore.result import ExploreResult
from .explore.running import PLAN, Exploration
from .folders import work_folder
from .forms import Forms
from .models.arguments import Signature
from .models.package import REPORT
from .tuning.numerics import make_inputs
from .tuning.remote import Tracker
from .tuning.remote_run import Server
from .tvm_env.compiler import is_foreign, linking_for

if TYPE_CHECKING:
    from .session import Session

#: Plans of each operator in the library.
TOP = 5
#: Least share of a run for which an operator's further plans are built: it could not gain what is worth having.
LEAST = 0.01
#: Most bytes of weights in further layouts.
MEMORY = 1 << 30

Progress = Callable[[str], None]


class ModelExploration:
    """The exploration of a session's model.

    Parameters
    ----------
    session : Session
    place : path
        For the records and the state.
    inputs : mapping of name to array, optional
        By default seeded values.
    careful : bool
        See ``explore.running.Exploration``.
    tracker : Tracker, optional
        One of its servers runs the model, instead of this process.

    Raises
    ------
    MeasureError
        The tracker does not answer, or has no server.
    UsageError
        Servers explore on CPUs, and answer no requests.
    """

    def __init__(
        self, session: Session, place: Path, inputs: Mapping[str, Any] | None, top: int = TOP, careful: bool = False,
        memory_bytes: int = MEMORY, tracker: Tracker | None = None,
    ) -> None:  # fmt: skip
        if tracker is not None and careful:
            raise UsageError("requests are answered here, not by servers", "tracker", "leave online or the tracker out")
        self.session, self.place, self.seconds = session, place, dict[str, float]()
        self._folder: tempfile.TemporaryDirectory[str] | None = work_folder()
        self._clock, self._step = time.perf_counter(), "build"
        self._end: float | None = None
        session.adopt(place)
        self.inputs = inputs if inputs is not None else seeded(session.inputs)
        folder, built = Path(self._folder.name), session.built()
        self.server = Server(tracker) if tracker is not None else None
        times: Mapping[str, float]
        if self.server is not None:
            times = self._predicted(built)
        else:
            self.start = session.load()
            self._next("profile")
            times = session.line.operator_seconds(built, self.start, self.inputs, folder)
        whole = sum(times.values()) or 1.0
        with linking_for(session.triple):
            self._made = session.line.explorable(
                session.job, built, session.records, top, lambda name: times.get(name, 0.0) / whole, LEAST, folder,
                session.threads or 1, memory_bytes, self._next, self.server,
            )  # fmt: skip
        made, state = self._made, session.line.state_of(place)
        state.parent.mkdir(parents=True, exist_ok=True)
        self._next("explore")
        linked = made.linked
        self.running = Exploration(
            linked.sites, made.classes, linked.table, made.loaded.call, made.failed, state, careful,
            here=self.server is None,
        )  # fmt: skip
        session.server = self.server
        session.use_threads()
        self.running.warm_up(*self.arguments(self.inputs))
        self.notes: list[str] = []

    def _predicted(self, built: Any) -> Mapping[str, float]:
        """Return the predicted seconds of each operator, all its calls together."""
        found: Counter[str] = Counter()
        for plan in getattr(built, REPORT).plans:
            found[self.session.line.operator_of(plan.kernel)] += (plan.predicted_s or 0.0) * plan.calls
        return found

    def _next(self, step: str) -> None:
        """Add the time of the step under way, and begin another."""
        now = time.perf_counter()
        self.seconds[self._step] = self.seconds.get(self._step, 0.0) + now - self._clock
        self._clock, self._step = now, step

    @property
    def names(self) -> Mapping[str, str]:
        """Key of a class -> name of its first operator."""
        found: Mapping[str, str] = self._made.names
        return found

    @property
    def loaded(self) -> Any:
        """The model with variants."""
        return self._made.loaded

    def arguments(self, inputs: Mapping[str, Any]) -> list[Any]:
        """Return inputs as the model takes them."""
        found: list[Any] = self.loaded.arguments(inputs)
        return found

    def explore(
        self, budget_s: float | None, runs: int | None, progress: Callable[[ModelExploration], None] | None
    ) -> None:
        """Run on the inputs until all is known, or as long as is given."""
        told = None if progress is None else lambda _: progress(self)
        self._end = None if budget_s is None else time.monotonic() + budget_s
        self.running.explore(self.arguments(self.inputs), budget_s, runs, told)

    @property
    def captured(self) -> Callable[..., Any] | None:
        """Returns the model with variants captured in CUDA graphs."""
        found: Callable[..., Any] | None = self._made.captured
        return found

    def finish(self, online: bool = False) -> ExploreResult:
        """Record the winners, build the model with them and without variants, try its forms; return the result.

        Parameters
        ----------
        online : bool
            Requests are served meanwhile: only forms are tried that need no time.
        """
        self._next("record")
        began = time.monotonic()
        self._leave_undecided()
        written, notes = self._made.write(self.running.explorer, self.place, self.seconds.get("explore", 0.0))
        self.notes += notes
        if written:
            self.session.records, self.session.schedules = self.place, "roller"
            self.session.forget()
        if self._end is not None:  # the budget is of runs
            self._end += time.monotonic() - began
        self._next("forms")
        self.notes += Forms(self, self._end, online).run()
        self._next("link")
        if self.server is not None:
            self.session.server = None
            self.server.close()
        if not is_foreign(self.session.triple):
            self.start = self.session.load()
        self._next("done")
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None
        return self.result()

    def _leave_undecided(self) -> None:
        """Have no plan for fewer cores win because others had taken the cores."""
        explorer, known = self.running.explorer, self._made.known
        names = [row.name for row in explorer.rows() if row.name in known
                 and (label := dict(row.best)[PLAN]) in known[row.name].fewer
                 and label != next(iter(known[row.name].plans))]  # fmt: skip
        if names and (why := self.running.waiting.busy):
            self.running.undecided(names)
            told = f"{len(names)} operators keep their plans: whether fewer cores suffice is undecided, {why}"
            self.notes.append(f"{told}; explore again when it is quiet")

    def result(self) -> ExploreResult:
        """Return what is known now."""
        explorer, made = self.running.explorer, self._made
        failed = {f"{made.names.get(key, key)}, plan {label}": why for (key, label), why in made.failed.items()}
        return ExploreResult(
            tuple(explorer.rows()), made.names, tuple(explorer.history), tuple(self.running.wall_s), explorer.runs,
            explorer.done, {k: v for k, v in self.seconds.items() if k != "done"}, failed, tuple(self.notes),
            str(self.place),
        )  # fmt: skip


class Serving:
    """Requests that explore: each gets its answer by checked kernels; the end is a model without variants.

    Parameters
    ----------
    exploration : ModelExploration
    """

    def __init__(self, exploration: ModelExploration) -> None:
        self.exploration = exploration
        exploration.running.waiting.__enter__()
        self._thread: threading.Thread | None = None
        self._result: ExploreResult | None = None
        self.error: BaseException | None = None

    @property
    def done(self) -> bool:
        """True once the model runs without variants."""
        return self._result is not None

    def run(self, inputs: Mapping[str, Any], on_device: bool = False) -> list[Any]:
        """Answer a request."""
        whole = self.exploration
        if self.done:
            return list(whole.start.run(inputs, on_device))
        result = whole.running.run(*whole.arguments(inputs))
        if whole.running.done and self._thread is None:
            self._thread = threading.Thread(target=self._finish, daemon=True)
            self._thread.start()
        return list(whole.loaded.outputs(result, on_device))

    def _finish(self) -> None:
        try:
            self._result = self._finished()
        except BaseException as error:  # requests go on with the variants that have won
            self.error = error

    def _finished(self) -> ExploreResult:
        self.exploration.running.waiting.__exit__()
        return self.exploration.finish(online=True)

    def result(self, wait: bool = False) -> ExploreResult:
        """Return what is known; with `wait`, once the model without variants is there."""
        if wait and self._thread is not None:
            self._thread.join()
        if self.error is not None:
            raise self.error
        return self._result or self.exploration.result()

    def stop(self) -> ExploreResult:
        """End the exploration as it stands, with a model without variants."""
        self.exploration.running.settle()
        self.exploration.running.keep()
        if self._thread is None:
            self._result = self._finished()
        return self.result(wait=True)


def seeded(inputs: Signature) -> dict[str, np.ndarray]:
    """Return seeded values for a model's inputs.

    Raises
    ------
    UsageError
        An extent is open.

    Examples
    --------
    >>> seeded({"x": ((1, 2), "float32")})["x"].shape
    (1, 2)
    """
    for name, (shape, _) in inputs.items():
        if not all(isinstance(extent, int) for extent in shape):
            raise UsageError(f"the shape of '{name}' is open: {list(shape)}", "explore", "give inputs to explore with")
    tensors: Sequence[Any] = [SimpleNamespace(shape=shape, dtype=dtype) for shape, dtype in inputs.values()]
    return dict(zip(inputs, make_inputs(tensors), strict=True))
