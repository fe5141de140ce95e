"""Copies that run ahead: which commits of asynchronous copies a wait completes.

TVM's software pipeline puts copies in groups ("commit") and waits until at most so many groups are in flight. A copy
is read as two statements. Where it is issued, its memory gets a value that nobody may read. Where the first wait
completes its group, it gets its value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ...codegen.flat import children, kind_of, number_of
from .digits import summands

COMMIT, WAIT, COPY = "async_commit_queue_scope", "async_wait_queue_scope", "async_scope"
IN_FLIGHT = "async_wait_inflight_count"


class Unreadable(Exception):
    """Commits and waits in a form that is not known."""


@dataclass(frozen=True)
class Landing:
    """Copies of one commit that a wait completes.

    Parameters
    ----------
    loop : For or None
        Around the commit.
    body : statement
    first, per : int
        Number of the commit's group in the loop's first trip, and how many groups a trip makes.
    done, before : int
        Groups that are complete after the wait in its loop's first trip, and those that were complete before it.
    wait_loop : For or None
    wait_per : int
        How many groups more are complete after each trip of that loop.
    """

    loop: Any
    body: Any
    first: int
    per: int
    done: int
    before: int
    wait_loop: Any
    wait_per: int

    @property
    def empty(self) -> bool:
        """Return whether the wait completes none of them."""
        last = self.first + ((number_of(self.loop.extent) or 1) - 1 if self.loop is not None else 0) * self.per
        trips = (number_of(self.wait_loop.extent) or 1) - 1 if self.wait_loop is not None else 0
        return last < self.before or self.first >= self.done + trips * self.wait_per

    def rule(self, commit: str, wait: str) -> str:
        """Return the rule by which a trip of the wait's loop completes what a trip of the commit's loop issued."""
        group = f"{self.first} + {self.per}*{commit}" if commit else str(self.first)
        if not wait:
            return f"{self.before} <= {group} < {self.done}"
        done = f"{self.done} + {self.wait_per}*{wait}"
        later = f"{wait} >= 1 and {done} - {self.wait_per} <= {group} < {done}"
        return f"(({wait} = 0 and {self.before} <= {group} < {self.done}) or ({later}))"


@dataclass(frozen=True)
class _Site:
    path: tuple[Any, ...]  # statements around it
    node: Any
    queue: int
    in_flight: Any  # None: a commit


def landings_of(body: Any) -> dict[int, list[Landing]]:
    """Return what each wait completes: hash of its statement -> landings.

    Raises
    ------
    Unreadable
    """
    sites = list(_sites(body, ()))
    found: dict[int, list[Landing]] = {}
    queues: dict[tuple[int, int], list[_Site]] = {}
    for site in sites:  # no copy of a launch is left to the next
        launch = next((hash(n) for n in site.path if kind_of(n) == "AttrStmt" and _is_launch(n)), 0)
        queues.setdefault((site.queue, launch), []).append(site)
    for queue in queues.values():
        found |= _of_queue(queue)
    return found


def _is_launch(attribute: Any) -> bool:
    return str(attribute.attr_key).endswith("thread_extent")


def _sites(statement: Any, path: tuple[Any, ...]) -> Iterator[_Site]:
    if kind_of(statement) == "AttrStmt":
        key = str(statement.attr_key).rsplit(".", 1)[-1]
        if key == COMMIT:
            yield _Site(path, statement, number_of(statement.value) or 0, None)
        if key == WAIT:
            inner = statement.body
            if kind_of(inner) != "AttrStmt" or not str(inner.attr_key).endswith(IN_FLIGHT):
                raise Unreadable("a wait without a number of groups")
            yield _Site(path, statement, number_of(statement.value) or 0, inner.value)
    for child in children(statement):
        yield from _sites(child, (*path, statement))


def _of_queue(sites: Sequence[_Site]) -> dict[int, list[Landing]]:
    shared = 0
    paths = [site.path for site in sites]
    while all(len(p) > shared for p in paths) and len({hash(p[shared]) for p in paths}) == 1:
        shared += 1
    loops = [_loop(site.path[shared:]) for site in sites]
    commits = [site.in_flight is None for site in sites]
    found: dict[int, list[Landing]] = {}
    issued = before = 0  # groups so far; those that are complete
    made: list[tuple[_Site, Any, int, int]] = []
    start = 0
    while start < len(sites):
        loop, end = loops[start], start + 1
        while loop is not None and end < len(sites) and _same(loops[end], loop):
            end += 1
        trips, per = (number_of(loop.extent) or 0) if loop is not None else 1, sum(commits[start:end])
        waits = [n for n in range(start, end) if not commits[n]]
        if len(waits) > 1:
            raise Unreadable("several waits in a loop")
        own = 0
        for n in range(start, end):
            if commits[n]:
                made.append((sites[n], loop, issued + own, per))
                own += 1
        for n in waits:
            least, fewer = _in_flight(sites[n].in_flight, loop)
            done, by_trip = issued + sum(commits[start:n]) - least, per - fewer
            all_of = [Landing(at, s.node.body, first, by, done, before, loop, by_trip) for s, at, first, by in made]
            found[hash(sites[n].node)] = [landing for landing in all_of if not landing.empty]
            before = max(before, done + (trips - 1) * by_trip)
        issued += per * trips
        start = end
    if before < issued and any(kind_of(node) == "For" for node in paths[0][:shared]):
        raise Unreadable("copies for which another trip waits")
    return found


def _in_flight(count: Any, loop: Any) -> tuple[int, int]:
    """Return the number of groups that a wait leaves in flight in its loop's first trip, and how many more a trip."""
    first = more = 0
    for node, factor in summands(count) or [(count, 1)]:
        if (number := number_of(node)) is not None:
            first += factor * number
        elif loop is not None and hash(node) == hash(loop.loop_var):
            more += factor
        else:
            raise Unreadable(f"a wait for {count} groups")
    return first, more


def _loop(path: Sequence[Any]) -> Any:
    """Return the loop around a commit or a wait within the pipeline, None if there is none."""
    loops = [node for node in path if kind_of(node) == "For"]
    if any(kind_of(node) == "IfThenElse" for node in path):
        raise Unreadable("copies that run ahead under a condition")
    if len(loops) > 1 or any(number_of(loop.extent) is None or number_of(loop.min) != 0 for loop in loops):
        raise Unreadable("copies that run ahead in loops of loops")
    return loops[0] if loops else None


def _same(a: Any, b: Any) -> bool:
    return a is not None and hash(a) == hash(b)
