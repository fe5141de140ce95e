"""All questions about one lowered function, within a limit of work."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ...codegen.flat import remembering
from ...device import DeviceSpec
from .answers import PROVEN, REFUTED, UNDECIDED, Finding, Proof
from .blocks import Blocks
from .cases import ANY, Sizes, are_all, cases_of, turns_of
from .flow import Flow, initialised
from .instances import compared
from .kernel import Kernel
from .memory import bounds, within_device, written
from .origins import Origins
from .races import barriers, races
from .read import read_kernel
from .sets import library
from .values import same_values

#: isl's operations, and CPU time, that the questions about one kernel, all of its cases, may take in vain together. A
#: second has two to nine million operations, few where numbers are large.
OPERATIONS, SECONDS = 6_400_000, 2.0
#: Those of the first try of a question.
FIRST = 50_000
#: A time below which none is measured.
_TICK = 1e-4


#: Notes: of sums, and of values of which no blocks tell (``proofs/ways.py``).
SUMMED = "sums may be added up in another order"
BY_WAYS = "values are compared by the ways of elements and constants, not statement by statement"
#: Note: of reads at places that data tell.
BY_DATA = "places that data tell are within their buffers if those of the function before its schedule are"


@dataclass
class Work:
    """isl's operations that are left to a kernel, and when its time is over."""

    left: int
    until: float


@remembering()
def prove_lowered(
    func: Any, reference: Any = None, device: DeviceSpec | None = None, name: str = "", sizes: Sizes = ANY,
    flat: bool = False, blocks: Blocks | None = None,
) -> Proof:  # fmt: skip
    """Return the proof of a function that a line has lowered to loops (``ModelLine.loops_of``).

    Parameters
    ----------
    func : PrimFunc
    reference : PrimFunc, optional
        The same before it was scheduled, lowered; without it nothing is said about values.
    device : DeviceSpec, optional
        Its memory and threads are limits.
    sizes, flat, blocks
        As of ``read_kernel``.
    """
    start = time.process_time()
    findings: list[Finding] = []
    notes: set[str] = set()
    cases, left = cases_of(func.body), OPERATIONS
    kernels = [(case, read_kernel(func, replace(sizes, case=case), flat, blocks=blocks)) for case in cases]
    kernels = [(case, kernel) for case, kernel in kernels if not kernel.never]
    if len(turns_of(func.body)) > 1 and not are_all(kernels, sizes):
        kernels = [({}, read_kernel(func, replace(sizes, case={}), flat, blocks=blocks))]
    for number, (case, kernel) in enumerate(kernels):
        share = left // (len(kernels) - number)
        now = time.process_time()
        work = Work(share, now + (SECONDS - (now - start)) / (len(kernels) - number))
        own, more = _proven(kernel, reference, device, replace(sizes, case=case), flat, work)
        left -= share - work.left
        findings, notes = _worse(findings, own), notes | more
    nothing = Finding("bounds", UNDECIDED, f"no size from 1 to {sizes.largest} is as the model checks it")
    findings = findings or [nothing]
    return Proof(name or str(func.attrs["global_symbol"]) if func.attrs and "global_symbol" in func.attrs else name,
                 tuple(findings), time.process_time() - start, tuple(sorted(notes)))  # fmt: skip


def _worse(some: list[Finding], others: list[Finding]) -> list[Finding]:
    """Return the worse answer to each question."""
    if not (some and others):
        return some or others
    order = (PROVEN, UNDECIDED, REFUTED)
    return [max(both, key=lambda finding: order.index(finding.answer)) for both in zip(some, others, strict=True)]


