"""TensorIR: PrimFuncs read as tensor expressions, plans applied to them. Importing this imports no TVM."""

from .apply import apply_steps_tir
from .read import AlreadyScheduled, TirReading, read_prim_func

__all__ = ["AlreadyScheduled", "TirReading", "apply_steps_tir", "read_prim_func"]
