"""ScheduleWithRoller: a module pass that schedules every PrimFunc left unscheduled, in seconds, without measuring."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any

import tvm
import tvm_ffi
from tvm.s_tir import renew_defs

from ..codegen.flat import number_of
from ..codegen.kernel_cache import kernel_cache
from ..codegen.tensorir_packing import constant_parameters
from ..device import DeviceSpec
from ..errors import RollerError, TargetError, UnsupportedOperator
from ..forks import shared
from ..internal import internal_error
from ..ir.stage import DTYPE_BYTES
from ..micro_perf.plain import plain_seconds
from ..models import last_line
from ..planner.family_values import TYPICAL
from ..progress import counted
from ..te.numbering import dtype_of_node
from ..tir.nodes import parameters, tensors_of
from ..tir.open_axes import is_open
from ..tuning.candidates import Candidates
from ..tuning.model_report import KernelPlan
from .candidates import make_candidates
from .devices import device_of, find_target
from .kept_schedules import KeptSchedule
from .lowered import require_lowered
from .marks import ORIGIN, PLANNED
from .open_schedule import Likely, OpenFunction
from .rewrites import MARKS
from .size_checks import likely_sizes
from .structures import Function

SCHEDULED = "tirx.is_scheduled"


@dataclass(frozen=True)
class Note:
    """The outcome of scheduling one PrimFunc.

    Parameters
    ----------
    name : str
    recipe : str
        Recipes of its plan, or '' where it was left as it was.
    predicted_us : float
        Of a function that was left, a rough estimate.
    reason : str
        Why it was left.
    plan : str
        Recipes and tiles of its plan.
    """

    name: str
    recipe: str = ""
    predicted_us: float = 0.0
    reason: str = ""
    plan: str = ""

    def words(self) -> dict[str, Any]:
        """Return what is told of a schedule of any function."""
        return {"recipe": self.recipe, "predicted_us": self.predicted_us, "plan": self.plan}

    def __str__(self) -> str:
        if not self.recipe:
            return f"{self.name}: left as it was, {self.reason}"
        return f"{self.name}: {self.recipe}, predicted {self.predicted_us:.1f} us"


@dataclass
class Report:
    """Notes on each PrimFunc, and the seconds of the pass.

    Parameters
    ----------
    recorded : list of str
        Functions that records had scheduled before.
    renamed : dict
        Function -> its name in the built model, if packing its weights changed that.
    calls : Counter
        How often the module calls each function.
    proofs : dict
        Function -> what is proven of it, if that was asked.
    choices : list of str
        What was done because an exploration has chosen it.
    """

    notes: list[Note] = field(default_factory=list)
    seconds: float = 0.0
    recorded: list[str] = field(default_factory=list)
    renamed: dict[str, str] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)
    proofs: dict[str, str] = field(default_factory=dict)
    choices: list[str] = field(default_factory=list)

    @property
    def scheduled(self) -> list[Note]:
        return [n for n in self.notes if n.recipe]

    @property
    def left(self) -> list[Note]:
        return [n for n in self.notes if not n.recipe]

    def kernels(self) -> tuple[KernelPlan, ...]:
        """Return the schedule of each kernel, for the report of a model."""
        found = [KernelPlan(n.name, "planned", n.plan, n.predicted_us * 1e-6) for n in self.scheduled]
        found += [KernelPlan(name, "record") for name in self.recorded]
        found += [
            KernelPlan(n.name, "tvm", predicted_s=n.predicted_us * 1e-6, reason=n.reason)
            for n in self.left if n.name not in self.recorded
        ]  # fmt: skip
        return tuple(
            replace(plan, kernel=self.renamed.get(plan.kernel, plan.kernel), calls=self.calls[plan.kernel] or 1,
                    proof=self.proofs.get(plan.kernel, ""))
            for plan in found
        )  # fmt: skip

    def __str__(self) -> str:
        head = f"ScheduleWithRoller: {len(self.scheduled)} of {len(self.notes)} functions in {self.seconds:.1f} s"
        return "\n".join([head, *(f"  {note}" for note in self.notes)])


@tvm.transform.module_pass(opt_level=0, name="ScheduleWithRoller")
class ScheduleWithRoller:
    """Schedule every PrimFunc that is not scheduled yet with the plan that the model thinks best.

    Works like ``dlight.ApplyDefaultSchedule``: put it after ``FuseTIR``, and dlight (or nothing) behind it for the
    functions that it leaves. The module that is given is not changed.

    Parameters
    ----------
    target : Target, dict or str, optional
        By default the target in whose scope the pass runs; a function's own, where it has one, goes first.
    device : DeviceSpec or str, optional
        By default the one that follows from the target.
    top : int
        Plans tried where the first ones cannot be applied.
    tf32 : bool
        Let tensor cores compute products of float32, whose operands they read as tf32: rounded to ten bits of
        fraction. Answers change, so it is off unless asked for.
    progress : function of str, optional
        Receives the number and the name of each function before it is planned.

    Attributes
    ----------
    report : Report
        What the last run did.

    Examples
    --------
    >>> with tvm.target.Target({"kind": "llvm", "num-cores": 2}):
    ...     mod = ScheduleWithRoller()(mod)
    """

    def __init__(
        self, target: Any = None, device: DeviceSpec | str | None = None, top: int = 4, tf32: bool = False,
        progress: Callable[[str], None] | None = None,
    ) -> None:  # fmt: skip
        self.target, self.device, self.top, self.tf32, self.progress = target, device, top, tf32, progress
        self.report, self._ahead = Report(), False

    def transform_module(self, mod: Any, _context: Any) -> Any:
        """The module with its functions scheduled."""
        require_lowered(mod)
        start, report = time.perf_counter(), self.report
        report.notes.clear()
        result = {}
        found = list(self._to_plan(mod))
        tell, self._ahead = counted(None if self._ahead else self.progress, "plan", len(found)), False
        for var, func, device, planned in found:
            name = str(var.name_hint)
            tell(name)
            scheduled, note = planned()
            if scheduled is None:
                note = replace(note, predicted_us=_plain_seconds(func, device) * 1e6)
            else:
                result[var] = named_as(scheduled, func)
            report.notes.append(replace(note, name=name))
        report.calls = _calls(mod)
        changed = tvm.IRModule(dict(mod.functions_items()), attrs=mod.attrs, global_infos=mod.global_infos)
        for var, func in result.items():
            changed.update_func(var, func)
        report.seconds = time.perf_counter() - start
        return changed

    def plan_ahead(self, mod: Any, also: Callable[[Any], object] = lambda func: None) -> None:
        """Plan the functions on all cores; what was planned is known to this pass and to those before it.

        Parameters
        ----------
        also : function of PrimFunc
            Asks of a function, once it is planned, what a pass between will; keeps the answer on disk.
        """
        distinct: dict[Any, tuple[Any, Any]] = {}
        for var, _, _, planned in self._to_plan(mod):
            distinct.setdefault(planned.args, (var, planned))

        tell, self._ahead = counted(self.progress, "plan", len(distinct)), True

        def plan(one: tuple[int, tuple[Any, Any]]) -> None:
            place, (var, planned) = one
            tell(str(var.name_hint), place)
            planned()
            also(planned.args[0].func)

        shared(plan, list(enumerate(distinct.values())), kernel_cache())

    def _to_plan(self, mod: Any) -> Iterator[tuple[Any, Any, DeviceSpec, Any]]:
        """Yield each function to plan, with its variable, its device and the function that plans it."""
        likely = likely_sizes(mod)
        for var, func in mod.functions_items():
            if type(func).__name__ != "PrimFunc" or any(func.attrs.get(mark) for mark in PLANNED):
                continue
            own = _own_target(func)
            target = find_target(self.target) if own is None else own
            device = self._device(target, own is not None)
            asked = Function(func), device, str(target), self.top, self.tf32
            planned = partial(_open_planned, *asked, likely) if is_open(func) else partial(_planned, *asked)
            yield var, func, device, planned

    def _device(self, target: Any, own: bool) -> DeviceSpec:
        """The device that was given, but for a function of another kind of target, which has its own."""
        try:
            return device_of(self.device, target)
        except TargetError:
            if own:
                return device_of(None, target)
            raise


def _calls(mod: Any) -> Counter[str]:
    """How often the Relax functions of a module call each of its functions."""
    found: Counter[str] = Counter()
    for _, func in mod.functions_items():
        if type(func).__name__ != "PrimFunc":
            used: list[Any] = []
            tvm_ffi.structural_walk(func.body, (tvm.ir.GlobalVar, used.append))
            found.update(str(var.name_hint) for var in used)
    return found


def _plain_seconds(func: Any, device: DeviceSpec) -> float:
    """A rough estimate of the time of a function as TVM left it: its loops and its operands."""
    elements = size = 0

    def extent(node: Any) -> int:
        known = number_of(node)
        return TYPICAL if known is None else known

    def block(node: Any) -> None:
        nonlocal elements
        elements += math.prod(extent(iv.dom.extent) for iv in node.iter_vars) if node.iter_vars else 0

    tvm_ffi.structural_walk(func.body, (tvm.s_tir.SBlock, block))
    for buffer in tensors_of(func):
        size += math.prod(map(extent, buffer.shape)) * DTYPE_BYTES.get(str(buffer.dtype), 4)
    return plain_seconds(elements, size, device)


def _own_target(func: Any) -> Any:
    """The target that a function is for whatever the module is built for: the host's, say; None where it has none."""
    return func.attrs["target"] if func.attrs and "target" in func.attrs else None


