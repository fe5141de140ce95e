"""Roller for TVM: tensor programs constructed from aligned tiles instead of searched for.

Importing this package imports no TVM; the parts that need it import it when they are used.

Examples
--------
>>> model = roller_tvm.compile("model.onnx")
>>> y = model(x)
"""

from typing import TYPE_CHECKING, Any

from roller_tvm.errors import RollerError
from roller_tvm.version import __version__

if TYPE_CHECKING:
    from roller_tvm.api import Model, compile, load
    from roller_tvm.schedules.scheduled import schedule

__all__ = ["Model", "RollerError", "__version__", "compile", "load", "schedule"]


def __getattr__(name: str) -> Any:
    if name == "schedule":
        from roller_tvm.schedules.scheduled import schedule

        return schedule
    if name not in ("Model", "compile", "load"):
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    from roller_tvm import api  # numpy is imported when it is needed

    return getattr(api, name)
