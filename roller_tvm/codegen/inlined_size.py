"""Size of what a stage becomes if another is computed in place: a value read twice is written twice, and so on."""

from __future__ import annotations

from itertools import islice
from typing import Any

from .flat import Memory, access_of, is_load, parts_of, statements, values_of

#: Most expressions in a stage with what is computed in place. Each stage that reads another twice doubles it: of ten
#: such stages (4,000) TVM's passes took 2 s, of fourteen 23 s, of eighteen minutes (TVM 0.27, Zen 4). Four times what
#: GELU, a bicubic resize or the cell of an LSTM need.
LARGEST = 2000


def size_with(reader: Any, producer: Any, buffer: Any) -> int:
    """Return the number of expressions in one block's body once another's, which writes `buffer`, stands in it.

    Numbers above `LARGEST` are not counted to their end.
    """
    memory = Memory({})
    own = memory.of(buffer)
    every = list(islice(_expressions(reader), LARGEST + 1))
    reads = sum(1 for node in every if is_load(node) and memory.of(access_of(node)[0]) == own)
    return len(every) + reads * sum(1 for _ in islice(_expressions(producer), LARGEST + 1))


def _expressions(body: Any) -> Any:
    return (part for node in statements(body) for value in values_of(node) for part in parts_of(value))
