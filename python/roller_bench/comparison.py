"""Report of a comparison: ratios, summaries, and the same as CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from roller_bench.cases import Case
from roller_bench.machine import names, same
from roller_bench.results import Prepared, Results, Timed, Tuned
from roller_bench.task import OURS
from roller_bench.tuners import Tuner
from roller_tvm.stats import best_over_time, geomean, paired_ratio, spread

VERSION = 1
COLUMNS = (
    "id", "title", "group", "weight", "flops", "io_bytes", "tuner", "status", "reason", "tune_s", "trials", "seconds",
    "spread", "gflops", "ratio", "claimed_s", "predicted_s", "build_s", "error", "environment",
)  # fmt: skip
#: Ratio of timed to claimed seconds above which the tuner must have measured something else.
CLAIM = 1.5
#: Share of the CPUs in use by other work, just before tuning or timing, above which a note is made.
BUSY = 0.1


@dataclass(frozen=True)
class Cell:
    """Result of one tuner on one case.

    Parameters
    ----------
    seconds : float
        Typical time of the kernel in seconds, timed beside the others; nan if there is none.
    spread : float
        Spread of the rounds, as a fraction.
    ratio : float
        Kernel's time over the base's: above 1 the base is faster.
    ratio_spread : float
        Spread of the ratio between rounds, as a fraction.
    tune_s : float
        Seconds of tuning.
    curve : list of (float, float)
        Seconds since tuning began, and seconds of the best kernel so far, scaled to this comparison's timing.
    busy : float
        Share of the CPUs used by other work just before tuning.
    environment : dict
        Environment of the tuning: machine, commit and other facts.
    """

    tuner: Tuner
    status: str
    reason: str = ""
    seconds: float = math.nan
    spread: float = math.nan
    ratio: float = math.nan
    ratio_spread: float = math.nan
    tune_s: float = math.nan
    trials: int = 0
    claimed_s: float = math.nan
    predicted_s: float = math.nan
    curve: list[tuple[float, float]] = field(default_factory=list)
    tiles: str = ""
    schedule: str = ""
    build_s: float = math.nan
    error: float = math.nan
    busy: float = math.nan
    environment: Mapping[str, Any] = field(default_factory=dict)

    @property
    def timed(self) -> bool:
        return not math.isnan(self.seconds)


@dataclass(frozen=True)
class Row:
    """Results of all tuners on one case.

    Parameters
    ----------
    environment : dict
        Environment of the timing, or of the last tuning if nothing was timed.
    busy : float
        Share of the CPUs used by other work just before timing.
    """

    case: Case
    flops: float
    io_bytes: float
    cells: tuple[Cell, ...]
    environment: Mapping[str, Any] = field(default_factory=dict)
    busy: float = math.nan

    def cell(self, label: str) -> Cell | None:
        """Return the result of a tuner, or None."""
        return next((c for c in self.cells if c.tuner.label == label), None)

    def gflops(self, cell: Cell) -> float:
        """Return the rate of a cell's kernel in GFLOP/s; nan if it was not timed or the case has no FLOPs."""
        return self.flops / cell.seconds / 1e9 if self.flops and cell.timed else math.nan


