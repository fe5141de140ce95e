"""TensorIR: PrimFuncs read as tensor expressions. Importing this imports no TVM."""

from .read import AlreadyScheduled, TirReading, read_prim_func

__all__ = ["AlreadyScheduled", "TirReading", "read_prim_func"]
