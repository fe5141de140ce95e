"""An edge without TVM that takes whole models too (see ``whole``)."""

from ..fake_edge import facts, prepare, tasks, time, tune

__all__ = ["facts", "prepare", "tasks", "time", "tune"]