@dataclass(frozen=True)
class Report:
    """Report of a comparison.

    Parameters
    ----------
    base : str
        Label of the tuner in the denominator of all ratios.
    tuners : tuple of Tuner
    rows : tuple of Row
    environment : dict
        Environment of this run; a row may be of another machine.
    """

    base: str
    tuners: tuple[Tuner, ...]
    rows: tuple[Row, ...]
    environment: dict[str, Any]

    @property
    def others(self) -> tuple[Tuner, ...]:
        """Tuners other than the base."""
        return tuple(t for t in self.tuners if t.label != self.base)

    def ratios(self, label: str, group: str | None = None) -> list[float]:
        """Return the ratios of a tuner's kernel times to the base's, for the cases that both have."""
        cells = [r.cell(label) for r in self.rows if group is None or r.case.group == group]
        return [c.ratio for c in cells if c is not None and not math.isnan(c.ratio)]

    @property
    def first(self) -> str:
        """Label of Roller without measuring, or '' if it is missing or the base."""
        return next((t.label for t in self.tuners if t.name == "roller" and t.trials == 1 and t.label != self.base), "")

    def compile_ratios(self, label: str, over: str = "") -> list[float]:
        """Return a tuner's tuning times over the base's (or those of `over`), for the cases that both finished."""
        found = []
        for row in self.rows:
            one, base = row.cell(label), row.cell(over or self.base)
            if one and base and one.status == base.status == "ok" and one.tune_s > 0 and base.tune_s > 0:
                found.append(one.tune_s / base.tune_s)
        return found

    def groups(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(r.case.group for r in self.rows))

    def worst(self, count: int = 10) -> list[tuple[Row, Cell]]:
        """Return the cases on which the base loses most, worst first, each with the fastest rival.

        A search over Roller's space that ended at the base's plan is no loss, whatever times it measured.
        """
        lost = [[(row, c) for c in row.cells if c.ratio < 1 and self.rivals(row, c)] for row in self.rows]
        firsts = [min(found, key=lambda pair: pair[1].ratio) for found in lost if found]
        return sorted(firsts, key=lambda pair: pair[1].ratio)[:count]

    def same_plans(self) -> list[tuple[Row, Cell]]:
        """Return the results that have the base's plan and measured faster than it."""
        cells = [(row, c) for row in self.rows for c in row.cells if c.ratio < 1 and c.tuner.name != "roller"]
        return [(row, c) for row, c in cells if not self.rivals(row, c)]

    def rivals(self, row: Row, cell: Cell) -> bool:
        """Return True if a tuner is not Roller and its kernel does not have the base's plan."""
        ours = row.cell(self.base)
        same = cell.tuner.name in OURS and ours is not None and bool(ours.tiles) and cell.tiles == ours.tiles
        return cell.tuner.name != "roller" and not same

    def places(self) -> dict[str, list[Row]]:
        """Return the rows with results, by the name of their machine."""
        machines: list[dict[str, Any]] = []
        rows: list[list[Row]] = []
        for row in self.rows:
            if not row.cells:
                continue
            number = next((n for n, known in enumerate(machines) if same(known, row.environment)), len(machines))
            if number == len(machines):
                machines.append({})
                rows.append([])
            machines[number] |= row.environment  # a newer line tells more of the same machine
            rows[number].append(row)
        return dict(zip(names(machines), rows, strict=True))

    def remarks(self) -> list[str]:
        """Return the reasons that tuners have no kernel for some cases, and remarks on kernels.

        Tuners with the same remark share a line.
        """
        of: dict[tuple[str, str], dict[str, set[str]]] = {}
        for row in self.rows:
            for cell in row.cells:
                if cell.status == "ok" and not cell.reason:
                    continue
                # Remarks on a kernel were joined; an error's text stays whole.
                for reason in cell.reason.split("; ") if cell.status == "ok" else [cell.reason]:
                    said = of.setdefault((cell.status, reason), {})
                    said.setdefault(cell.tuner.label, set()).add(row.case.id)
        told = []
        for (status, reason), tuners in of.items():
            for cases in dict.fromkeys(map(frozenset, tuners.values())):
                labels = ", ".join(label for label, ids in tuners.items() if ids == cases)
                what = "" if status == "ok" else f"{status}, "
                told.append(f"{labels}: {what}{reason} ({len(cases)} case{'s' * (len(cases) > 1)})")
        return told

    def to_know(self) -> list[str]:
        """Return all notes for a reader of the figures: `remarks`, then `notes`."""
        return [*self.remarks(), *self.notes()]

    def notes(self) -> list[str]:
        """Return notes on the figures as a whole: several machines, a busy machine, wrong claims."""
        told = []
        if len(places := self.places()) > 1:
            for name, rows in places.items():
                told.append(f"on {name}: {', '.join(row.case.id for row in rows)}")
        told += [f"{row.case.id}: timed while other work used {row.busy:.0%} of the CPUs"
                 for row in self.rows if row.busy > BUSY]  # fmt: skip
        told += [f"{row.case.id}: {cell.tuner.label} began to tune while other work used {cell.busy:.0%} of the CPUs"
                 for row in self.rows for cell in row.cells if cell.busy > BUSY]  # fmt: skip
        return told + self.trials() + self.commits() + self.lies()

    def trials(self) -> list[str]:
        """Return notes on searches that ended by themselves after another number of kernels than their label says."""
        told = []
        for tuner in self.tuners:
            cells = [(row.case.id, row.cell(tuner.label)) for row in self.rows]
            ended = [(case, c.trials) for case, c in cells if c and tuner.searches and c.status == "ok"]
            fewer = [f"{case} after {n}" for case, n in ended if 0 < n < tuner.trials]
            more = [f"{n} on {case}" for case, n in ended if n > tuner.trials]
            if fewer:
                told.append(f"{tuner.label}: found nothing new to measure: {', '.join(fewer)}")
            if more:
                told.append(f"{tuner.label}: measured in whole rounds: {', '.join(more)}")
        return told

    def commits(self) -> list[str]:
        """Return lines on rows whose Roller kernels are of several commits of this package."""
        told = []
        for row in self.rows:
            own = [c for c in row.cells if c.tuner.name in OURS and c.timed]
            of = [str(c.environment.get("commit", "")) for c in own]
            if len(set(of)) > 1:
                each = ", ".join(f"{c.tuner.label} of commit {commit}" for c, commit in zip(own, of, strict=True))
                told.append(f"{row.case.id}: {each} (--again {','.join(dict.fromkeys(c.tuner.name for c in own))})")
        return told

    def lies(self) -> list[str]:
        """Return lines on tuners whose kernels are much slower than they claim."""
        return [
            f"{row.case.id}: {cell.tuner.label} claims {cell.claimed_s * 1e6:.1f} us, its kernel takes"
            f" {cell.seconds * 1e6:.1f} us"
            for row in self.rows for cell in row.cells
            if cell.timed and cell.claimed_s > 0 and cell.seconds > CLAIM * cell.claimed_s
        ]  # fmt: skip


