"""``tvm.auto_scheduler`` with Roller instead of Ansor's search: a script changes only its import line.

Every name of ``tvm.auto_scheduler`` is here, and most of them are TVM's own objects. Roller tunes in
``SearchTask.tune``, ``TaskScheduler.tune``, ``auto_schedule`` and the tasks of ``extract_tasks``. The user's callbacks
write records in Ansor's format. One name is new: ``RollerPolicy``, a search policy that TVM's own ``SearchTask`` and
``TaskScheduler`` accept too.

Examples
--------
>>> from roller_tvm import auto_scheduler
>>> task = auto_scheduler.SearchTask(func=matmul, args=(1024, 1024, 1024), target="llvm")
>>> write = auto_scheduler.RecordToFile("records.json")
>>> options = auto_scheduler.TuningOptions(10, measure_callbacks=[write])
>>> task.tune(options)
"""

# Importing this package imports TVM; ``import roller_tvm`` does not import this package.
# ruff: noqa: E402, F401, F403, I001
import sys
import types

from roller_tvm.tvm_env import import_relay_tvm

import_relay_tvm("roller_tvm.auto_scheduler")

from tvm import auto_scheduler as _ansor
from tvm.auto_scheduler import *

for _name, _value in vars(_ansor).items():
    if isinstance(_value, types.ModuleType) and _value.__name__.startswith(_ansor.__name__ + "."):
        globals()[_name] = _value
        # `from roller_tvm.auto_scheduler.measure import ...`; below, ours take the place of some.
        sys.modules[f"{__name__}.{_name}"] = _value

#: Modules of Ansor's names that are ours: TVM's with something of it replaced.
_OURS = ("dispatcher", "measure_record", "relay_integration", "search_policy", "search_task", "task_scheduler")
for _name in _OURS:
    del sys.modules[f"{__name__}.{_name}"]

from roller_tvm.auto_scheduler import (
    dispatcher,
    measure_record,
    relay_integration,
    search_policy,
    search_task,
    task_scheduler,
)
from roller_tvm.auto_scheduler.dispatcher import ApplyHistoryBest, ApplyHistoryBestOrSample
from roller_tvm.auto_scheduler.hooks import install as _install
from roller_tvm.auto_scheduler.measure_record import RecordToFile
from roller_tvm.auto_scheduler.relay_integration import extract_tasks
from roller_tvm.auto_scheduler.search_policy import PreloadMeasuredStates, RollerPolicy
from roller_tvm.auto_scheduler.search_task import SearchTask, TuningOptions, auto_schedule, create_task
from roller_tvm.auto_scheduler.task_scheduler import TaskScheduler

_install(RollerPolicy, TuningOptions)
