"""The Relay line's edge: operators of a Relay model planned, measured, recorded, built (TVM when used)."""

from roller_tvm.relay.build import build
from roller_tvm.relay.tune import TunedTask, TuneResult, tune

__all__ = ["TuneResult", "TunedTask", "build", "tune"]