def make_report(results: Results, cases: Sequence[Case], tuners: Sequence[Tuner], environment: str) -> Report:
    """Return the report of the results of these cases and tuners.

    The base is the Roller with the most trials, else the first tuner.
    """
    ours = [t for t in tuners if t.name == "roller"]
    base = max(ours, key=lambda t: t.trials) if ours else tuners[0]
    rows, here = [], results.environments.get(environment, {})
    for case in cases:
        prepared = results.prepared.get(case.digest, Prepared(case))
        timed = results.timed.get(case.digest)
        cells, own = [], results.tuned.get((case.digest, base.label))
        for tuner in tuners:
            tuned = results.tuned.get((case.digest, tuner.label))
            if tuned is not None:
                cells.append(_cell(tuner, tuned, timed, own, results.environments.get(tuned.environment, {})))
        of = [t.environment for t in results.tuned_of(case.digest)] + ([timed.environment] if timed else [])
        where = results.environments.get(of[-1] if of else "", here)
        busy = math.nan if timed is None else timed.busy
        rows.append(Row(case, prepared.flops, prepared.io_bytes, tuple(cells), where, busy))
    return Report(base.label, tuple(tuners), tuple(rows), here)


def _cell(
    tuner: Tuner, tuned: Tuned, timed: Timed | None, base: Tuned | None, environment: Mapping[str, Any]
) -> Cell:
    rounds = timed.of(tuned) if timed is not None and tuned.ok else ()
    own = timed.of(base) if timed is not None and base is not None else ()
    told: dict[str, Any] = {"tune_s": tuned.seconds, "trials": tuned.trials, "claimed_s": tuned.claimed_s,
                            "predicted_s": tuned.predicted_s, "tiles": tuned.tiles, "schedule": tuned.schedule,
                            "build_s": tuned.build_s, "error": tuned.error,
                            "busy": tuned.busy, "environment": environment}  # fmt: skip
    if not rounds:
        return Cell(tuner, tuned.status, tuned.reason, **told)
    seconds = median(rounds)
    # A tuner's own clock is scaled so that its winner takes what it takes here: only how it got there is its own.
    curve = best_over_time(tuned.curve)
    scaled = [(when, s / curve[-1][1] * seconds) for when, s in curve] or [(tuned.seconds, seconds)]
    ratio = paired_ratio(rounds, own) if own else math.nan
    apart = spread([a / b for a, b in zip(rounds, own, strict=True)]) if own else math.nan
    return Cell(tuner, tuned.status, tuned.reason, seconds, spread(rounds), ratio, apart, curve=scaled, **told)