def named_as(scheduled: Any, func: Any) -> Any:
    """`scheduled` with the attributes of `func`."""
    result = scheduled
    for name, _ in (result.attrs or {}).items():
        result = result.without_attr(name)
    for name, value in (func.attrs or {}).items():
        result = result.with_attr(name, value)
    # Whoever builds it in this process, has whole vectors.
    return result.with_attr(SCHEDULED, True).with_attr(MARKS["edge_vectors"], True)


def kernel_like(func: Any, params: Sequence[Any], body: Any, marks: Mapping[str, Any]) -> Any:
    """Return a kernel that is planned elsewhere, in the place of `func`, for whose target it is."""
    own = func.attrs or {}
    kept = {name: own[name] for name in ("target", "s_tir", ORIGIN) if own.get(name) is not None}
    attrs = {SCHEDULED: True, "tirx.noalias": True, **marks, **kept}
    return renew_defs(tvm.tirx.PrimFunc(list(params), body).with_attrs(attrs))


@lru_cache(maxsize=1024)  # networks repeat themselves, and so do builds of one network
def _planned(function: Function, device: DeviceSpec, target: str, top: int, tf32: bool) -> tuple[Any, Note]:
    """Return a function with the schedule of the best plan that can be applied; None and the reason if none can."""
    name = str(function.func.attrs.get("global_symbol", "main")) if function.func.attrs else "main"
    try:
        buffers = parameters(function.func)
    except UnsupportedOperator as error:  # it takes a number, an open extent say
        return None, Note(name, reason=error.what)
    if any(number_of(extent) == 0 for buffer in buffers for extent in buffer.shape):
        return None, Note(name, reason="a tensor has no elements, so that there is nothing to plan")
    kept = KeptSchedule.of(function, device, target, top, tf32)
    if (known := kept.read()) is not None:
        return known[0], Note(name, **known[1])
    found = make_candidates(function.func, device, top, constant_parameters(function.func), name, tf32)
    scheduled, note = _best(found, name, find_target(target))
    if scheduled is not None and not found.failures:  # a failure is told each time
        kept.write(scheduled, note.words())
    return scheduled, note


