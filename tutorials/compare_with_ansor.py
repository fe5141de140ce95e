"""
Compare with Ansor
==================

``roller-tvm compare`` runs tuners side by side on the operators that you name, times what they found in turns in
one process, and says how many times as long the others tuned and their kernels take. Here Ansor has two trials, its
least, so that this takes a minute or two on two cores: the way, not the figures. A real comparison gives Ansor 1000
trials an operator (``--tuners roller:1,roller,ansor:1000``), which takes hours, and may be interrupted.

Run it with ``python tutorials/compare_with_ansor.py``. Ansor learns with xgboost; without it
(``pip install xgboost``) its column says so.
"""

import json
import sys
import tempfile
from pathlib import Path

from roller_tvm.cli import main

from tvm import auto_scheduler  # isort: skip

folder = Path(tempfile.mkdtemp())

# %%
# What to compare on
# ------------------
# A suite is a CSV file; those that come with the package are listed by ``roller-tvm compare --list``. A model will
# do too: ``roller-tvm compare model.onnx`` takes its operators, ``--models model.onnx`` the whole of it.

suite = folder / "mine.csv"
suite.write_text("id,operator,params,group\nsmall,matmul,m=32 n=48 k=64,products\n")

# %%
# Run it
# ------
# Each tuner works in a process of its own: one that crashes, hangs or finds nothing costs no more than its own
# column. The table goes to the terminal, and with it come ``results.csv``, ``results.json``, pictures and
# ``index.html``, which holds them all.

out = folder / "comparison"
words = ["compare", "--line", "relay", "--suite", str(suite), "--output", str(out)]
assert main([*words, "--tuners", "roller:1,untuned,ansor:2"]) == 0

# %%
# Go on
# -----
# The same folder goes on where it was: here with one more tuner, Roller's best of four measured. What the others
# have found stays, and all kernels are timed again beside the new one. After a change of yours ``--again roller``
# does only Roller's part anew. ``results.jsonl`` alone is enough for that, on another day and in another folder:
# kernels are built again from the schedules that it holds.

assert main([*words, "--tuners", "roller:1,roller:4,untuned,ansor:2"]) == 0

# %%
# Read it
# -------
# A ratio is a tuner's time over that of Roller's best, round by round, so that what else the machine does falls on
# both. Where another tuner is faster, ``losses.txt`` sets its schedule beside Roller's plan, and says what Roller's
# model got wrong.

report = json.loads((out / "results.json").read_text())
(case,) = report["cases"]
for result in case["results"]:
    if result["seconds"] is None:
        # On a loaded machine all of few trials may run out of time.
        print(f"{result['tuner']:<10} has no kernel ({result['status']}): {result['reason']}")
        continue
    print(f"{result['tuner']:<10} tuned {result['tune_s']:7.2f} s, its kernel takes {result['seconds'] * 1e6:7.2f} us,"
          f" {result['ratio']:.2f} times as long as {report['base']}'s: {result['tiles']}")  # fmt: skip
print((out / "losses.txt").read_text())

# %%
# The winners
# -----------
# Every answer was compared with that of TVM's own kernel before it was timed. On this line both schedules are
# Ansor's records, which any TVM of it applies.

winners = {}
for line in (out / "results.jsonl").read_text().splitlines():
    found = json.loads(line)["value"]
    if found.get("schedule", "").startswith("{"):
        winners[found["tuner"]] = auto_scheduler.measure_record.load_record_from_string(found["schedule"])[0]
if not winners:
    sys.exit("no tuner has a record: the reasons stand above")
keys = {measured.task.workload_key for measured in winners.values()}
assert len(keys) == 1, keys
print(f"{' and '.join(winners)} scheduled the same computation, and their answers agree")
