"""One HTML page with pictures, tables and explanations: without network or scripts, and readable on a phone."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from pathlib import Path

from roller_bench.comparison import Report, json_text, to_csv
from roller_bench.losses import explain
from roller_bench.tables import markdown, text

STYLE = """
:root { color-scheme: light }
body { margin: 0 auto; padding: 0.8rem; max-width: 60rem; font: 1rem/1.45 system-ui, sans-serif; color: #222 }
h1 { font-size: 1.4rem; margin: 0.4rem 0 } h2 { font-size: 1.15rem; margin: 1.6rem 0 0.4rem }
svg { width: 100%; height: auto; border: 1px solid #ddd; border-radius: 6px }
pre { white-space: pre-wrap; overflow-wrap: anywhere; font-size: 0.8rem; background: #f6f6f6; padding: 0.6rem }
pre.table { white-space: pre; overflow-x: auto }
"""
TITLES = {
    "tuning_against_speed": "What tuning costs, and what it brings",
    "speed_over_time": "How soon each tuner gets there",
}  # fmt: skip


def page(report: Report, drawings: Mapping[str, str], losses: str, command: str = "") -> str:
    """Return the page as HTML text.

    Parameters
    ----------
    drawings : mapping
        SVG by name (see ``pictures``).
    losses : str
        See ``losses.explain``.
    command : str
        Command that made the comparison.
    """
    parts = [
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>Roller beside other tuners</title><style>{STYLE}</style></head><body>",
        "<h1>Roller beside other tuners</h1>", _pre(command) if command else "",
    ]  # fmt: skip
    for name, drawing in drawings.items():
        parts.append(f"<h2>{escape(TITLES.get(name, name))}</h2>")
        parts.append(f'<figure style="margin:0" id="{name}">{drawing}</figure>')
    facts = "\n".join(f"{name}: {value}" for name, value in report.environment.items())
    parts += ["<h2>Every operator</h2>", _pre(text(report), "table")]
    parts += ["<h2>Where Roller loses most</h2>", _pre(losses), "<h2>Environment</h2>", _pre(facts)]
    return "\n".join(part for part in (*parts, "</body></html>\n") if part)


def _pre(content: str, kind: str = "") -> str:
    return f'<pre class="{kind}">{escape(content)}</pre>'


def write(report: Report, folder: Path, drawings: Mapping[str, str], command: str = "") -> Path:
    """Write tables, CSV, JSON, pictures, explanations and an HTML page with all of them; return the page's path."""
    folder.mkdir(parents=True, exist_ok=True)
    losses = explain(report)
    files = {"results.csv": to_csv(report), "results.json": json_text(report), "table.txt": text(report),
             "table.md": markdown(report, command),
             "losses.txt": losses, "index.html": page(report, drawings, losses, command)}  # fmt: skip
    files |= {f"{name}.svg": drawing for name, drawing in drawings.items()}
    for name, content in files.items():
        (folder / name).write_text(content, encoding="utf-8")
    return folder / "index.html"
