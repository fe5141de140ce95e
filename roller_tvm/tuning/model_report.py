"""The kernels of a built model: schedule, predicted time and, after a profile run, measured time of each."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import BadInput, must_be
from ..package_members import BROKEN, read_members
from .kernel_times import KernelTime

#: Name of the report within a model's file.
MEMBER = "roller_tvm.report.json"
#: Ends the name of a kernel that writes its part of a concatenation: the schedule is that of the kernel before.
IN_PLACE = "_in_place"
#: How a kernel was scheduled -> the words of a report.
HOW = {"planned": "Roller's plan", "record": "tuned record", "tvm": "TVM's schedule"}
#: Widest columns of a table, in characters.
WIDE_NAME, WIDE_PLAN = 56, 64
#: Rows of the table of what is left to TVM.
SHOWN = 12


@dataclass(frozen=True)
class KernelPlan:
    """The schedule of one kernel.

    Parameters
    ----------
    kernel : str
        Its name in the built model.
    how : {'planned', 'record', 'tvm'}
        Roller's first plan, the record of a tuning, or TVM's own schedule.
    plan : str
        Recipe and tiles of Roller's plan, '' without one.
    predicted_s : float, optional
        Seconds a call by the micro-performance model; of TVM's own schedule a rough estimate.
    reason : str
        Why the kernel has TVM's own schedule.
    calls : int
        How often a run of the model calls it, as far as the model tells.
    proof : str
        'proven', or 'undecided' with the reason and what an execution said; '' if nobody asked.

    Examples
    --------
    >>> KernelPlan("fused_dense", "planned", "cpu.tiled register(i=14 j=32)", 2e-6).how
    'planned'
    """

    kernel: str
    how: str
    plan: str = ""
    predicted_s: float | None = None
    reason: str = ""
    calls: int = 1
    proof: str = ""

    def __post_init__(self) -> None:
        if self.how not in HOW:
            raise BadInput(must_be("how", f"one of {', '.join(HOW)}", self.how), "KernelPlan")


@dataclass(frozen=True)
class ModelReport:
    """The kernels of a model, each with its plan and its time.

    Parameters
    ----------
    target : str
    plans : tuple of KernelPlan
        In the order in which they were scheduled; empty if the model's file holds none.
    times : tuple of KernelTime
        The last profile run; empty before one.
    choices : tuple of str
        What was done because an exploration has chosen it, beside records.

    Examples
    --------
    >>> plan = KernelPlan("dense", "planned", "cpu.tiled register(i=14 j=32)", 2e-6)
    >>> report = ModelReport("llvm", (plan,), (KernelTime("dense", ("1x8", "1x4"), 2, 3e-6),))
    >>> ModelReport.from_json(report.to_json()) == report
    True
    >>> print(report)
    1 kernel for llvm: 1 Roller's plan
    predicted   measured   share  calls  kernel  schedule
       4.0 us     3.0 us  100.0%      2  dense   cpu.tiled register(i=14 j=32)
                  3.0 us                 all
    """

    target: str
    plans: tuple[KernelPlan, ...] = ()
    times: tuple[KernelTime, ...] = ()
    choices: tuple[str, ...] = ()

    @property
    def left_to_tvm(self) -> tuple[KernelPlan, ...]:
        """Kernels with TVM's own schedule."""
        return tuple(plan for plan in self.plans if plan.how == "tvm")

    def left(self) -> str:
        """Return the kernels with TVM's own schedule as a table, the longest first; '' if there are none.

        Examples
        --------
        >>> plans = [KernelPlan("dense", "planned", "cpu.tiled", 3e-6), KernelPlan("flip", "tvm", "", 1e-6, "why")]
        >>> print(ModelReport("llvm", tuple(plans)).left())
        1 of 2 kernels is not planned by Roller but as TVM left it; of the estimated time it takes 25%:
          25.0%  flip  why
        """
        if not (found := self.left_to_tvm):
            return ""
        total = sum(_whole(plan) for plan in self.plans) or 1.0
        rows: dict[tuple[str, str], tuple[float, int]] = {}
        for plan in found:  # kernels of one operator, "..._1" and "..._2", are one row
            key = re.sub(r"_?\d+$", "", _short(plan.kernel)), plan.reason
            share, count = rows.get(key, (0.0, 0))
            rows[key] = share + _whole(plan) / total, count + 1
        named = [(share, f"{name} ({count}x)" if count > 1 else name, reason)
                 for (name, reason), (share, count) in rows.items()]  # fmt: skip
        named.sort(key=lambda row: -row[0])
        wide = max(len(name) for _, name, _ in named[:SHOWN])
        share, many = sum(row[0] for row in named), len(found) > 1
        lines = [f"{len(found)} of {len(self.plans)} kernels {'are' if many else 'is'} not planned by Roller but as "
                 f"TVM left {'them' if many else 'it'}; of the estimated time {'they take' if many else 'it takes'} "
                 f"{share:.0%}:"]  # fmt: skip
        lines += [f"  {part:5.1%}  {name:{wide}}  {reason}".rstrip() for part, name, reason in named[:SHOWN]]
        if len(named) > SHOWN:
            rest = sum(part for part, _, _ in named[SHOWN:])
            lines.append(f"  {rest:5.1%}  {len(named) - SHOWN} more: the model's report")
        return "\n".join(lines)

    def proofs(self) -> str:
        """Return how many kernels are proven, and the reason of each that is not; '' if nobody asked.

        Examples
        --------
        >>> plans = [KernelPlan("dense", "planned", proof="proven"),
        ...          KernelPlan("take", "planned", proof="undecided: bounds (lv5[i]); all elements agree")]
        >>> print(ModelReport("llvm", tuple(plans)).proofs())
        1 of 2 kernels is proven; the other:
          take  undecided: bounds (lv5[i]); all elements agree
        """
        if not any(plan.proof for plan in self.plans):
            return ""
        rest = [plan for plan in self.plans if plan.proof != "proven"]
        count = len(self.plans) - len(rest)
        head = f"{count} of {len(self.plans)} kernels {'is' if count == 1 else 'are'} proven"
        if not rest:
            return head
        wide = max(len(_short(plan.kernel)) for plan in rest)
        rows = [f"  {_short(plan.kernel):{wide}}  {plan.proof or 'no schedule of its own'}" for plan in rest]
        return "\n".join([f"{head}; the other{'s' * (len(rest) > 1)}:", *rows])

    def with_times(self, times: Sequence[KernelTime]) -> ModelReport:
        """Return the report with the times of a profile run."""
        return replace(self, times=tuple(times))

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ModelReport:
        """Return the report that `to_json` took apart."""
        times = [KernelTime(**{**row, "arguments": tuple(row["arguments"])}) for row in data.get("times", ())]
        return cls(str(data["target"]), tuple(KernelPlan(**row) for row in data["plans"]), tuple(times),
                   tuple(map(str, data.get("choices", ()))))  # fmt: skip

    def members(self) -> dict[str, bytes]:
        """Return the plans as a member of a model's file."""
        return {MEMBER: json.dumps(replace(self, times=()).to_json()).encode()}

    def _rows(self) -> list[tuple[KernelPlan | None, KernelTime | None]]:
        """Plans beside times; what takes longest first, kernels that did not run last."""
        plans = {plan.kernel: plan for plan in self.plans}
        timed: list[tuple[KernelPlan | None, KernelTime | None]] = [
            (plans.get(t.name) or plans.get(t.name.removesuffix(IN_PLACE)), t) for t in self.times
        ]
        ran = {plan.kernel for plan, _ in timed if plan is not None}
        rest = [plan for plan in self.plans if plan.kernel not in ran]
        return [*timed, *((p, None) for p in sorted(rest, key=lambda p: -(p.predicted_s or 0.0)))]

    def __str__(self) -> str:
        counts = Counter(plan.how for plan in self.plans)
        told = ", ".join(f"{counts[how]} {words}" for how, words in HOW.items() if counts[how])
        head = f"{len(self.plans)} kernel{'s' * (len(self.plans) != 1)} for {self.target}: {told}"
        if not self.plans:
            head = f"plans of this model for {self.target} are not known: its file holds none"
        head = "\n".join([head, *(f"explored: {choice}" for choice in self.choices)])
        rows = self._rows()
        names = [_short(time.name if time else plan.kernel if plan else "") for plan, time in rows]
        wide = max([6, *map(len, names)])
        total = sum(time.seconds for time in self.times) or 1.0
        lines = [head, f"{'predicted':>9}  {'measured':>9}  {'share':>6}  {'calls':>5}  {'kernel':{wide}}  schedule"]
        for name, (plan, time) in zip(names, rows, strict=True):
            predicted = plan.predicted_s if plan else None
            calls = time.calls if time else None
            share = f"{time.seconds / total:6.1%}" if time else ""
            cells = f"{_us(predicted, calls or 1):>9}  {_us(time.seconds if time else None):>9}  {share:>6}  "
            lines.append(f"{cells}{calls if calls else '':>5}  {name:{wide}}  {_schedule(plan)}".rstrip())
        if self.times:
            lines.append(f"{'':9}  {_us(sum(t.seconds for t in self.times)):>9}  {'':6}  {'':5}  all")
        return "\n".join([*lines, *filter(None, (self.left(), self.proofs()))])


def report_of(path: Path) -> ModelReport:
    """Return the report kept in a model's file; an empty one if there is none."""
    try:
        return ModelReport.from_json(json.loads(read_members(path, (MEMBER,))[MEMBER]))
    except (*BROKEN, TypeError, AttributeError, BadInput):  # written by another program, or an older version
        return ModelReport(f"the target of {path.name}")


def _schedule(plan: KernelPlan | None) -> str:
    if plan is None:
        return ""
    if plan.how == "tvm":
        return f"TVM's own: {plan.reason}" if plan.reason else "TVM's own"
    tuned = "tuned record" if plan.how == "record" else ""
    return ": ".join(filter(None, [tuned, _cut(plan.plan, WIDE_PLAN)]))


def _short(name: str) -> str:
    return _cut(name.removeprefix("tvmgen_default_"), WIDE_NAME)


def _whole(plan: KernelPlan) -> float:
    """Seconds of all calls."""
    return (plan.predicted_s or 0.0) * plan.calls


def _us(seconds: float | None, calls: int = 1) -> str:
    return "" if seconds is None else f"{seconds * calls * 1e6:.1f} us"


def _cut(text: str, wide: int) -> str:
    return text if len(text) <= wide else text[: wide - 3] + "..."
