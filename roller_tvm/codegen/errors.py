"""Error of code that is not understood."""

from __future__ import annotations

from roller_tvm.errors import BadInput


class NotEmulated(BadInput):
    """Host code or a source uses something unknown here: an instruction of inline PTX, a type, more than launches."""
