"""Attributes of PrimFuncs that are planned elsewhere than by `ScheduleWithRoller`."""

from __future__ import annotations

#: Attribute of a kernel: the name of the function of the prepared module that it was made of, where that is asked.
ORIGIN = "roller_tvm.origin"
#: Mark of a kernel that `ConnectTiles` made.
CONNECTED = "roller_tvm.connected"
#: Attribute of a recurrence's kernel: its layer, as JSON.
RECURRENCE = "roller_tvm.recurrence"
#: Marks of kernels that `MatrixProducts` made: of known rows, and of any number of them, with a family's kernels.
MATRIX = "roller_tvm.matrix_product"
OPEN_MATRIX = "roller_tvm.open_matrix_product"
PLANNED = (CONNECTED, RECURRENCE, MATRIX, OPEN_MATRIX)
