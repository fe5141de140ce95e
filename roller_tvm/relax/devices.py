"""The device that a Relax target means."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from ..device import DeviceSpec, load_device
from ..device.from_target import device_for_target
from ..errors import TargetError
from ..models.planning import with_relax_llvm
from ..tuning.machine import require_kind
from .targets import as_target

_REMEDY = 'give one: ScheduleWithRoller({"kind": "llvm", "num-cores": 2}), or `with tvm.target.Target(...):`'


def find_target(target: Any = None, func: Any = None) -> Any:
    """The tvm Target that is given, or a function's own, or that of the scope.

    Raises
    ------
    TargetError
        If there is none.
    """
    import tvm

    if target is not None:
        return as_target(target)
    attrs = getattr(func, "attrs", None)
    found = attrs["target"] if attrs and "target" in attrs else tvm.target.Target.current(allow_none=True)
    if found is None:
        raise TargetError("no target is known", where="roller_tvm.relax", remedy=_REMEDY)
    return found


def device_of(device: DeviceSpec | str | None, target: Any) -> DeviceSpec:
    """The device that is given, or the one that follows from a target.

    Raises
    ------
    TargetError
        If it is of another kind than what the target's code runs on.
    """
    found = device if isinstance(device, DeviceSpec) else load_device(device) if device else _of_target(str(target))
    found = with_relax_llvm(found)
    require_kind(found, str(target.kind.name), "device")
    return found


@lru_cache(maxsize=16)
def _of_target(target: str) -> DeviceSpec:
    import json

    return device_for_target(json.loads(target) if target.lstrip().startswith("{") else target)
