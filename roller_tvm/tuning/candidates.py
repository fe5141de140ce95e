"""From an operator to candidates: read, planned, lowered; a line of TVM makes schedules of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from roller_tvm.device import DeviceSpec
from roller_tvm.errors import RollerError
from roller_tvm.internal import internal_error
from roller_tvm.ir.expression import TensorExpression
from roller_tvm.planner.construction import RankedPlan
from roller_tvm.planner.gpu_variants import plan_variants
from roller_tvm.planner.lower import lower
from roller_tvm.planner.plan_cache import plan_cache
from roller_tvm.roller.features import Features
from roller_tvm.roller.steps import Step

Steps = tuple[Step, ...]


@dataclass(frozen=True)
class Operator:
    """An operator as a line of TVM has read it.

    Parameters
    ----------
    expression : TensorExpression
    features : Features
        Abilities of the line's schedules.
    apply : function of steps
        Returns the line's schedule; raises ``MeasureError`` if a step does not apply.
    reading : object
        The line's own.
    forms : function of (steps, number of the plan)
        Returns the forms in which the line tries a plan, best first; by default its steps alone.
    """

    expression: TensorExpression
    features: Features
    apply: Callable[[Steps], Any]
    reading: Any = None
    forms: Callable[[Steps, int], Sequence[Steps]] = lambda steps, number: (steps,)


@dataclass(frozen=True)
class Candidate:
    """A plan of an operator in one form.

    Parameters
    ----------
    ranked : RankedPlan
    number : int
        Its place among the operator's plans, from 0; other forms of the plan have the same.
    steps : tuple of Step
    operator : Operator
    """

    ranked: RankedPlan
    number: int
    steps: Steps
    operator: Operator

    @property
    def reading(self) -> Any:
        return self.operator.reading

    def schedule(self) -> Any:
        """Return a fresh schedule with the steps applied; raises ``MeasureError`` if one does not apply."""
        return self.operator.apply(self.steps)


@dataclass
class Candidates:
    """Candidates of one operator by predicted time.

    Parameters
    ----------
    plans : list of Candidate
        Best first, no two with the same steps.
    reason : str
        Why there is none, or ''.
    refused : RollerError or None
        Error of the reason, if it was one.
    failures : list of str
        Plans that could not be lowered, and those whose steps did not apply (recorded by `schedules`).
    plan_ms : float
        Milliseconds of reading and construction.
    flops : float
    """

    plans: list[Candidate] = field(default_factory=list)
    reason: str = ""
    refused: RollerError | None = None
    failures: list[str] = field(default_factory=list)
    plan_ms: float = 0.0
    flops: float = 0.0
    #: Whether the operator was scheduled before, so that it is left alone.
    scheduled: bool = False

    def schedules(self, wanted: Callable[[Candidate], bool] = lambda plan: True) -> Iterator[tuple[Candidate, Any]]:
        """Yield the wanted candidates whose steps apply, each with its schedule; record failures."""
        for plan in filter(wanted, self.plans):
            try:
                schedule = plan.schedule()
            except RollerError as error:
                self.failures.append(error.what)
            except Exception as error:  # a bug of one recipe; the other plans are used
                self.failures.append(internal_error(error, "lowering", plan.operator.expression))
            else:
                yield plan, schedule

    def applied(self) -> list[tuple[Candidate, Any]]:
        """Return the candidates whose steps apply, each with its schedule; without any, `reason` says so."""
        found = list(self.schedules())
        if not found and not self.reason:
            self.reason = self.why_none()
        return found

    def why_none(self) -> str:
        """Return the reason that there is no schedule."""
        return self.reason or f"no plan could be applied: {(self.failures or ['none made'])[0]}"


def find_candidates(
    name: str, read: Callable[[], Operator], device: DeviceSpec, top: int, flops: float = 0.0,
    enough: int | None = None,
) -> Candidates:  # fmt: skip
    """Plan an operator. Nothing is raised if that fails: the result contains the reason.

    Parameters
    ----------
    name : str
        The operator, for reports of bugs before it is read.
    read : function
        Returns the operator; raises ``UnsupportedOperator``.
    top : int
        Plans wanted.
    flops : float
        Floating-point operations, if the expression counts none.
    enough : int, optional
        Plans of these that are lowered; by default all.
    """
    result = Candidates(flops=flops)
    operator: Any = None
    start = time.perf_counter()
    try:
        operator = read()
        result.flops = float(operator.expression.flops) or flops
        plans = _plans(operator, device, top)
    except RollerError as error:
        result.reason, result.refused = error.what + (f" ({error.where})" if error.where else ""), error
        return result
    except Exception as error:  # a bug of the planner; TVM's own schedule is used
        result.reason = internal_error(error, "planner", operator.expression if operator else name)
        return result
    finally:
        result.plan_ms = (time.perf_counter() - start) * 1e3
    known: set[Steps] = set()
    for number, ranked in enumerate(plans):
        if len(result.plans) == enough:
            break
        try:
            forms = operator.forms(tuple(lower(ranked.plan)), number)
        except RollerError as error:
            result.failures.append(error.what)
            continue
        except Exception as error:  # a bug of one recipe; the other plans are used
            result.failures.append(internal_error(error, "lowering", operator.expression))
            continue
        for steps in forms:
            if steps not in known:  # two plans can come to the same kernel
                known.add(steps)
                result.plans.append(Candidate(ranked, number, steps, operator))
    return result


def _plans(operator: Operator, device: DeviceSpec, top: int) -> list[RankedPlan]:
    cache = plan_cache()
    plans = list(cache.construct(operator.expression, device, top, operator.features).plans)
    if operator.features.tensor_cores and all(ranked.plan.on_tensor_cores for ranked in plans):
        plans += cache.construct(operator.expression, device, 1).plans  # in case TVM finds no product in the function
    if device.kind == "gpu":  # last of all, in case every plan spills
        plans += plan_variants(plans[0])
    return plans