@lru_cache(maxsize=1024)
def _open_planned(
    function: Function, device: DeviceSpec, target: str, _top: int, tf32: bool, likely: Likely = ()
) -> tuple[Any, Note]:
    """Return a function of open extents with kernels for all sizes; None and the reason if there are none."""
    name = str(function.func.attrs.get("global_symbol", "main")) if function.func.attrs else "main"
    kept = KeptSchedule.of(function, device, target, "open", tf32, likely)
    if (known := kept.read()) is not None:
        return known[0], Note(name, **known[1])
    try:
        opened = OpenFunction(function.func, device, name, tf32, likely)
        scheduled, family = next(opened.schedules())
    except RollerError as error:
        return None, Note(name, reason=error.what)
    except Exception as error:  # a bug of a recipe or of this; TVM's own schedule is used
        return None, Note(name, reason=internal_error(error, "open extents", name))
    if reason := refused(scheduled, find_target(target)):
        return None, Note(name, reason=reason)
    recipes = " + ".join(dict.fromkeys(p.recipe for m in family.members for p in m.ranked.plan.programs))
    plan = "; ".join(str(family).splitlines())
    note = Note(name, recipes, family.seconds(opened.sizes()) * 1e6, plan=plan)
    kept.write(scheduled, note.words())
    return scheduled, note


def _best(found: Candidates, name: str, target: Any) -> tuple[Any, Note]:
    for candidate, schedule in found.schedules():
        if reason := refused(schedule.mod["main"], target):
            found.failures.append(reason)
            continue
        plan = candidate.ranked.plan
        recipes = " + ".join(dict.fromkeys(p.recipe for p in plan.programs))
        return schedule.mod["main"], Note(name, recipes, candidate.ranked.seconds * 1e6, plan=plan.words())
    return None, Note(name, reason=found.why_none())


def refused(func: Any, target: Any) -> str:
    """Why TVM cannot build a kernel, or ''; asked where it is known to happen.

    Its legalization of bfloat16 on CPUs takes some vectorised stores for values of another type. Its simplifier makes
    an error of a division by what turns out to be 0 once one stage stands in another (``x - x``).
    """
    if target.kind.name != "llvm":
        return ""
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    if all(str(b.dtype) != "bfloat16" for b in tensors_of(func)):
        return _error_of(tvm.s_tir.transform.StmtSimplify(), mod) if _divides(func) else ""
    return _error_of(lambda mod: tvm.compile(mod, target), mod)


def _divides(func: Any) -> bool:
    """Return whether a function divides anything but integers, whose divisors are checked on their own."""
    found: list[bool] = []
    tvm_ffi.structural_walk(func.body, (tvm.tirx.Div, lambda node: found.append("float" in dtype_of_node(node))))
    return any(found)


def _error_of(build: Callable[[Any], Any], mod: Any) -> str:
    try:
        build(mod)
    except Exception as error:  # whatever its passes raise
        return f"TVM cannot build it: {last_line(error)}"
    return ""
