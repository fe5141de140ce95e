"""What a worker tells of an error."""

from roller_tvm.errors import BadInput
from roller_tvm.tuning.supervise import last_line


def test_our_errors_tell_what_is_wrong_and_tvms_their_last_line():
    assert last_line(BadInput("'arch' must look like sm_80", "target", "give another")) == "'arch' must look like sm_80"
    assert last_line(RuntimeError("a trace\n  of calls\nno such thing\n")) == "no such thing"
    assert last_line(RuntimeError()) == "RuntimeError"
