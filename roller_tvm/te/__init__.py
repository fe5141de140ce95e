"""Reading TVM tensor expressions into ours. Importing this imports no TVM."""

from .operators import te_operator
from .read import TeReading, read_te

__all__ = ["TeReading", "read_te", "te_operator"]
