"""An exploration of a model that runs: the table set before each run, the times read behind it, the state kept."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from ..errors import BadInput, DiskFull, RecordError, cannot_write
from ..folders import beside
from .dispatch import Site, Table
from .explorer import SELDOM, Explorer, Proposal
from .rule import Rule, slower
from .tree import Choice, Configuration, Epoch, Phase, UpdateTree
from .waiting import Waiting

#: Name of the choice between the plans of an operator.
PLAN = "plan"
#: While it serves: runs before anything is tried, and how much longer a run may be expected to take than those.
FIRST_RUNS, ALLOWED = 5, 0.15
#: Seconds between two writings of the state.
KEEP_S = 5.0
#: Pairs of runs by which two ways of running the whole model are compared.
WHOLE_PAIRS = 40
#: Series of pairs that have to say that a way is faster.
REPEATED = 2
#: Why something has to wait for another exploration.
SPENT = "the budget is spent"


def tree_of(sites: Sequence[Site], classes: Mapping[str, str]) -> UpdateTree:
    """Return the update tree of sites: operators that are equal make an epoch, with the plans that all of them have.

    Parameters
    ----------
    classes : mapping of operator to the key of its equivalence class

    Examples
    --------
    >>> from roller_tvm.explore.dispatch import Variant
    >>> site = Site("conv", ("a", "b"), (Variant("k0", (0,)), Variant("k1", (0,))))
    >>> [epoch.members for epoch in tree_of([site, site], {"conv": "c1"}).epochs]
    [('0 conv', '1 conv')]
    """
    found: dict[str, list[int]] = {}
    for at, site in enumerate(sites):
        found.setdefault(classes.get(site.operator, site.operator), []).append(at)
    epochs = []
    for name, own in found.items():
        shared = [o for o in sites[own[0]].options if all(o in sites[at].options for at in own)]
        choice = Choice(PLAN, tuple(shared))
        epochs.append(Epoch(name, (Phase((choice,)),), tuple(f"{at} {sites[at].operator}" for at in own)))
    return UpdateTree(tuple(epochs))


class Exploration:
    """A model whose runs explore.

    Parameters
    ----------
    sites : sequence of Site
    classes : mapping of operator to the key of its equivalence class
    table : Table
    call : function
        Runs the model on its arguments.
    failed : mapping of (class, option) to reason
        Options that must not run.
    state : path, optional
        A file with the state of an earlier exploration, that is kept up to date.
    careful : bool
        Runs are somebody's requests: their median stays within `ALLOWED` of what it was, or little above.
    here : bool
        The model runs in this process.

    Attributes
    ----------
    explorer : Explorer
    wall_s : list of float
        Seconds of each run.
    """

    def __init__(
        self, sites: Sequence[Site], classes: Mapping[str, str], table: Table, call: Callable[..., Any],
        failed: Mapping[tuple[str, str], str] | None = None, state: Path | None = None, careful: bool = False,
        rule: Rule | None = None, seed: int = 0, here: bool = True,
    ) -> None:  # fmt: skip
        self.sites, self.table, self.call, self.state, self.careful = list(sites), table, call, state, careful
        tree, bad = tree_of(sites, classes), dict(failed or {})
        self._classes, self._failed = classes, bad
        out: dict[str, list[Configuration]] = {}
        for (name, option) in bad:
            out.setdefault(name, []).append(((PLAN, option),))
        self.explorer = Explorer(tree, rule, out, _read(state), seed)
        self.explorer.dropped.update({(name, ((PLAN, option),)): why for (name, option), why in bad.items()})
        self.wall_s: list[float] = []
        #: Seconds of what is done beside the model's own run, in runs that explore.
        self._beside_s: list[float] = []
        self._seldom, self._rest = False, 0
        #: How much others have delayed the runs that explore.
        self.waiting = Waiting(here)
        self._at = {name: [int(m.split(" ")[0]) for m in members] for name, members in
                    ((epoch.name, epoch.members) for epoch in tree.epochs)}  # fmt: skip
        self._lock, self._kept, self._changed = threading.Lock(), time.monotonic(), False
        self.settle()

    @property
    def done(self) -> bool:
        return self.explorer.done

    def settle(self) -> None:
        """Have the model run with the best plans known."""
        self._choose({epoch.name: [self.explorer.best(epoch.name)] * len(epoch.members)
                      for epoch in self.explorer.tree.epochs})  # fmt: skip

    def warm_up(self, *arguments: Any) -> None:
        """Run each option once where a kernel is loaded by its first run; no time includes the loading then."""
        if not self.table.lazy:
            return
        allowed = [[n for n, option in enumerate(site.options) if not self._is_out(site, option)]
                   for site in self.sites]  # fmt: skip
        for n in range(max(map(len, allowed), default=0)):
            self.table.choose([own[min(n, len(own) - 1)] for own in allowed])
            self.call(*arguments)
        self.settle()

    def alone(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Call something while no run is under way."""
        with self._lock:
            return call(*arguments)

    def _is_out(self, site: Site, option: str) -> bool:
        return (self._classes.get(site.operator, site.operator), option) in self._failed

    def run(self, *arguments: Any) -> Any:
        """Run the model once, and learn from it unless all is known."""
        with self._lock:
            if self.done or self._rests():
                return self._timed(*arguments)
            began = time.perf_counter()
            proposal = self._proposal()
            self._choose(proposal.chosen)
            result = self._timed(*arguments)
            seconds = self.table.seconds()
            times = {name: [seconds[at] for at in own] for name, own in self._at.items()}
            self.explorer.learn(proposal, {n: own for n, own in times.items() if not any(t != t for t in own)})
            self._changed = True
            if self.done or self._seldom:
                self.settle()
            self._beside_s.append(time.perf_counter() - began - self.wall_s[-1])
            if self.done or time.monotonic() - self._kept > KEEP_S:
                with suppress(DiskFull, BadInput):  # no request fails for it: the next writing is tried later
                    self.keep()
            return result

    def _rests(self) -> bool:
        """Return whether a request does not explore, as exploring takes too long beside a run as short as this."""
        if not self.careful or len(self.wall_s) < FIRST_RUNS:
            return False
        if len(self.wall_s) == FIRST_RUNS:
            self._seldom = median(self._beside_s) > ALLOWED / 2 * median(self.wall_s)
            self.settle()
        self._rest = (self._rest + 1) % SELDOM if self._seldom else 0
        return bool(self._rest)

    def _proposal(self) -> Proposal:
        if not self.careful:
            return self.explorer.propose()
        if len(self.wall_s) < FIRST_RUNS:  # what it takes without exploring
            proposal = self.explorer.propose(0.0)
            best = {e.name: [self.explorer.best(e.name)] * len(e.members) for e in self.explorer.tree.epochs}
            same = {(name, at) for name, at in proposal.trials if proposal.chosen[name][at] == best[name][at]}
            return Proposal(best, same)
        return self.explorer.propose(ALLOWED * median(self.wall_s[:FIRST_RUNS]))

    def _timed(self, *arguments: Any) -> Any:
        if not self.careful:
            self.table.start()
        start = time.perf_counter()
        result = self.call(*arguments)
        self.wall_s.append(time.perf_counter() - start)
        return result

    def _choose(self, chosen: Mapping[str, Sequence[Configuration]]) -> None:
        variants = [0] * len(self.sites)
        for name, configurations in chosen.items():
            for at, configuration in zip(self._at[name], configurations, strict=True):
                variants[at] = self.sites[at].options.index(dict(configuration)[PLAN])
        self.table.choose(variants)

    def explore(
        self, arguments: Sequence[Any], budget_s: float | None = None, runs: int | None = None,
        progress: Callable[[Exploration], None] | None = None,
    ) -> None:  # fmt: skip
        """Run until all is known, the time is over, or so many runs are done; Ctrl-C keeps what was learnt."""
        with self.waiting:
            self._explore(arguments, budget_s, runs, progress)

    def _explore(
        self, arguments: Sequence[Any], budget_s: float | None, runs: int | None,
        progress: Callable[[Exploration], None] | None,
    ) -> None:  # fmt: skip
        end = None if budget_s is None else time.monotonic() + budget_s
        last = None if runs is None else self.explorer.runs + runs
        told = 0.0
        try:
            while not self.done:
                if (end is not None and time.monotonic() >= end) or (last is not None and self.explorer.runs >= last):
                    break
                self.run(*arguments)
                if progress is not None and (self.done or time.monotonic() - told > 0.5):
                    told = time.monotonic()
                    progress(self)
        finally:
            self.keep()  # first: a server that is lost has no table
            self.settle()

    def undecided(self, names: Iterable[str]) -> None:
        """Leave epochs at their starts: what is known of them does not count."""
        for name in names:
            self.explorer.undecided(name)
        self._changed = True
        self.settle()
        self.keep()

    def keep(self) -> None:
        """Write the state, whole or not at all.

        Raises
        ------
        DiskFull, BadInput
            It cannot be written; the one that was there is.
        """
        self._kept = time.monotonic()
        if self.state is None or not self._changed:
            return
        try:
            with beside(self.state) as made:
                made.write_text(json.dumps(self.explorer.to_json()), encoding="utf-8")
        except OSError as error:
            full = "no space left to write the state of the exploration; the one of earlier is intact"
            raise cannot_write(error, self.state, full, "free some space and explore again: it goes on") from error
        self._changed = False


