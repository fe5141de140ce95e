"""Ctrl-C inside functions that TVM calls back."""

import os
import signal

import pytest

from roller_tvm.tuning.interrupt import deferred_interrupt, interrupted, stop_if_interrupted


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)


def test_the_interrupt_comes_at_the_next_stop():
    after = []
    with pytest.raises(KeyboardInterrupt), deferred_interrupt():
        interrupt()
        after.append("not at once")
        stop_if_interrupted()
        after.append("never")
    assert after == ["not at once"]


def test_it_comes_at_the_end_without_a_stop_and_the_handler_is_restored():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), deferred_interrupt():
        interrupt()
    assert signal.getsignal(signal.SIGINT) is before
    with deferred_interrupt():
        stop_if_interrupted()  # an old one is forgotten


def test_one_within_another_leaves_it_to_that():
    after = []
    with pytest.raises(KeyboardInterrupt), deferred_interrupt():
        assert not interrupted()
        with deferred_interrupt():
            interrupt()
        after.append(interrupted())
    assert after == [True] and not interrupted()


def test_other_exceptions_pass():
    with pytest.raises(ValueError), deferred_interrupt():
        raise ValueError


@pytest.mark.tvm
def test_through_tvm():
    tvm = pytest.importorskip("tvm")

    def callback():
        interrupt()
        stop_if_interrupted()

    with pytest.raises(KeyboardInterrupt), deferred_interrupt():
        tvm.runtime.convert(callback)()
