"""Keeps ``relay.build`` from repacking an operand if the schedule does not suit it.

On CPUs ``relay.build`` repacks constant operands of some operators ("layout free" ones) in the order of the State's
loops. It only understands loops split as Ansor splits them (each spatial axis into four, each reduction axis into
two). For other splits, and always for ``dense`` (axes i0 and i1), it makes a wrong layout or stops the user's build. It
ignores an operand that is not read directly: an inlined copy keeps the layout and costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from roller_tvm.roller.steps import CacheRead, Inline, Pack, Step

SUFFIX = ".kept"


def layout_free(ops: dict[str, Any]) -> list[tuple[str, str]]:
    """Return pairs (placeholder, reading stage) for the operands that ``relay.build`` would repack."""
    pairs = []
    for name, op in ops.items():
        for tensor in (getattr(op, "attrs", None) or {}).get("layout_free_placeholders", ()):
            pairs += [(own, name) for own, other in ops.items() if other.same_as(tensor.op)]
    return pairs


def keep_layout(ops: dict[str, Any], steps: Sequence[Step]) -> tuple[Step, ...]:
    """Return the steps with added ones that keep every operand in its layout.

    Examples
    --------
    >>> keep_layout(program.ops, steps)[:2]  # doctest: +SKIP
    (CacheRead(stage='p1', scope='global', readers=('T_matmul_NT',), name='p1.kept'), Inline(stage='p1.kept'))
    """
    copied = {s.stage for s in steps if isinstance(s, CacheRead)}
    first: list[Step] = []
    for operand, reader in layout_free(ops):
        if operand not in copied:
            first += [CacheRead(operand, "global", (reader,), operand + SUFFIX), Inline(operand + SUFFIX)]
    return (*first, *(s for s in steps if not isinstance(s, Pack)))
