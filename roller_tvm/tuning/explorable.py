"""A model with variants as a line has linked it: each option is checked before it may run, the winners are recorded."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..device import DeviceSpec
from ..errors import MeasureError
from ..explore.dispatch import Site
from ..explore.explorer import Explorer
from ..explore.running import PLAN
from ..rammer.rkernels import of_units
from .linked import LinkedKernel, LinkedTask, check_all
from .results import TunedTask
from .session import Outcome

if TYPE_CHECKING:
    from .line import Line
    from .supervise import Pool

#: Label of a start that is not one of the candidates: a record's, the matrix unit's kernel, or TVM's own schedule.
RECORD, MATRIX, TVM = "record", "matrix unit", "tvm"
#: How much longer than the best plan one for fewer cores may be predicted to take, to be tried.
FEWER = 1.5
#: Runs that tell which operators take how much of the time.
PROFILED_RUNS = 3


def wanted_plans(share: float, top: int, least: float) -> int:
    """Return how many plans of an operator are worth a build: its own, and another for each `least` of a run's time.

    Examples
    --------
    >>> [wanted_plans(share, 5, 0.01) for share in (0.009, 0.01, 0.025, 0.3)]
    [1, 2, 3, 5]
    """
    return min(top, 1 + int(share / least)) if least else top


@dataclass
class Class:
    """An equivalence class: a task with the plans that may be tried.

    Parameters
    ----------
    plans : dict
        Label -> (candidate, schedule), the start first; None for a start that the build makes by itself. What has no
        candidate is no record: its label is kept as a choice.
    fewer : set of str
        Labels of plans for fewer cores than there are.
    """

    task: Any
    found: Any
    plans: dict[str, tuple[Any, Any] | None] = field(default_factory=dict)
    fewer: set[str] = field(default_factory=set)

    def add(self, candidate: Any, schedule: Any) -> str:
        """Add a plan under a label of its own, and return it; forms of the same plan differ by a mark."""
        label = candidate.ranked.plan.digest()[:12]
        while label in self.plans:
            label += "'"
        self.plans[label] = candidate, schedule
        return label

    def add_fewer(self, plans: Iterable[tuple[Any, Any]]) -> None:
        """Add plans (candidate, schedule) for fewer cores."""
        self.fewer.update(self.add(*plan) for plan in plans)


def for_fewer_cores(line: Line, task: Any, device: DeviceSpec, best: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the best plan (candidate, schedule) of a CPU's task for each power of two of cores below all of them.

    Parameters
    ----------
    best : Candidate
        The best plan for all cores: what is predicted to take far longer is left out.
    """
    known = {best.steps}
    for power in reversed(range((device.units - 1).bit_length() if device.kind == "cpu" else 0)):
        found = line.candidates(task, of_units(device, 1 << power), 1)
        for candidate, schedule in found.schedules():
            if candidate.steps not in known and candidate.ranked.seconds <= FEWER * best.ranked.seconds:
                known.add(candidate.steps)
                yield candidate, schedule


@dataclass(frozen=True)
class Arguments:
    """The arguments of a kernel that are not as in the task that it computes.

    Parameters
    ----------
    constants : dict of int to array
    places : dict of int to (shape, start)
        Parameters that are larger tensors, and where in them the task's own tensor begins.
    order : tuple of int
        The task's tensors in the order of the parameters; () if that is theirs.
    """

    constants: Mapping[int, np.ndarray] = field(default_factory=dict)
    places: Mapping[int, tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=dict)
    order: tuple[int, ...] = ()


@dataclass
class Linked:
    """A library with variants.

    Parameters
    ----------
    model : object
        Runs by it, as the line has it.
    sites : list of Site
    failed : dict of (str, str) to str
        Operator and label -> why it did not build; no site has it.
    arguments : list of dict
        Of each site, by label.
    weights : list of dict
        Of each site, the values of the task's constants by position.
    table : Table or None
        None as long as the library is not loaded.
    """

    model: Any
    library: Path
    sites: list[Site]
    table: Any
    failed: dict[tuple[str, str], str]
    arguments: list[dict[str, Arguments]] = field(default_factory=list)
    weights: list[Mapping[int, np.ndarray]] = field(default_factory=list)


