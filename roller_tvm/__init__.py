"""Roller for TVM: tensor programs constructed from aligned tiles instead of searched for.

Importing this package imports no TVM; the parts that need it import it when they are used.
"""

from roller_tvm.errors import RollerError
from roller_tvm.version import __version__

__all__ = ["RollerError", "__version__"]
