"""All questions about one lowered function, each within a limit of work."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ...device import DeviceSpec
from .answers import UNDECIDED, Finding, Proof
from .flow import Flow, initialised
from .kernel import Kernel
from .memory import bounds, within_device, written
from .races import barriers, races
from .read import read_kernel
from .sets import library
from .values import Origins, same_values

#: CPU time that the questions about one kernel may take together.
SECONDS = 2.0
#: isl's operations in the first try of a question, and about as many as isl does in `SECONDS` at best.
OPERATIONS, MOST_OPERATIONS = 4_000, 40_000_000
#: A time below which none is measured.
_TICK = 1e-4


def prove_lowered(
    func: Any, reference: Any = None, device: DeviceSpec | None = None, name: str = "", largest: int = 2**20,
    flat: bool = False,
) -> Proof:  # fmt: skip
    """Return the proof of a function that a line has lowered to loops (``ModelLine.loops_of``).

    Parameters
    ----------
    func : PrimFunc
    reference : PrimFunc, optional
        The same before it was scheduled, lowered; without it nothing is said about values.
    device : DeviceSpec, optional
        Its memory and threads are limits.
    largest, flat
        As of ``read_kernel``.
    """
    start = time.perf_counter()
    until = time.process_time() + SECONDS
    kernel = read_kernel(func, largest, flat)
    questions: list[tuple[str, Callable[[], Finding]]] = [
        ("bounds", lambda: bounds(kernel)), ("written", lambda: written(kernel)),
        ("memory", lambda: within_device(kernel, device)), ("barriers", lambda: barriers(kernel)),
        ("races", lambda: races(kernel)),
    ]  # fmt: skip
    findings = [_asked(rule, question, kernel, until) for rule, question in questions]
    flows: list[Flow] = []

    def first_values() -> Finding:
        flows.append(Flow(kernel))
        return initialised(flows[0])

    findings.append(_asked("initialised", first_values, kernel, until))
    if reference is not None:
        if flows:
            other = read_kernel(reference, largest, flat)
            findings.append(_asked("values", lambda: _values(kernel, flows[0], other), kernel, until))
        else:
            findings.append(Finding("values", UNDECIDED, "the flow of values took too much work"))
    sums = [s for s in kernel.statements if s.update]
    notes = ("sums may be added up in another order",) if sums and reference is not None else ()
    return Proof(name or str(func.attrs["global_symbol"]) if func.attrs and "global_symbol" in func.attrs else name,
                 tuple(findings), time.perf_counter() - start, notes)  # fmt: skip


def _values(kernel: Kernel, flow: Flow, other: Kernel) -> Finding:
    if other.unread:
        return Finding("values", UNDECIDED, other.unread[0])
    return same_values(Origins(flow), Origins(Flow(other)), kernel)


def _asked(rule: str, question: Callable[[], Finding], kernel: Kernel, until: float) -> Finding:
    """Return the answer to a question; undecided if the reader lacks something, or isl takes too long.

    isl stops after a number of operations, whose time differs from kernel to kernel: each try tells how many fit.
    """
    if kernel.unread:
        return Finding(rule, UNDECIDED, kernel.unread[0])
    isl = library()
    context, limit = isl.DEFAULT_CONTEXT, OPERATIONS
    try:
        while True:
            began = time.process_time()
            context.reset_operations()
            context.set_max_operations(limit)
            try:
                return question()
            except isl.Error as error:
                told, now = str(error).rpartition(" failed")[0] or str(error), time.process_time()
                fitting = int(limit * (until - now) / max(now - began, _TICK))
                if not 2 * limit < min(fitting, MOST_OPERATIONS):  # isl's text does not tell if they were too many
                    return Finding(rule, UNDECIDED, f"too much work for isl ({told})")
                limit = min(fitting, 8 * limit)
    finally:
        context.set_max_operations(0)