@dataclass
class Explorable:
    """A built model with checked variants; see ``models.line.ModelLine.explorable``.

    Parameters
    ----------
    loaded : LoadedModel
    classes : dict
        Operator -> key of its equivalence class.
    known : dict
        Key -> class.
    failed : dict of (key, label) to reason
    captured : function, optional
        Returns a function of the model's arguments: the model with the plans in the table, captured in CUDA graphs.
    choose : function of (place, mapping of key to label), optional
        Keeps what is no record beside the records.
    """

    loaded: Any
    linked: Linked
    classes: Mapping[str, str]
    known: Mapping[str, Class]
    failed: Mapping[tuple[str, str], str]
    line: Line
    target: Any
    captured: Callable[..., Any] | None = None
    choose: Callable[[Any, Mapping[str, str]], None] | None = None

    @property
    def names(self) -> dict[str, str]:
        """Key of a class -> name of its task."""
        return {key: one.task.name for key, one in self.known.items()}

    def write(self, explorer: Explorer, place: Any, seconds: float) -> tuple[int, list[str]]:
        """Record the winners of epochs that are decided; return their number, those recorded before too, and remarks.

        A record is chosen by its time. If the model started from a record that is beaten, the new one has the time of
        the old, as it was measured, times the ratio seen here.
        """
        notes: list[str] = []
        written, choices = 0, dict[str, str]()
        with contextlib.closing(self.line.records(place, self.target)) as records:
            for row in explorer.rows():
                known = self.known.get(row.name)
                if known is None or not row.done or row.options < 2:
                    continue
                label = dict(row.best)[PLAN]
                chosen = known.plans[label]
                taken = explorer.index.typical(row.name, row.best)
                if chosen is None or math.isnan(taken):  # the start, as the build makes it
                    continue
                candidate, schedule = chosen
                if candidate is None:
                    choices[row.name] = label
                    continue
                before = records.best_seconds(known.task)
                written += 1
                if math.isclose(before, taken):  # an earlier call has recorded it
                    continue
                if RECORD in known.plans and row.start_s and not math.isnan(before):
                    taken = min(taken, before * row.best_s / row.start_s)
                tuned = TunedTask(
                    known.task, "measured", known.found, _outcomes(explorer, row.name, known), candidate.ranked, taken,
                    candidate.ranked.estimate.seconds, checked=True,
                )  # fmt: skip
                notes += [n for n in records.write(tuned, schedule, len(known.plans), seconds) if n not in notes]
            if choices and self.choose is not None:
                self.choose(place, choices)
                written += len(choices)
        return written, notes


def _outcomes(explorer: Explorer, name: str, known: Class) -> list[Outcome]:
    found = []
    for label in known.plans:
        taken = explorer.index.typical(name, ((PLAN, label),))
        why = explorer.dropped.get((name, ((PLAN, label),)), "")
        if taken == taken:
            found.append(Outcome("ok", taken, (taken,), checked=True))
        elif why:
            found.append(Outcome("wrong answer", text=why))
    return found


def checked(
    pool: Pool, line: Line, target: Any, linked: Linked, classes: Mapping[str, str], known: Mapping[str, Class]
) -> dict[tuple[str, str], str]:
    """Return why classes' options must not run: they did not build, or their results are not right.

    Raises
    ------
    MeasureError
        No option of a class is right.
    """
    checks = list(to_check(line, target, linked, classes, known))
    found = check_all(pool, str(linked.library), [check.task for check in checks])
    return refused(checks, found, linked, classes, known)


@dataclass(frozen=True)
class Check:
    """A site whose options are to be checked, and the class that it stands for."""

    key: str
    options: tuple[str, ...]
    task: LinkedTask


def to_check(
    line: Line, target: Any, linked: Linked, classes: Mapping[str, str], known: Mapping[str, Class]
) -> Iterator[Check]:
    """Yield what is to be checked of a library."""
    for at in _to_check(linked):
        site = linked.sites[at]
        key = classes[site.operator]
        work = line.work(known[key].task, target)
        values = {n: _saved(linked.library, v, f"{at}_{n}") for n, v in linked.weights[at].items()}
        kernels = tuple(_kernel(linked, at, label, v.kernel) for label, v in
                        zip(site.options, site.variants, strict=True))  # fmt: skip
        yield Check(key, site.options, LinkedTask(work.text, str(target), work.weights, values, kernels))


def refused(
    checks: Sequence[Check], found: Sequence[Sequence[str]], linked: Linked, classes: Mapping[str, str],
    known: Mapping[str, Class],
) -> dict[tuple[str, str], str]:  # fmt: skip
    """Return `checked` of what the checks have found."""
    failed = {(classes[name], label): why for (name, label), why in linked.failed.items()}
    for check, own in zip(checks, found, strict=True):
        failed.update({(check.key, label): why for label, why in zip(check.options, own, strict=True) if why})
        if all(own):
            what = f"no plan computes what it should, the one in use neither: {own[0]}"
            raise MeasureError(what, known[check.key].task.name, "do not use the model; report it, please")
    return failed


def _to_check(linked: Linked) -> Sequence[int]:
    """Return a site of each operator that has options, and one that works on parts of other tensors if any does."""
    first: dict[tuple[str, bool], int] = {}
    for at, site in enumerate(linked.sites):
        if len(site.options) > 1:
            placed = any(a.places for a in linked.arguments[at].values())
            first.setdefault((site.operator, placed), at)
    return list(first.values())


def _kernel(linked: Linked, at: int, label: str, name: str) -> LinkedKernel:
    own = linked.arguments[at][label]
    constants = {n: _saved(linked.library, v, f"{at}_{name}_{n}") for n, v in own.constants.items()}
    return LinkedKernel(name, constants, own.places, own.order)


def _saved(library: Path, values: np.ndarray, name: str) -> str:
    path = library.with_name(f"{name}.npy")
    np.save(path, values)
    return str(path)