def _proven(
    kernel: Kernel, reference: Any, device: DeviceSpec | None, sizes: Sizes, flat: bool, work: Work
) -> tuple[list[Finding], set[str]]:  # fmt: skip
    """Return what is proven of one of a function's kernels, and notes on it."""
    questions: list[tuple[str, Callable[[], Finding]]] = [
        ("bounds", lambda: bounds(kernel)), ("written", lambda: written(kernel)),
        ("memory", lambda: within_device(kernel, device)), ("barriers", lambda: barriers(kernel)),
        ("races", lambda: races(kernel)),
    ]  # fmt: skip
    findings = [_asked(rule, question, kernel, work) for rule, question in questions]
    flow = Flow(kernel)
    findings.append(_asked("initialised", lambda: initialised(flow.found()), kernel, work))
    notes = {SUMMED} if reference is not None and any(s.update for s in kernel.statements) else set[str]()
    if kernel.blocks is not None and flow.whole:
        by_data: set[tuple[int, int]] = set()
        findings.append(_asked("values", lambda: _of_blocks(flow, by_data), kernel, work))
        if findings[-1] == Finding("values", PROVEN) and by_data and findings[0].answer == UNDECIDED:
            findings[0] = _asked("bounds", lambda: bounds(kernel, by_data), kernel, work)
            notes |= {BY_DATA} if findings[0].answer == PROVEN else set()
    if reference is not None and findings[-1] != Finding("values", PROVEN):
        findings = [finding for finding in findings if finding.rule != "values"]
        if flow.whole:
            same = replace(sizes, case={}, told=tuple(kernel.case))
            other, origins = Flow(read_kernel(reference, same, flat)), list[Origins]()
            known = lambda: len(flow.roots) + len(other.roots)  # noqa: E731
            findings.append(_asked("values", lambda: _values(flow, other, origins), kernel, work, known))
            if flow.firsts and findings[-1].answer == PROVEN:
                turned = flow.turned()
                again = lambda: same_values(Origins(turned), origins[1], kernel)  # noqa: E731
                findings[-1] = _asked("values", again, kernel, work, known)
        else:
            findings.append(Finding("values", UNDECIDED, "the flow of values took too much work"))
        notes |= {BY_WAYS} if findings[-1] == Finding("values", PROVEN) else set()
    if kernel.again and (reference is None or findings[-1].answer != PROVEN):
        told = f"{next(iter(kernel.again.values()))}; whether it is the same value"
        open_race = Finding("races", UNDECIDED, told)
        findings = [open_race if f == Finding("races", PROVEN) else f for f in findings]
    return findings, notes


def _of_blocks(flow: Flow, by_data: set[tuple[int, int]]) -> Finding:
    if flow.kernel.vectors:
        return _of_vectors(flow.kernel)
    found = compared(flow)
    by_data |= found.by_data
    return Finding("values", UNDECIDED, found.why) if found.why else Finding("values", PROVEN)


def _of_vectors(kernel: Kernel) -> Finding:
    """Return the answer about vectors: their elements are known together, lanes are not told apart."""
    return Finding("values", UNDECIDED, f"lanes of a vector that is written out: {kernel.vectors[0]}")


def _values(flow: Flow, reference: Flow, origins: list[Origins]) -> Finding:
    if reference.kernel.unread:
        return Finding("values", UNDECIDED, reference.kernel.unread[0])
    for kernel in (flow.kernel, reference.kernel):
        if kernel.vectors:
            return _of_vectors(kernel)
    for one in (flow, reference)[len(origins) :]:  # the others are from an earlier try
        origins.append(Origins(one.found().ended()))
    return same_values(origins[0], origins[1], flow.kernel)


def _asked(
    rule: str, question: Callable[[], Finding], kernel: Kernel, work: Work, known: Callable[[], int] = lambda: 0
) -> Finding:  # fmt: skip
    """Return the answer to a question; undecided if the reader lacks something, or isl has too much work.

    isl stops after a number of operations. Each try has twice as many as the one before, as long as another fits
    in the work that is left, and in the time as far as the tries before tell. A try after one that made more parts
    `known` goes on from there with as many.
    """
    if kernel.unread:
        return Finding(rule, UNDECIDED, kernel.unread[0])
    isl = library()
    context, limit, before, parts = isl.DEFAULT_CONTEXT, FIRST, 0.0, known()
    try:
        while True:
            began = time.process_time()
            context.reset_operations()
            context.set_max_operations(limit)
            try:
                return question()
            except isl.Error as error:
                now = time.process_time()
                took = max(now - began, _TICK)
                grown, parts = known() > parts, known()
                work.left -= limit
                limit, growth = (limit, 1.0) if grown else (2 * limit, max(2.0, took / before) if before else 2.0)
                before = took
                if limit > work.left or now + took * growth > work.until:  # isl's text does not tell a limit's error
                    told = str(error).rpartition(" failed")[0] or str(error)
                    return Finding(rule, UNDECIDED, f"too much work for isl ({told})")
    finally:
        context.set_max_operations(0)
