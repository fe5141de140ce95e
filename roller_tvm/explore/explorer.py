"""The explorer (Astra: the custom wirer): says what the next run is to try, and learns from the times of that run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from ..errors import RecordError
from .index import ProfileIndex
from .rule import Rule, slower
from .tree import Configuration, Epoch, UpdateTree

#: Time of an option that was never run, in units of the best known one's, where a run must not become slow.
UNKNOWN = 1.5
#: With an allowance, one run in so many may try an option whose expected time is beyond it.
SELDOM = 4
#: Reason of a rule's decision.
NOT_WORTH = "slower, or not faster by as much as is worth having"


@dataclass(frozen=True)
class Proposal:
    """A run: which configuration each member has.

    Parameters
    ----------
    chosen : dict
        Of each epoch, the configuration of each member.
    trials : set of (str, int)
        Epochs and members by position whose times are wanted; the others run what is best so far.
    """

    chosen: dict[str, list[Configuration]]
    trials: set[tuple[str, int]]


@dataclass(frozen=True)
class Row:
    """A row of the live table: the state of an epoch.

    Parameters
    ----------
    share : float
        Of the time of a run as it started.
    tried, options : int
        Configurations with a sample; all of them.
    left : int
        Configurations that are not dropped yet in the phase under way; 1 when done.
    start_s, best_s : float
        Seconds of a run in this epoch, with the starting configuration and the best one.
    best : Configuration
    done : bool
    """

    name: str
    share: float
    tried: int
    options: int
    left: int
    start_s: float
    best_s: float
    best: Configuration
    done: bool


@dataclass
class _State:
    """An epoch under exploration: the phase, what the phases before have chosen, what is left."""

    epoch: Epoch
    phase: int = 0
    kept: Configuration = ()
    left: list[Configuration] = field(default_factory=list)
    count: int = 1
    trials: int = 0
    looked: int = 0
    failed: set[Configuration] = field(default_factory=set)
    out: set[Configuration] = field(default_factory=set)

    @property
    def done(self) -> bool:
        return self.phase >= len(self.epoch.phases)

    def enter(self) -> None:
        """Begin the phase; phases without a choice end at once."""
        while not self.done:
            every = [c for c in self.epoch.candidates(self.phase, self.kept) if c not in self.failed]
            self.left = [c for c in every if c not in self.out] or every
            self.count, self.looked = len(every), 0
            if self.count > 1:
                return
            self.phase += 1


class Explorer:
    """Explores an update tree by runs of the model.

    Parameters
    ----------
    tree : UpdateTree
    rule : Rule
    failed : mapping of epoch to configurations
        Those that must not run: they do not build, crash or compute something else.
    earlier : object, optional
        What `to_json` returned of another exploration of this tree: what is decided there is decided.
    seed : int
        Of the order in which options are tried.

    Examples
    --------
    >>> from roller_tvm.explore import Choice, Epoch, Phase, UpdateTree
    >>> tree = UpdateTree((Epoch("dense", (Phase((Choice("kernel", ("a", "b")),)),), ("head",)),))
    >>> explorer, times = Explorer(tree), {"a": 2e-6, "b": 1e-6}
    >>> while not explorer.done:
    ...     proposal = explorer.propose()
    ...     explorer.learn(proposal, {"dense": [times[dict(proposal.chosen["dense"][0])["kernel"]]]})
    >>> explorer.best("dense"), explorer.runs
    ((('kernel', 'b'),), 20)
    """

    def __init__(
        self, tree: UpdateTree, rule: Rule | None = None, failed: Mapping[str, Sequence[Configuration]] | None = None,
        earlier: Any = None, seed: int = 0,
    ) -> None:  # fmt: skip
        self.tree, self.rule, self.index, self.runs = tree, rule or Rule(), ProfileIndex(), 0
        #: Configurations that were dropped, with the reason.
        self.dropped: dict[tuple[str, Configuration], str] = {}
        #: After each run: seconds of a run with the best configurations known, in these epochs.
        self.history: list[float] = []
        self._random = Random(seed)
        self._states = {epoch.name: _State(epoch, kept=epoch.start) for epoch in tree.epochs}
        if earlier is not None:
            self._resume(earlier)
        for state in self._states.values():
            state.failed = set(failed.get(state.epoch.name, ())) if failed else set()
            if state.kept in state.failed:
                state.kept = next(c for c in state.epoch.candidates(0, state.kept) if c not in state.failed)
            state.enter()
            self._look(state)

    def to_json(self) -> dict[str, Any]:
        """Return what is known, as JSON values."""
        dropped = [[name, [list(pair) for pair in chosen], why] for (name, chosen), why in self.dropped.items()]
        return {"runs": self.runs, "index": self.index.to_json(), "dropped": dropped, "history": self.history}

    def _resume(self, data: Any) -> None:
        try:
            self.index = ProfileIndex.from_json(data["index"])
            self.runs, self.history = int(data["runs"]), [float(s) for s in data["history"]]
            for name, pairs, why in data["dropped"]:
                chosen = tuple((str(choice), str(option)) for choice, option in pairs)
                if name in self._states:
                    self.dropped[name, chosen] = str(why)
                    self._states[name].out.add(chosen)
        except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
            raise RecordError("is no state of an exploration", "exploration", "delete it: it begins anew") from error

    # -- a run ---------------------------------------------------------------------------------------------------------

    def propose(self, allowance_s: float | None = None) -> Proposal:
        """Return what each member of each epoch is to do in the next run.

        Parameters
        ----------
        allowance_s : float, optional
            Seconds that the run may be expected to take longer than one with the best configurations known.
        """
        left, trials = math.inf if allowance_s is None else allowance_s, set[tuple[str, int]]()
        chosen = {name: [self.best(name)] * len(s.epoch.members) for name, s in self._states.items()}
        active = sorted((s for s in self._states.values() if not s.done), key=lambda s: s.trials)
        for state in active:
            name, best = state.epoch.name, self._expected(state, self.best(state.epoch.name))
            for at, wanted in enumerate(self._next(state)):
                extra = max(0.0, self._expected(state, wanted) - best)
                if extra <= left:
                    left -= extra
                    chosen[name][at] = wanted
                    trials.add((name, at))
        if not trials and active and self.runs % SELDOM == 0:  # nothing fits: one of them, now and then
            state = active[0]
            turn = self._next(state)
            at = min(range(len(turn)), key=lambda at: self._known(state, turn[at], at))
            chosen[state.epoch.name][at] = turn[at]
            trials.add((state.epoch.name, at))
        return Proposal(chosen, trials)

    def learn(self, proposal: Proposal, seconds: Mapping[str, Sequence[float]]) -> None:
        """Take the times of a run: of each epoch, the seconds of each member. Epochs without times learn nothing."""
        self.runs += 1
        for name, times in seconds.items():
            state = self._states[name]
            for at, (member, taken) in enumerate(zip(state.epoch.members, times, strict=True)):
                if (name, at) in proposal.trials or (state.done and not self.index.of(name, proposal.chosen[name][at])):
                    self.index.add(name, proposal.chosen[name][at], member, max(float(taken), 1e-9))
                    state.trials += 1
            if not state.done:
                self._look(state)
        self.history.append(self.seconds())

    def _next(self, state: _State) -> list[Configuration]:
        """Return what each member is to try: what it has tried least.

        Of several, members take turns from a start by chance: a fixed order would keep step with whatever else the
        machine does now and then, and what it does in one run must not meet one option alone.
        """
        wanted, start = [], self._random.randrange(len(state.left))
        for at in range(len(state.epoch.members)):
            counts = [self._known(state, c, at) for c in state.left]
            least = [c for c, n in zip(state.left, counts, strict=True) if n == min(counts)]
            wanted.append(least[(start + at) % len(least)])
        return wanted

    def _known(self, state: _State, chosen: Configuration, at: int) -> int:
        """Return the number of samples of a configuration at a member."""
        return len(self.index.of(state.epoch.name, chosen).get(state.epoch.members[at], ()))

    def _expected(self, state: _State, chosen: Configuration) -> float:
        """Return the expected seconds of a member."""
        known = self.index.typical(state.epoch.name, chosen)
        if not math.isnan(known):
            return known
        best = self.index.typical(state.epoch.name, self.best(state.epoch.name))
        return 0.0 if math.isnan(best) else UNKNOWN * best

    # -- judging -------------------------------------------------------------------------------------------------------

    def _look(self, state: _State) -> None:
        """Drop what is not worth having; end the phase if one configuration is left, or there are pairs enough."""
        while not state.done:
            name, leader = state.epoch.name, self._leader(state)
            best = self.index.typical(name, leader)
            for chosen in [c for c in state.left if c != leader]:
                if self.rule.hopeless(self._first(name, chosen), best):
                    self._drop(state, chosen, f"its first {self.rule.tries} runs took over {self.rule.give_up:g} times")
            looks = self.rule.looks()
            pairs = {c: list(self.index.pairs(name, c, leader)) for c in state.left if c != leader}
            enough = min(map(len, pairs.values()), default=looks[-1])
            reached = sum(look <= enough for look in looks)
            if reached > state.looked:
                state.looked = reached
                margin, level = self.rule.margin(self.share(name), len(self._states)), self.rule.level(state.count)
                if state.kept in pairs and slower([(a, b) for b, a in pairs[state.kept]], margin) < level:
                    self._drop(state, leader, NOT_WORTH)  # it leads by too little
                    continue
                for chosen, own in pairs.items():
                    if slower(own, 0.0 if chosen == state.kept else margin) < level:
                        self._drop(state, chosen, NOT_WORTH)
            if len(state.left) > 1 and enough < looks[-1]:
                return
            state.kept = self._settled(state)
            state.phase += 1
            state.enter()

    def _leader(self, state: _State) -> Configuration:
        """Return the configuration that is fastest so far, of those with as many samples as the first look takes."""
        name = state.epoch.name
        known = [c for c in state.left if self.index.count(name, c) >= min(self.rule.tries, self.rule.first)]
        return min(known, key=lambda c: self.index.typical(name, c), default=state.left[0])

    def _settled(self, state: _State) -> Configuration:
        """Return the phase's choice: what was kept before stays unless the fastest is faster with confidence."""
        leader = self._leader(state)
        if state.kept == leader or state.kept in state.failed:
            return leader
        name = state.epoch.name
        if self.rule.hopeless(self._first(name, state.kept), self.index.typical(name, leader)):
            return leader
        pairs = list(self.index.pairs(name, state.kept, leader))
        return leader if slower(pairs) < self.rule.level(state.count) else state.kept

    def _drop(self, state: _State, chosen: Configuration, reason: str) -> None:
        state.left.remove(chosen)
        state.out.add(chosen)
        self.dropped[state.epoch.name, chosen] = reason

    def _first(self, name: str, chosen: Configuration) -> list[float]:
        return [own[n] for n in range(self.rule.tries) for own in self.index.of(name, chosen).values() if len(own) > n]

    def undecided(self, name: str) -> None:
        """Leave an epoch at its start for now, and forget its samples: another exploration begins it anew."""
        state = self._states[name]
        state.kept, state.phase = state.epoch.start, len(state.epoch.phases)
        self.index.forget(name)
        self.dropped = {key: why for key, why in self.dropped.items() if key[0] != name or key[1] in state.failed}

    # -- what is known -------------------------------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        """True if there is nothing left to try."""
        return all(state.done for state in self._states.values())

    def best(self, name: str) -> Configuration:
        """Return the best configuration of an epoch so far; before the first look, that which it started from."""
        state = self._states[name]
        if state.done or state.looked == 0:
            return state.kept
        return self._leader(state)

    def seconds(self, start: bool = False) -> float:
        """Return the seconds of a run in all epochs, with the best configurations or those of the start."""
        return sum(self._seconds(state, start) for state in self._states.values())

    def _seconds(self, state: _State, start: bool) -> float:
        name = state.epoch.name
        found = self.index.typical(name, state.epoch.start if start else self.best(name))
        return 0.0 if math.isnan(found) else found * len(state.epoch.members)

    def share(self, name: str) -> float:
        """Return an epoch's share of the time of a run as it started."""
        whole = self.seconds(start=True)
        return self._seconds(self._states[name], True) / whole if whole else 0.0

    def rows(self) -> list[Row]:
        """Return where each epoch stands, the one that takes the most time first."""
        rows = []
        for name, state in self._states.items():
            tried = {chosen for epoch, chosen in self.index if epoch == name}
            rows.append(
                Row(
                    name, self.share(name), len(tried), sum(map(len, state.epoch.phases)),
                    1 if state.done else len(state.left), self._seconds(state, True), self._seconds(state, False),
                    self.best(name), state.done,
                )
            )  # fmt: skip
        return sorted(rows, key=lambda row: -row.share)
