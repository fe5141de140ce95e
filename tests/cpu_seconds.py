"""``pytest --cpu``: the CPU seconds that each test file costs, processes that it waited for included.

On a busy machine they say what pytest's ``--durations`` says on a quiet one. What is left over is Python's start, the
modules that pytest imports for itself, and processes that nobody waited for.
"""

import os
from collections import defaultdict

import pytest


def now():
    """CPU seconds of this process and of its children that have ended."""
    return sum(os.times()[:4])


class CpuSeconds:
    """Counts them by file and by test, and prints both at the end."""

    def __init__(self, rows):
        self.rows, self.files, self.tests = rows, defaultdict(lambda: [0.0, 0.0, 0]), {}

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self, collector):
        start = now()
        report = yield
        if isinstance(collector, pytest.File):
            self.files[collector.nodeid][0] += now() - start
        return report

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item):
        start = now()
        done = yield
        took = self.tests[item.nodeid] = now() - start
        of = self.files[item.nodeid.split("::")[0]]
        of[1] += took
        of[2] += 1
        return done

    def pytest_terminal_summary(self, terminalreporter):
        write, total = terminalreporter.write_line, now()
        counted = sum(imported + ran for imported, ran, _ in self.files.values())
        terminalreporter.section("CPU seconds")
        write(f"{'all':>8} {'import':>7} {'tests':>6}")
        rows = sorted(self.files.items(), key=lambda row: -sum(row[1][:2]))
        for name, (imported, ran, tests) in rows[: self.rows]:
            write(f"{imported + ran:8.2f} {imported:7.2f} {tests:6}  {name}")
        others = sum(imported + ran for _, (imported, ran, _) in rows[self.rows :])
        besides = f"{total - counted:.2f} besides, {total:.2f} in all"
        write(f"{others:8.2f} in {max(0, len(rows) - self.rows)} other files, {besides}")
        for name, took in sorted(self.tests.items(), key=lambda row: -row[1])[: self.rows]:
            write(f"{took:8.2f}  {name}")
