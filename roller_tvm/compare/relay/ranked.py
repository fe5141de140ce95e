"""Roller's plans ranked by a model that has learned on other operators, the first of them: what learning would add."""

from __future__ import annotations

from typing import Any

from roller_tvm.compare.relay import roller
from roller_tvm.compare.relay.tasks import Opened
from roller_tvm.compare.searching import learned_order


def tune(opened: Opened, trials: int) -> dict[str, Any]:
    """The plan that the learned model thinks best, built; learning is not counted."""
    return roller.tune(opened, 1, learned_order(opened.folder, opened.case.title, opened.device))
