"""Keeping ``relay.build`` from repacking an operand for a schedule that does not want it.

On CPUs ``relay.build`` repacks constant operands of some operators ("layout free" ones) in the order of the
loops of the State that it finds. It understands loops split as Ansor splits them (each spatial axis once in
four, each reduction axis once in two); of others it makes a wrong layout or stops the user's build, and of
``dense``, whose axes are called i0 and i1, always. It leaves alone what is not read directly: an inlined
copy of the operand says "keep the layout" and costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from roller_tvm.lower.steps import CacheRead, Inline, Pack, Step

SUFFIX = ".kept"


def layout_free(ops: dict[str, Any]) -> list[tuple[str, str]]:
    """Pairs (placeholder, stage that reads it) whose layout ``relay.build`` would choose."""
    pairs = []
    for name, op in ops.items():
        for tensor in (getattr(op, "attrs", None) or {}).get("layout_free_placeholders", ()):
            pairs += [(own, name) for own, other in ops.items() if other.same_as(tensor.op)]
    return pairs


def keep_layout(ops: dict[str, Any], steps: Sequence[Step]) -> tuple[Step, ...]:
    """The steps, with every operand of theirs left in the layout it has.

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
