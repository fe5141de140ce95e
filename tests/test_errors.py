"""Errors keep their fields across processes, and every exit code is the documented one."""

import inspect
import pickle

import pytest

from roller_tvm import errors
from roller_tvm.errors import BadInput, DiskFull, MeasureError, RollerError, UsageError, must_be

CLASSES = [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, RollerError)]


@pytest.mark.parametrize(
    "error",
    [
        DiskFull("no space left to write a record", "records.json", "free some space"),
        MeasureError("no answer within 10 s", "task 3", "raise --timeout", kind="timeout"),
        RollerError("broken"),
    ],
)
def test_errors_cross_processes_whole(error):
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error) and vars(again) == vars(error)


def test_message_says_where_what_remedy_in_that_order():
    text = str(RollerError(must_be("mcpu", "a str", 3), where="target", remedy="quote it"))
    assert text == "target: 'mcpu' must be a str (got 3 that is a int)\n  remedy: quote it"


def test_exit_code_2_is_the_users_mistake():
    assert "0 done, 1 failed, 2 wrong command line or bad input, 130 interrupted" in errors.__doc__
    for cls in CLASSES:
        assert cls.exit_code == (2 if issubclass(cls, (UsageError, BadInput)) else 1), cls


def test_what_a_terminal_would_obey_is_visible():
    error = BadInput("no input is called '\x1b]0;title\x07\x1b[31m'", "m\x9b31m.onnx", "give \udcff")
    said = error.one_line()
    assert said.isprintable() and "\\x1b[31m" in said and "\\x9b" in said
