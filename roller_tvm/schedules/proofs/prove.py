"""All questions about one lowered function, within a limit of work."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ...codegen.flat import remembering
from ...device import DeviceSpec
from .answers import PROVEN, REFUTED, UNDECIDED, Finding, Proof
from .begins import Begin, Unbegun
from .blocks import Blocks
from .cases import ANY, Sizes, are_all, cases_of, turns_of
from .flow import Flow, initialised
from .instances import compared
from .kernel import Kernel
from .memory import bounds, within_device, written
from .origins import Origins
from .races import barriers, races, twice
from .read import read_kernel
from .sets import library
from .values import same_values

#: isl's operations, and CPU time, that the questions about one kernel, all of its cases, may take in vain together. A
#: second has two to nine million operations, few where numbers are large.
OPERATIONS, SECONDS = 6_400_000, 2.0
#: Those of the first try of a question, and of one about values, for which there are two ways to ask.
FIRST, FIRST_OF_VALUES = 400_000, 100_000
#: isl's operations a second where numbers are large.
SLOWLY = 300_000
#: A time below which none is measured.
_TICK = 1e-4
#: Reasons.
_MUCH, _FLOW = "too much work for isl", "the flow of values took too much work"


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
    flat: bool = False, blocks: Blocks | None = None, begun: tuple[Any, Mapping[int, Begin]] | None = None,
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
    begun : (PrimFunc, mapping), optional
        The same function with begins of tiles in place of blocks (``proofs/begins.py``), which is asked first.
    """
    start = time.process_time()
    findings: list[Finding] = []
    notes: set[str] = set()
    left, plain = OPERATIONS, _Version(func, sizes, flat, blocks)
    first = plain if begun is None else _Version(begun[0], sizes, flat, blocks, begun[1])
    try:
        kernels = first.kernels()
    except Unbegun:
        first = plain
        kernels = first.kernels()
    for number, (case, kernel) in enumerate(kernels):
        part = 2 / (len(kernels) - number + 1)  # more than an equal share, for few need theirs
        share, now = int(left * part), time.process_time()
        work = Work(share, now + (SECONDS - (now - start)) * part)
        own, more = _proven(kernel, reference, device, first.sizes_of(case), flat, work)
        if first is not plain and any(_may_be_told(finding) for finding in own):
            known = {finding.rule: finding for finding in own if not _may_be_told(finding)}
            if BY_WAYS in more or "values" not in known:  # both are asked of one flow
                known = {rule: finding for rule, finding in known.items() if rule not in ("initialised", "values")}
            again = plain.kernel(case)
            theirs, others = _proven(again, reference, device, plain.sizes_of(case), flat, work, known)
            more |= others
            own = [one if one.answer == PROVEN else other for one, other in zip(own, theirs, strict=True)]
        left -= share - work.left
        findings, notes = _worse(findings, own), notes | more
    nothing = Finding("bounds", UNDECIDED, f"no size from 1 to {sizes.largest} is as the model checks it")
    findings = findings or [nothing]
    return Proof(name or str(func.attrs["global_symbol"]) if func.attrs and "global_symbol" in func.attrs else name,
                 tuple(findings), time.process_time() - start, tuple(sorted(notes)))  # fmt: skip


def _may_be_told(finding: Finding) -> bool:
    """Return whether more may be known of a kernel for the begins and sizes that there are alone."""
    return finding.answer != PROVEN and not finding.why.startswith((_MUCH, _FLOW))


@dataclass(frozen=True)
class _Version:
    """A function, or the same with begins of tiles in place of blocks."""

    func: Any
    sizes: Sizes
    flat: bool
    blocks: Blocks | None
    begins: Mapping[int, Begin] | None = None

    @cached_property
    def cases(self) -> list[dict[int, bool]]:
        return cases_of(self.func.body)

    def sizes_of(self, case: int) -> Sizes:
        """Return the sizes of a case; -1 is all of them."""
        return replace(self.sizes, case=self.cases[case] if case >= 0 else {})

    def kernel(self, case: int) -> Kernel:
        return read_kernel(self.func, self.sizes_of(case), self.flat, blocks=self.blocks, begins=self.begins)

    def kernels(self) -> list[tuple[int, Kernel]]:
        """Return the kernels that some sizes get to, each with the number of its case."""
        found = [(case, kernel) for case in range(len(self.cases)) if not (kernel := self.kernel(case)).never]
        if len(turns_of(self.func.body)) > 1 and not are_all([(self.cases[c], k) for c, k in found], self.sizes):
            return [(-1, self.kernel(-1))]
        return found


