"""Kernels whose blocks and threads go along an output together: both are one number, ``block * threads + thread``."""

from __future__ import annotations

from typing import Any

from ...codegen.flat import LETS, children, kind_of, number_of, statements, values_of
from .accesses import Accesses
from .folds import Folding, Term, Unfoldable
from .kernel import BLOCK, Axis
from .scopes import scope_of, scope_of_var


def launch_of(reader: Accesses, block: Any, blocks: Any, body: Any) -> Folding | None:
    """Return blocks and threads as one number, if a kernel uses them so alone, and threads do not wait.

    Parameters
    ----------
    reader : Accesses
        At the loop of the blocks.
    block : Var
    blocks : PrimExpr
        Their number.
    body : statement
    """
    found = _threads(body)
    if found is None or number_of(blocks) is None:
        return None
    thread, threads = found
    nodes = [node for part in statements(body) for node in (*values_of(part), *getattr(part, "indices", ()))]
    if not _plain(body):
        return None
    axes = [Axis(hash(thread), "threadIdx.x", (), 1, threads),
            Axis(hash(block), "blockIdx.x", (), threads, number_of(blocks) or 1)]  # fmt: skip
    for axis in axes:
        reader.values.ranged(axis.var, axis.extent)
    made = Folding([axes], reader.values, _whole)  # of loops that are not read yet
    if not all(made.covers(node) for node in nodes):
        return None
    try:
        made.settle(reader.digits, reader.loops, BLOCK, f"blockIdx.x * {threads} + threadIdx.x")
    except Unfoldable:
        return None
    made.other = reader._parts
    for axis in axes:
        reader.spans.add(axis.var, (0, axis.extent - 1))
    reader.kernel.threads = max(reader.kernel.threads, threads)
    return made


#: Statements around threads.
_AROUND = ("AttrStmt", "SeqStmt", "Allocate", "AllocBuffer", "DeclBuffer", "BufferRealize", "AllocateConst")


def _plain(body: Any) -> bool:
    """Return whether nothing stands between blocks and threads, and no loop's trips depend on them.

    A loop between them has numbers of its own; what a block does outside of its threads it does once.
    """
    inner = body
    while not (kind_of(inner) == "AttrStmt" and str(inner.attr_key).endswith("thread_extent")):
        if kind_of(inner) not in _AROUND or not (inside := children(inner)):
            return False
        *before, inner = inside
        if any(kind_of(part) not in ("AllocBuffer", "DeclBuffer") for part in before):
            return False
    loops = [part for part in statements(body) if kind_of(part) == "For"]
    return all(number_of(loop.extent) is not None and number_of(loop.min) is not None for loop in loops)


def _whole(var: int, low: int, high: int) -> list[Term] | None:
    return [("", 1, 0)] if (low, high) == (1, 0) else None


def _threads(body: Any) -> tuple[Any, int] | None:
    """Return the threads of a kernel, by their variable and number; None if there are others, or threads meet.

    They meet at barriers, in calls and in shared memory.
    """
    threads = []
    for part in statements(body):
        kind = kind_of(part)
        if kind in ("Evaluate", *LETS):
            return None
        if kind in ("AllocBuffer", "BufferRealize", "Allocate"):
            scope = scope_of_var(part.buffer_var) if kind == "Allocate" else scope_of(part.buffer)
            if scope != "local":
                return None
        if kind == "AttrStmt" and str(part.attr_key).endswith(("thread_extent", "virtual_thread")):
            tag, count = str(part.node.thread_tag), number_of(part.value)
            if tag != "threadIdx.x" and count != 1:
                return None
            threads += [(part.node.var, count)] if tag == "threadIdx.x" else []
        elif kind == "For" and int(part.kind) == 4:
            return None
    if len(threads) != 1:
        return None
    ((thread, number),) = threads
    return None if number is None else (thread, number)
