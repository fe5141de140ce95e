"""Repeats of micro-benchmarks and their assessment, on CPUs and GPUs alike.

Other programs can only slow a repeat down, so the best of many short repeats is the device's rate. Others must come
near it, to exclude a single lucky or wrong clock reading. `spread` tells how busy the device was.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

#: Number of repeats that must lie near the best.
WITNESSES = 3
#: Share below the best within which a repeat is near.
SETTLED_SHARE = 0.2
#: Share by which a level may seem slower than the next farther one and still count as noise: a repeat may lie below the
#: best by that. Of a cache shared with other virtual machines a core may have so little that both levels are memory.
ORDER_SHARE = SETTLED_SHARE
#: Largest share by which the clock may change during the measurements; beyond it, the rates are inconsistent.
CLOCK_SHARE = 0.1
ATTEMPTS = 5


@dataclass(frozen=True)
class Request:
    """One measurement: `kind` as in cpu_profile.c or cuda_profile.cu, on `threads` threads of `bytes` each."""

    kind: str
    threads: int = 1
    bytes: int = 0
    budget_ms: int = 100
    repeats: int = 40

    def line(self) -> str:
        """Return the request as the program reads it."""
        return f"{self.kind} {self.threads} {self.bytes} {self.budget_ms} {self.repeats}\n"


#: Request -> work per nanosecond (GFLOP/s, GB/s, steps/ns) of each undisturbed repeat; unsupported requests are absent.
Rates = dict[Request, list[float]]
Runner = Callable[[Sequence[Request]], Rates]


def merge(into: Rates, more: Mapping[Request, Sequence[float]]) -> None:
    """Add the repeats of another run to `into`."""
    for request, rates in more.items():
        into.setdefault(request, []).extend(rates)


def best(rates: Rates, request: Request) -> float:
    """Return the best rate of a request, 0.0 if there is no repeat."""
    return max(rates.get(request, ()), default=0.0)


def usual(rates: Rates, request: Request) -> float:
    """Return the upper quartile of the repeats, for rates that luck can raise too (cached lines in a chase)."""
    values = sorted(rates.get(request, ()), reverse=True)
    return values[len(values) // 4] if values else 0.0


def spread(rates: Rates, request: Request) -> float:
    """Return the share by which the median repeat lies below the best.

    Examples
    --------
    >>> spread({Request("read"): [50.0, 100.0, 90.0]}, Request("read"))
    0.1
    """
    values = rates.get(request, ())
    most = max(values, default=0.0)
    return round(1 - statistics.median(values) / most, 6) if most > 0 else 0.0


def distance(rates: Rates, request: Request) -> float:
    """Return the share by which the worst of the `WITNESSES` best repeats lies below the best; 1.0 if too few."""
    values = sorted(rates.get(request, ()), reverse=True)[:WITNESSES]
    return 1 - values[-1] / values[0] if len(values) == WITNESSES and values[0] > 0 else 1.0


def unsettled(rates: Rates, requests: Iterable[Request]) -> list[Request]:
    """Return the requests whose best repeat has no others near it."""
    return [r for r in requests if distance(rates, r) > SETTLED_SHARE]


def noise(rates: Rates, requests: Iterable[Request]) -> list[str]:
    """Return a line for each request that is too noisy to trust."""
    out = []
    for r in unsettled(rates, [r for r in requests if r in rates]):
        where = f" on {r.threads} threads" if r.threads > 1 else ""
        where += f" of {r.bytes >> 10} KiB" if r.bytes else ""
        count = len(rates.get(r, ()))
        if count < WITNESSES:
            out.append(f"{r.kind}{where}: {count} undisturbed repeats")
        else:
            out.append(f"{r.kind}{where}: the best {WITNESSES} of {count} repeats differ by {distance(rates, r):.0%}")
    return out


def settle(
    run: Runner, rates: Rates, wanted: Sequence[Request], suspect: Callable[[], Iterable[Request]] = tuple
) -> None:
    """Measure into `rates` until every wanted request is settled and none is suspect, in at most `ATTEMPTS` runs.

    Parameters
    ----------
    suspect : function
        Returns settled requests to measure again, judged by the rates so far.
    """
    todo = list(wanted)
    for _ in range(ATTEMPTS):
        if not todo:
            return
        merge(rates, run(todo))
        again = {*unsettled(rates, wanted), *suspect()}
        todo = [r for r in wanted if r in again and r in rates]  # the device has no unit for those without rates


def disorder(bandwidth: Mapping[str, float], latency_ns: Mapping[str, float]) -> list[str]:
    """Return a line for each level that is slower than the next farther one; levels are named near to far."""
    bad = []
    for table, sign, word in ((bandwidth, 1, "bandwidth"), (latency_ns, -1, "latency")):
        names = list(table)
        for near, far in zip(names, names[1:], strict=False):
            if sign * table[near] < sign * table[far] * (1 - sign * ORDER_SHARE):
                bad.append(f"{near} slower than {far} ({word} {table[near]:.4g}, {table[far]:.4g})")
    return bad


def clock_change(before_ghz: float, after_ghz: float) -> list[str]:
    """Return a line if the clock changed too much between two measurements of it, else []."""
    low, high = sorted((before_ghz, after_ghz))
    if low <= 0 or 1 - low / high <= CLOCK_SHARE:
        return []
    return [f"the clock changed from {before_ghz:.2f} to {after_ghz:.2f} GHz meanwhile"]


def positive(values: Iterable[float]) -> bool:
    """Return True if all values are finite and above 0."""
    return all(math.isfinite(v) and v > 0 for v in values)
