"""Schedules as scripts that people read and change, and proofs about scheduled functions. The planner needs none of it.

Importing this imports no TVM.
"""

from .script import ScheduleError, Script

__all__ = ["ScheduleError", "Script"]