@dataclass(frozen=True)
class Verdict:
    """The outcome of a comparison of two ways of running the whole model.

    Parameters
    ----------
    worth : bool
        Whether to take the other way; False also where it is not known, and the one in use stays.
    before_s, after_s : float
        Median seconds of a run as it is, and the other way.
    why : str
        Why it is not known.
    """

    worth: bool
    before_s: float
    after_s: float
    why: str = ""


def faster(
    plain: Callable[[], Any], other: Callable[[], Any], rule: Rule, end: float | None = None,
    ready: Callable[[int], None] = lambda number: None, seed: int = 0, here: bool = True,
) -> Verdict:  # fmt: skip
    """Return whether another way of running the whole model is worth having.

    Both are run in pairs, in an order by chance: nothing else keeps step with it then. It is worth having if `REPEATED`
    series of pairs, judged one by one, all say so with the rule's confidence, and no others kept the machine busy
    meanwhile.

    Parameters
    ----------
    end : float, optional
        Time of ``time.monotonic`` at which it ends, known or not.
    ready : function of int
        Called before each run with its way, 0 or 1; it takes no time.
    here : bool
        The model runs in this process.

    Examples
    --------
    >>> found = faster(lambda: time.sleep(1e-3), lambda: None, Rule())
    >>> found.after_s < found.before_s
    True
    """
    random, waiting = Random(seed), Waiting(here)
    taken: tuple[list[float], list[float]] = [], []

    def run(way: int) -> None:
        ready(way)
        start = time.perf_counter()
        (plain, other)[way]()
        taken[way].append(time.perf_counter() - start)

    def series() -> bool | None:
        """Return whether one series says so; None if it had no time to, or others keep the machine busy."""
        looks, first = [*(n for n in rule.looks() if n < WHOLE_PAIRS), WHOLE_PAIRS], len(taken[0])
        for number in range(1, WHOLE_PAIRS + 1):
            for way in random.sample((0, 1), 2):
                run(way)
            if number in looks:
                if waiting.so_far():
                    return None
                pairs = list(zip(taken[0][first:], taken[1][first:], strict=True))
                level = (1 - rule.confidence) / len(looks)
                if slower(pairs, -rule.near) < level:
                    return True
                if slower([(b, a) for a, b in pairs], rule.near) < level:
                    return False
            if end is not None and time.monotonic() >= end:
                return None
        return False

    worth: bool | None = True
    with waiting:
        for _ in range(REPEATED):
            worth = series() if worth else worth
    why = waiting.busy or (SPENT if worth is None else "")
    return Verdict(bool(worth) and not why, median(taken[0]), median(taken[1]), why)


def _read(path: Path | None) -> Any:
    """Return the state in a file, or None if there is none."""
    if path is None:
        return None
    with suppress(FileNotFoundError):
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise RecordError("is no state of an exploration", os.fspath(path), "delete it: it begins anew") from error
    return None
