"""Tensors of more than 2^31 elements on the Relay line: refused at import and at build, never a wrapped index."""

import pytest

tvm = pytest.importorskip("tvm")
pytestmark = pytest.mark.tvm

from tvm import relay  # noqa: E402

import roller_tvm  # noqa: E402
from roller_tvm.errors import UnsupportedOperator  # noqa: E402
from roller_tvm.relay import build  # noqa: E402

from .models import model  # noqa: E402


def test_at_import():
    large = ("bool", [65536, 32769])
    with pytest.raises(UnsupportedOperator, match="indices end at 2147483647"):
        roller_tvm.compile(model([("Not", ["x"], ["y"], {})], {"x": large}, {"y": large}))


def test_at_build():
    x = relay.var("x", shape=(65536, 1), dtype="int8")
    wide = relay.Function([x], relay.max(relay.broadcast_to(x, (65536, 32768)), axis=1))
    with pytest.raises(UnsupportedOperator, match="indices end at 2147483647"):
        build(tvm.IRModule.from_expr(wide), None, "llvm -num-cores=2")
