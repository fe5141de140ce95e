"""One HTML page with pictures, tables and explanations: without network or scripts, and readable on a phone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape

from roller_tvm.compare.machines import place
from roller_tvm.compare.report import Cell, Report
from roller_tvm.compare.table import times, whole_models
from roller_tvm.compare.tuner import Tuner
from roller_tvm.stats import geomean
from roller_tvm.tuning.results import duration, si

STYLE = """
:root { color-scheme: light }
body { margin: 0 auto; padding: 0.8rem; max-width: 60rem; font: 1rem/1.45 system-ui, sans-serif; color: #222 }
h1 { font-size: 1.4rem; margin: 0.4rem 0 } h2 { font-size: 1.15rem; margin: 1.6rem 0 0.4rem }
svg { width: 100%; height: auto; border: 1px solid #ddd; border-radius: 6px }
.wide { overflow-x: auto } table { border-collapse: collapse; font-size: 0.85rem; font-variant-numeric: tabular-nums }
th, td { padding: 0.25rem 0.6rem; border-bottom: 1px solid #e4e4e4; text-align: right; white-space: nowrap }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0; background: #fff }
.win { color: #00613f } .loss { color: #a33b00 } .none { color: #888 }
pre { white-space: pre-wrap; overflow-wrap: anywhere; font-size: 0.8rem; background: #f6f6f6; padding: 0.6rem }
pre.table { white-space: pre; overflow-x: auto }
"""
TITLES = {
    "tuning_against_speed": "What tuning costs, and what it brings",
    "speed_over_time": "How soon each tuner gets there",
    "operators": "Operator by operator", "roofline": "Beside what the machine can do",
}  # fmt: skip
#: Distance from 1 up to which a ratio is neither win nor loss: rounds differ as much.
ALIKE = 0.02


def page(report: Report, drawings: Mapping[str, str], losses: str, command: str = "") -> str:
    """Return the page as HTML text.

    Parameters
    ----------
    drawings : mapping
        SVG by name (see ``charts.pictures``).
    losses : str
        See ``losses.explain``.
    command : str
        Command that made the comparison.
    """
    e = report.environment
    facts = [place(e) if e else "", f"{e['threads']} threads" if "threads" in e else "",
             f"TVM {e['tvm']}" if "tvm" in e else "", str(e.get("target", "")), str(e.get("date", ""))]  # fmt: skip
    parts = [
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>Roller beside other tuners</title><style>{STYLE}</style></head><body>",
        "<h1>Roller beside other tuners</h1>", f"<p>{escape(', '.join(str(f) for f in facts if f))}</p>",
        f"<pre>{escape(command)}</pre>" if command else "", _summary(report),
    ]  # fmt: skip
    for name, drawing in drawings.items():
        parts.append(f"<h2>{escape(TITLES.get(name, name))}</h2>")
        parts.append(f'<figure style="margin:0" id="{name}">{drawing}</figure>')
    if told := "\n".join(whole_models(report)).strip():
        parts += ["<h2>Whole models</h2>", f'<pre class="table">{escape(told)}</pre>']
    parts += ["<h2>Every operator</h2>", _table(report)]
    parts += ["<h2>Where Roller loses most</h2>", f"<pre>{escape(losses)}</pre>"]
    if notes := report.to_know():  # claims that did not hold among them
        parts += ["<h2>To know about these figures</h2>", f"<pre>{escape(chr(10).join(notes))}</pre>"]
    facts_text = "\n".join(f"{name}: {value}" for name, value in e.items())
    parts += ["<h2>Environment</h2>", f"<pre>{escape(facts_text)}</pre>", "</body></html>\n"]
    return "\n".join(part for part in parts if part)


def _summary(report: Report) -> str:
    rows = []
    for tuner in report.others:
        ratios, spent = report.ratios(tuner.label), report.compile_ratios(tuner.label)
        if ratios or spent:
            rows.append(
                f"<tr><td>{escape(tuner.title)}</td><td>{len(ratios)}</td>{_ratio(geomean(ratios))}"
                f"{_ratio(min(ratios, default=math.nan))}<td>{times(geomean(spent))}</td>{_top1(report, tuner)}</tr>"
            )
    base = escape(report.base)
    top1 = "<th>tuning over top-1's</th>" if report.first else ""
    head = f"<tr><th>beside {base}</th><th>cases</th><th>kernel time</th><th>least</th><th>tuning time</th>{top1}</tr>"
    told = f"<p>Times over those of {base}, geometric means: above 1 {base} is faster.</p>"
    return f'{told}<div class="wide"><table>{head}{"".join(rows)}</table></div>'


def _top1(report: Report, tuner: Tuner) -> str:
    return f"<td>{times(geomean(report.compile_ratios(tuner.label, report.first)))}</td>" if report.first else ""


def _table(report: Report) -> str:
    head = "".join(f"<th>{escape(t.label)}</th>" for t in report.tuners)
    rows = []
    for row in report.rows:
        cells = "".join(_cell(row.cell(t.label)) for t in report.tuners)
        name = f'<td title="{escape(row.case.title, quote=True)}">{escape(row.case.id)}</td>'
        rows.append(f"<tr>{name}<td>{escape(si(row.flops))}</td>{cells}</tr>")
    return f'<div class="wide"><table><tr><th>ID</th><th>FLOP</th>{head}</tr>{"".join(rows)}</table></div>'


def _cell(cell: Cell | None) -> str:
    if cell is None:
        return '<td class="none">.</td>'
    if not cell.timed:
        return f'<td class="none" title="{escape(cell.reason, quote=True)}">{escape(cell.status)}</td>'
    ratio = "" if math.isnan(cell.ratio) else f" {cell.ratio:.2f}x"
    told = escape(f"{cell.tune_s:.1f} s of tuning; {cell.tiles}", quote=True)
    return f'<td class="{_class(cell.ratio)}" title="{told}">{escape(duration(cell.seconds))}{ratio}</td>'


def _class(ratio: float) -> str:
    if math.isnan(ratio) or abs(ratio - 1) <= ALIKE:
        return ""
    return "win" if ratio > 1 else "loss"


def _ratio(value: float) -> str:
    return f'<td class="{_class(value)}">{times(value)}</td>'
