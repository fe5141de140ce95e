"""From a PrimFunc to candidates: read, planned, lowered, as TensorIR schedules."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from ..device import DeviceSpec
from ..errors import MeasureError, RollerError, UnsupportedOperator
from ..planner.construction import RankedPlan
from ..roller.steps import Step
from .nodes import AlreadyScheduled
from .read import TirReading


@dataclass(frozen=True)
class Candidate:
    """A plan of a function and its steps; `schedule` makes the TensorIR schedule of them.

    Parameters
    ----------
    func : PrimFunc
    reading : TirReading
    ranked : RankedPlan
    steps : tuple of Step
    """

    func: Any
    reading: TirReading
    ranked: RankedPlan
    steps: tuple[Step, ...]

    def schedule(self) -> Any:
        """Return a fresh ``s_tir.Schedule`` with the steps applied; raises ``MeasureError`` if one does not apply."""
        from ..codegen.apply_tensorir import apply_steps_tir

        return apply_steps_tir(self.func, self.reading, self.steps)


@dataclass
class Candidates:
    """Plans of one function by predicted time.

    Parameters
    ----------
    plans : list of Candidate
        Best first, no two with the same steps.
    reason : str
        Why there is no plan, or ''.
    scheduled : bool
        True if the function was scheduled already, so that it is left alone.
    failures : list of str
        Plans whose steps did not apply, recorded by `schedules`.
    plan_ms : float
        Milliseconds of reading and construction.
    flops : float
    """

    plans: list[Candidate] = field(default_factory=list)
    reason: str = ""
    scheduled: bool = False
    failures: list[str] = field(default_factory=list)
    plan_ms: float = 0.0
    flops: float = 0.0

    def schedules(self) -> Iterator[tuple[Candidate, Any]]:
        """Yield the candidates whose steps apply, each with its schedule; record the others in `failures`."""
        for plan in self.plans:
            try:
                yield plan, plan.schedule()
            except RollerError as error:
                self.failures.append(error.what)
            except Exception as error:  # a defect of one recipe must not stop the other plans
                self.failures.append(f"lowering: {type(error).__name__}: {str(error)[:200]}")


def _tensor_cores(ranked: RankedPlan) -> bool:
    return any(program.recipe == "gpu.tensor" for program in ranked.plan.programs)


def make_candidates(
    func: Any, device: DeviceSpec, top: int = 10, constants: Collection[str | int] = (), name: str | None = None,
    tf32: bool = False,
) -> Candidates:  # fmt: skip
    """Plan a PrimFunc. Nothing is raised if that fails: the result contains the reason.

    Parameters
    ----------
    func : PrimFunc
        A function that is not scheduled yet.
    device : DeviceSpec
    top : int
        Plans wanted.
    constants : collection of str or int
        Parameters whose values are known at build time.
    name : str, optional
        Name of the operator, in plans and messages.
    tf32 : bool
        True if products of float32 may be rounded to tf32, for tensor cores.

    Examples
    --------
    >>> found = make_candidates(func, device, top=3)  # doctest: +SKIP
    >>> candidate, schedule = next(found.schedules())  # doctest: +SKIP
    """
    from ..planner import construct
    from ..planner.gpu_variants import plan_variants
    from ..planner.lower import lower
    from ..roller.features import Features
    from .read import read_prim_func

    result = Candidates()
    start = time.perf_counter()
    try:
        reading = read_prim_func(func, name=name, constants=constants)
        result.flops = float(reading.expression.flops)
        features = Features.of_tensor_ir(device, tf32)
        plans = list(construct(reading.expression, device, top, features).plans)
        if features.tensor_cores and all(_tensor_cores(ranked) for ranked in plans):
            plans += construct(reading.expression, device, 1).plans  # in case TVM finds no product in the function
        if device.kind == "gpu":  # last of all, in case every plan spills
            plans += plan_variants(plans[0])
        known: set[tuple[Step, ...]] = set()
        for ranked in plans:
            steps = tuple(lower(ranked.plan))
            if steps not in known:  # two plans can come to the same kernel
                known.add(steps)
                result.plans.append(Candidate(func, reading, ranked, steps))
    except AlreadyScheduled as error:
        result.reason, result.scheduled = error.what, True
    except (UnsupportedOperator, MeasureError) as error:
        result.reason = error.what + (f" ({error.where})" if error.where else "")
    except Exception as error:  # a defect of the planner must not stop the other functions
        result.reason = f"planner error: {type(error).__name__}: {str(error)[:200]}"
    result.plan_ms = (time.perf_counter() - start) * 1e3
    return result
