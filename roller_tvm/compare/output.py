"""Write the files of a comparison."""

from __future__ import annotations

from pathlib import Path

from roller_tvm.compare.charts import pictures
from roller_tvm.compare.losses import explain
from roller_tvm.compare.markdown import markdown
from roller_tvm.compare.page import page
from roller_tvm.compare.report import Report, json_text, to_csv
from roller_tvm.compare.table import text


def write(report: Report, folder: Path, command: str = "") -> Path:
    """Write tables, CSV, JSON, pictures, explanations and an HTML page with all of them; return the page's path."""
    folder.mkdir(parents=True, exist_ok=True)
    drawings, losses = pictures(report), explain(report)
    files = {"results.csv": to_csv(report), "results.json": json_text(report), "table.txt": text(report),
             "table.md": markdown(report, command),
             "losses.txt": losses, "index.html": page(report, drawings, losses, command)}  # fmt: skip
    files |= {f"{name}.svg": drawing for name, drawing in drawings.items()}
    for name, content in files.items():
        (folder / name).write_text(content, encoding="utf-8")
    return folder / "index.html"
