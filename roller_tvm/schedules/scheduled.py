"""An operator with a schedule: Roller's own, or one from a script, beside the model's prediction."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ..device import DeviceSpec, load_device
from ..errors import RollerError
from ..ir import TensorExpression
from ..ir.operators import operator as named
from ..planner.construct import construct
from ..planner.construction import RankedPlan
from ..planner.lower import lower
from ..roller.features import NO_FEATURES, Features
from .nest import LoopNest, nest_of
from .script import Script

#: Plans that a script is looked for among; of operators with several nests, fewer, as these combine.
_PLANS, _COMBINED = 4000, 400


@dataclass(frozen=True)
class Scheduled:
    """An operator, its schedule, and the plan of the model that the schedule is.

    Parameters
    ----------
    expression : TensorExpression
        The operator as it was read.
    script : Script
    device : DeviceSpec
    ranked : RankedPlan or None
        The plan with this very schedule, and its estimate; None where the model prices no such schedule.

    Examples
    --------
    >>> made = schedule("relu", shape=(64, 1024), device="v100")
    >>> made.script.steps[0].op, made.seconds < 1e-3
    ('fuse', True)
    >>> str(made).splitlines()[0]
    '# relu on v100'
    """

    expression: TensorExpression
    script: Script
    device: DeviceSpec
    ranked: RankedPlan | None = None

    @property
    def seconds(self) -> float | None:
        """Predicted time, None where the model has none."""
        return self.ranked.seconds if self.ranked is not None else None

    @property
    def nest(self) -> LoopNest:
        """The loop nest; raises ``ScheduleError`` for a command that does not apply."""
        return nest_of(self.script, self.expression, self.device)

    def __str__(self) -> str:
        head = [f"# {self.expression.name} on {self.device.name}"]
        head += [f"# I   {stage}" for stage in self.expression.stages]
        return "\n".join([*head, str(self.script), "#", *(f"# {line}" for line in str(self.nest).splitlines())])


def schedule(
    operator: Any, script: Script | str | None = None, device: DeviceSpec | str = "cpu",
    features: Features = NO_FEATURES, **params: Any,
) -> Scheduled:  # fmt: skip
    """Return the schedule of an operator: a script, checked and priced, or Roller's best.

    Parameters
    ----------
    operator : str, TensorExpression or sequence of te.Tensor
        A named operator with `params`, or a TE program (inputs, then outputs) of either TVM line.
    script : Script or str, optional
        By default, Roller's best plan.
    device : DeviceSpec or str
    features : Features
        Abilities of the line's schedules.

    Raises
    ------
    ScheduleError
        A command of the script does not apply.

    Examples
    --------
    >>> made = schedule("relu", shape=(64, 1024), device="v100")
    >>> again = schedule("relu", str(made), shape=(64, 1024), device="v100")
    >>> again.script == made.script, again.seconds == made.seconds
    (True, True)
    """
    spec = device if isinstance(device, DeviceSpec) else load_device(device)
    expression = _expression(operator, params)
    if script is None:
        best = construct(expression, spec, 1, features).best
        return Scheduled(expression, Script(lower(best.plan)), spec, best)
    given = script if isinstance(script, Script) else Script.read(script)
    made = Scheduled(expression, given, spec)
    _ = made.nest  # refuses what does not apply
    return replace(made, ranked=_priced(expression, given, spec, features))


def _expression(operator: Any, params: dict[str, Any]) -> TensorExpression:
    if isinstance(operator, TensorExpression):
        return operator
    if isinstance(operator, str):
        return named(operator, **params)
    from ..models.line import model_line
    from ..tvm_env.locate import usable_line

    found: TensorExpression = model_line(usable_line("reading TE tensors")).read(list(operator))
    return found


def _priced(
    expression: TensorExpression, script: Script, device: DeviceSpec, features: Features
) -> RankedPlan | None:  # fmt: skip
    """Return the plan that lowers to the script, if the model prices one."""
    try:
        first = construct(expression, device, 10, features).plans
        several = any(len(ranked.plan.programs) > 1 for ranked in first)
        more = construct(expression, device, _COMBINED if several else _PLANS, features).plans
    except RollerError:
        return None
    for ranked in (*first, *more):
        if lower(ranked.plan) == script.steps:
            return ranked
    return None