def to_json(report: Report) -> dict[str, Any]:
    """Return the report as JSON values; unknown numbers are null."""

    def number(value: float) -> float | None:
        return value if math.isfinite(value) else None

    def summary(label: str) -> dict[str, Any]:
        groups = {g: number(geomean(report.ratios(label, g))) for g in report.groups()}
        ratios, spent = report.ratios(label), report.compile_ratios(label)
        top1 = report.compile_ratios(label, report.first) if report.first else []
        return {"cases": len(ratios), "speed_ratio": number(geomean(ratios)), "tune_ratio": number(geomean(spent)),
                "tune_ratio_top1": number(geomean(top1)), "groups": groups}  # fmt: skip

    return {
        "version": VERSION, "base": report.base, "environment": report.environment,
        "tuners": [t.label for t in report.tuners], "summary": {t.label: summary(t.label) for t in report.tuners},
        "notes": report.notes(),
        "environments": {
            e["id"]: dict(e) for row in report.rows for e in (row.environment, *(c.environment for c in row.cells)) if e
        },
        "cases": [
            {
                "id": row.case.id, "title": row.case.title, "group": row.case.group, "weight": row.case.weight,
                "flops": row.flops, "io_bytes": row.io_bytes, "environment": row.environment.get("id", ""),
                "results": [
                    {
                        "tuner": c.tuner.label, "status": c.status, "reason": c.reason, "tune_s": number(c.tune_s),
                        "trials": c.trials, "seconds": number(c.seconds), "spread": number(c.spread),
                        "gflops": number(row.gflops(c)), "ratio": number(c.ratio), "claimed_s": number(c.claimed_s),
                        "predicted_s": number(c.predicted_s), "build_s": number(c.build_s), "error": number(c.error),
                        "curve": [[t, s] for t, s in c.curve], "tiles": c.tiles,
                        "environment": c.environment.get("id", ""),
                    }
                    for c in row.cells
                ],
            }
            for row in report.rows
        ],
    }  # fmt: skip


def to_csv(report: Report) -> str:
    """Return the report as CSV, one row per case and tuner, below comments with the environments."""
    out, known = io.StringIO(), to_json(report)
    for name, value in report.environment.items():
        out.write(f"# {name}: {value}\n")
    for name, facts in known["environments"].items():
        if name != report.environment.get("id"):
            out.write(f"# environment {name}: {json.dumps(facts)}\n")
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    for data in known["cases"]:
        for result in data["results"]:
            writer.writerow({**data, **{k: "" if v is None else v for k, v in result.items()}})
    return out.getvalue()


def json_text(report: Report) -> str:
    """Return `to_json` as text."""
    return json.dumps(to_json(report), indent=1) + "\n"