def _worse(some: list[Finding], others: list[Finding]) -> list[Finding]:
    """Return the worse answer to each question."""
    if not (some and others):
        return some or others
    order = (PROVEN, UNDECIDED, REFUTED)
    return [max(both, key=lambda finding: order.index(finding.answer)) for both in zip(some, others, strict=True)]


def _proven(
    kernel: Kernel, reference: Any, device: DeviceSpec | None, sizes: Sizes, flat: bool, work: Work,
    known: Mapping[str, Finding] | None = None,
) -> tuple[list[Finding], set[str]]:  # fmt: skip
    """Return what is proven of one of a function's kernels, and notes on it; `known` is not asked again."""
    flow = Flow(kernel)
    questions: list[tuple[str, Callable[[], Finding], Callable[[], int]]] = [  # the last counts what tries have found
        ("bounds", lambda: bounds(kernel), _nothing), ("written", lambda: written(kernel), _nothing),
        ("memory", lambda: within_device(kernel, device), _nothing), ("barriers", lambda: barriers(kernel), _nothing),
        ("races", lambda: races(kernel), lambda: len(kernel.apart) + len(kernel.meeting)),
        ("initialised", lambda: initialised(flow.found()), lambda: len(flow.done)),
    ]  # fmt: skip
    known = known or {}
    findings = [known.get(rule) or _asked(rule, question, kernel, work, found) for rule, question, found in questions]
    if "values" in known:
        return [*findings, known["values"]], set()
    notes = {SUMMED} if reference is not None and any(s.update for s in kernel.statements) else set[str]()
    if kernel.blocks is not None and flow.whole:
        by_data: set[tuple[int, int]] = set()
        findings.append(_asked("values", lambda: _of_blocks(flow, by_data), kernel, work))
        if findings[-1] == Finding("values", PROVEN) and by_data and findings[0].answer == UNDECIDED:
            findings[0] = _asked("bounds", lambda: bounds(kernel, by_data), kernel, work)
            notes |= {BY_DATA} if findings[0].answer == PROVEN else set()
    races_at = [finding.rule for finding in findings].index("races")
    others = reference is not None and findings[-1] != Finding("values", PROVEN) and not kernel.reread
    if kernel.again and others and findings[races_at].answer == PROVEN:
        findings[races_at] = _asked("races", lambda: twice(kernel), kernel, work)
    if others:
        findings = [finding for finding in findings if finding.rule != "values"]
        if flow.whole:
            same = replace(sizes, case={}, told=tuple(kernel.case))
            other, origins = Flow(read_kernel(reference, same, flat)), list[Origins]()
            parts = lambda: len(flow.roots) + len(other.roots)  # noqa: E731
            findings.append(_asked("values", lambda: _values(flow, other, origins), kernel, work, parts))
            if flow.firsts and findings[-1].answer == PROVEN:
                turned = flow.turned()
                again = lambda: same_values(Origins(turned), origins[1], kernel)  # noqa: E731
                findings[-1] = _asked("values", again, kernel, work, parts)
        else:
            findings.append(Finding("values", UNDECIDED, _FLOW))
        notes |= {BY_WAYS} if findings[-1] == Finding("values", PROVEN) else set()
    elif reference is not None and findings[-1].rule != "values":
        findings.append(Finding("values", UNDECIDED, f"{next(iter(kernel.again.values()))}, and read"))
    if kernel.again and (reference is None or findings[-1] != Finding("values", PROVEN)):
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


def _nothing() -> int:
    return 0


def _asked(
    rule: str, question: Callable[[], Finding], kernel: Kernel, work: Work, known: Callable[[], int] = _nothing
) -> Finding:  # fmt: skip
    """Return the answer to a question; undecided if the reader lacks something, or isl has too much work.

    isl stops after a number of operations. Each try has twice as many as the one before, as long as another fits
    in the work that is left, and in the time as far as the tries before tell. A try after one that made more parts
    `known` goes on from there with as many.
    """
    if kernel.unread:
        return Finding(rule, UNDECIDED, kernel.unread[0])
    isl, first = library(), FIRST_OF_VALUES if rule == "values" else FIRST
    limit = int(min(first, SLOWLY * (work.until - time.process_time())))
    if limit <= 0:
        return Finding(rule, UNDECIDED, f"{_MUCH} (no time is left)")
    context, before, parts = isl.DEFAULT_CONTEXT, 0.0, known()
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
                    return Finding(rule, UNDECIDED, f"{_MUCH} ({told})")
    finally:
        context.set_max_operations(0)
