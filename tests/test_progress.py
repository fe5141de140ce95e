"""One line of a terminal while a model is built, gone at the end; nothing where there is no terminal."""

import io
import sys

from roller_tvm.progress import progress_line


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_shows_each_step_on_one_line_that_goes(monkeypatch):
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with progress_line() as progress:
        for step in ("import", "plan 1 of 2: fused_a", "x" * 300):
            progress(step)
    lines = terminal.getvalue().split("\r\033[K")[1:]
    assert lines[:2] == ["import, 0 s", "plan 1 of 2: fused_a, 0 s"]
    assert lines[-1] == "" and "\n" not in terminal.getvalue()
    assert lines[2].startswith("xxx") and lines[2].endswith("x, 0 s") and len(lines[2]) == 100


def test_the_line_goes_after_an_error_too(monkeypatch):
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    try:
        with progress_line() as progress:
            progress("fused_a")
            raise ValueError
    except ValueError:
        pass
    assert terminal.getvalue().endswith("\r\033[K")


def test_without_a_terminal_nothing_is_shown(monkeypatch):
    monkeypatch.setattr(sys, "stderr", written := io.StringIO())
    with progress_line() as progress:
        assert progress is None
    assert not written.getvalue()
