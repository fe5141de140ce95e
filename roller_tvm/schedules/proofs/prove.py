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

#: isl's operations that one question may take: about a second.
OPERATIONS = 500_000


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
    kernel = read_kernel(func, largest, flat)
    questions: list[tuple[str, Callable[[], Finding]]] = [
        ("bounds", lambda: bounds(kernel)), ("written", lambda: written(kernel)),
        ("memory", lambda: within_device(kernel, device)), ("barriers", lambda: barriers(kernel)),
        ("races", lambda: races(kernel)),
    ]  # fmt: skip
    findings = [_asked(rule, question, kernel) for rule, question in questions]
    flows: list[Flow] = []

    def first_values() -> Finding:
        flows.append(Flow(kernel))
        return initialised(flows[0])

    findings.append(_asked("initialised", first_values, kernel))
    if reference is not None:
        if flows:
            other = read_kernel(reference, largest, flat)
            findings.append(_asked("values", lambda: _values(kernel, flows[0], other), kernel))
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


def _asked(rule: str, question: Callable[[], Finding], kernel: Kernel) -> Finding:
    """Return the answer to a question; undecided if the reader lacks something, or isl takes too long."""
    if kernel.unread:
        return Finding(rule, UNDECIDED, kernel.unread[0])
    isl = library()
    context = isl.DEFAULT_CONTEXT
    context.reset_operations()
    context.set_max_operations(OPERATIONS)
    try:
        return question()
    except isl.Error as error:
        told = str(error).rpartition(" failed")[0] or str(error)
        return Finding(rule, UNDECIDED, f"too much work for isl ({told})")
    finally:
        context.set_max_operations(0)
