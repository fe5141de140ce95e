"""Tune in Roller's space as AutoTVM does: propose by simulated annealing on a learned model, measure, learn, repeat.

Chen et al., "Learning to Optimize Tensor Programs" (NeurIPS'18), section 3. Parallel chains of simulated annealing find
candidates; the model's scores choose a batch of them, and some more are taken at random. After each batch the model is
trained anew on all measurements, to predict order ('rank') or time ('regression').
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np

from ..device import DeviceSpec
from ..errors import UsageError
from ..planner.construction import RankedPlan
from .plan_features import plan_features
from .space import Point, RTileSpace
from .xgb import PARAMETERS, ROUNDS

OBJECTIVES = {"rank": "rank:pairwise", "regression": "reg:squarederror"}

#: Function that returns the time of each plan in seconds, infinity if the plan does not work.
Measure = Callable[[Sequence[RankedPlan]], Sequence[float]]


@dataclass(frozen=True)
class Annealing:
    """Settings of simulated annealing, as AutoTVM's (``autotvm.tuner.sa_model_optimizer``) but with fewer steps.

    Parameters
    ----------
    chains, steps : int
        Number of parallel chains, and steps of each.
    first, last : float
        First and last temperature, in units of the score.
    random : float
        Fraction of a batch taken at random.
    """

    chains: int = 64
    steps: int = 60
    first: float = 1.0
    last: float = 0.0
    random: float = 0.05


@dataclass(frozen=True)
class Tried:
    """A measured configuration; `seconds` is infinite if it did not work."""

    point: Point
    plan: RankedPlan
    seconds: float


@dataclass
class Online:
    """A search over a space.

    Parameters
    ----------
    space : RTileSpace
    batch : int
        Number of configurations measured between two trainings.
    objective : str
        'rank' or 'regression'.
    seed : int

    Examples
    --------
    >>> from roller_tvm.device import device_for_target
    >>> from roller_tvm.ir.operators import matmul
    >>> device = device_for_target("llvm -mcpu=skylake-avx512 -num-cores=2")
    >>> search = Online(RTileSpace(matmul(m=32, n=32, k=32), device), batch=4)
    >>> tried = list(search.run(8, lambda plans: [p.seconds for p in plans]))  # doctest: +SKIP
    >>> len(tried)  # doctest: +SKIP
    8
    """

    space: RTileSpace
    batch: int = 16
    objective: str = "rank"
    seed: int = 0
    annealing: Annealing = field(default_factory=Annealing)
    tried: list[Tried] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise UsageError(f"no objective {self.objective!r}", remedy=f"choose from {', '.join(OBJECTIVES)}")
        self._random = Random(self.seed)
        self._seen: set[Any] = set()
        self._rows: dict[Point, np.ndarray] = {}

    @property
    def best(self) -> Tried | None:
        """Fastest configuration that worked, or None if none has."""
        worked = [t for t in self.tried if math.isfinite(t.seconds)]
        return min(worked, key=lambda t: t.seconds) if worked else None

    def run(self, trials: int, measure: Measure) -> Iterator[Tried]:
        """Measure up to `trials` configurations; yield each once its batch is done."""
        while len(self.tried) < trials:
            chosen = self._propose(min(self.batch, trials - len(self.tried)))
            if not chosen:  # all there are were measured
                return
            plans = [self.space.plan(point) for point in chosen]
            for point, plan, seconds in zip(chosen, plans, measure(plans), strict=True):
                self.tried.append(Tried(point, plan, float(seconds)))
                yield self.tried[-1]

    def _propose(self, count: int) -> list[Point]:
        """Return the next batch of configurations, chosen by the model once there is one."""
        model = train([t.seconds for t in self.tried], np.array([self.row(t.point) for t in self.tried]),
                      self.objective) if self.tried else None  # fmt: skip
        chosen: list[Point] = []
        if model is not None:
            aside = min(count - 1, max(1, round(count * self.annealing.random)))
            for point in self._annealed(model):
                if len(chosen) == count - aside:
                    break
                self._take(point, chosen)
        for point in self.space.points(count * 8, self._random):
            if len(chosen) == count:
                break
            self._take(point, chosen)
        return chosen

    def _take(self, point: Point, chosen: list[Point]) -> None:
        """Add a configuration to `chosen` unless an earlier one gave the same plan."""
        digest = tuple(self.space.plan(point).plan.programs), point.form
        if digest not in self._seen:
            self._seen.add(digest)
            chosen.append(point)

    def row(self, point: Point) -> np.ndarray:
        """Return the features of a configuration."""
        if point not in self._rows:
            self._rows[point] = plan_features(self.space.plan(point), self.space.device, self.space.searched(point))
        return self._rows[point]

    def _annealed(self, model: Model) -> list[Point]:
        """Return the configurations that the chains visited, best score first; chains start at the best measured."""
        a, random = self.annealing, self._random
        worked = sorted((t for t in self.tried if math.isfinite(t.seconds)), key=lambda t: t.seconds)
        chains = [t.point for t in worked[: a.chains // 2]]
        chains += [self.space.random(random) for _ in range(a.chains - len(chains))]
        scores = model.scores(np.array([self.row(p) for p in chains]))
        found = dict(zip(chains, map(float, scores), strict=True))
        for step in range(a.steps):
            heat = a.first + (a.last - a.first) * step / a.steps
            beside = [self.space.beside(p, random) for p in chains]
            new = model.scores(np.array([self.row(p) for p in beside]))
            found.update(zip(beside, map(float, new), strict=True))
            for n, point in enumerate(beside):
                gain = float(new[n] - scores[n])
                if gain >= 0 or (heat > 0 and random.random() < math.exp(gain / heat)):
                    chains[n], scores[n] = point, new[n]
        return sorted(found, key=lambda p: -found[p])


@dataclass(frozen=True)
class Model:
    """A trained model; a higher score means faster."""

    booster: Any
    objective: str

    def scores(self, rows: np.ndarray) -> np.ndarray:
        """Return one score for each row of features."""
        import xgboost

        return np.asarray(self.booster.predict(xgboost.DMatrix(rows)))


def train(seconds: Sequence[float], rows: np.ndarray, objective: str = "rank") -> Model | None:
    """Return a model trained on measurements of one operator, or None if there are not two different times.

    A label is the best time over the plan's time, 0 for a plan that did not work, as in AutoTVM (throughput over the
    best).

    Raises
    ------
    UsageError
        xgboost is not installed.
    """
    worked = [s for s in seconds if math.isfinite(s)]
    if len(worked) < 2 or min(worked) == max(worked):
        return None
    try:
        import xgboost
    except ImportError as error:
        raise UsageError("the baseline needs xgboost", remedy="pip install 'roller-tvm[xgboost]'") from error
    labels = np.array([min(worked) / s if math.isfinite(s) else 0.0 for s in seconds])
    data = xgboost.DMatrix(rows, label=labels)
    if objective == "rank":
        data.set_group([len(labels)])
    booster = xgboost.train({**PARAMETERS, "objective": OBJECTIVES[objective]}, data, num_boost_round=ROUNDS)
    return Model(booster, objective)


def rank_plans(plans: Sequence[RankedPlan], device: DeviceSpec, model: Model) -> list[RankedPlan]:
    """Return constructed plans in the order of a model's scores instead of their predicted times."""
    scores = model.scores(np.array([plan_features(p, device) for p in plans]))
    return [plans[n] for n in sorted(range(len(plans)), key=lambda n: -float(scores[n]))]
