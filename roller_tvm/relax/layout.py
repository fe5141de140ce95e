"""PlanLayout: channels of a convolutional network's activations in the lanes of vectors, where the model says it pays.

Importers leave networks as NCHW, where the lanes of a vector are pixels of a row: at 7x7 more than half of them are
idle, and every access is checked for padding. Which arrangement is better, and for which convolutions, is predicted:
seconds of each convolution in each arrangement, and of the transformations at the borders.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tvm
from tvm import relax

from ..device import DeviceSpec
from .arrangement import Arrangement
from .arranging import Arranger, Convolutions, arrangeable
from .dead_code import without_dead_code
from .devices import device_of, find_target
from .layout_cost import LayoutCosts
from .modules import with_functions


@dataclass
class LayoutReport:
    """Report of the pass: chosen arrangement, convolutions arranged, predicted seconds of each alternative.

    Of an alternative that its convolutions alone make slower than another, these are all that was predicted.

    `winograd` of the convolutions are computed by Winograd's algorithm.
    """

    chosen: str = "NCHW"
    convolutions: int = 0
    transformations: int = 0
    winograd: int = 0
    predicted: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0

    def __str__(self) -> str:
        times = ", ".join(f"{name} {s * 1e3:.2f} ms" for name, s in self.predicted.items())
        return (
            f"PlanLayout: {self.chosen}, {self.convolutions} convolutions ({self.winograd} by Winograd's algorithm), "
            f"{self.transformations} transformations "
            f"(predicted: {times}; {self.seconds:.1f} s)"
        )


@tvm.transform.module_pass(opt_level=0, name="PlanLayout")
class PlanLayout:
    """Arrange the activations of convolutional networks for vectors, where the model predicts a gain.

    Put it before ``LegalizeOps`` and after constants were folded; weights must be constants. On a target that is not a
    CPU, nothing changes.

    Parameters
    ----------
    target : Target, dict or str, optional
        By default the target in whose scope the pass runs.
    device : DeviceSpec or str, optional
        By default the one that follows from the target.
    only : {'NCHW', 'NHWC', 'blocked'}, optional
        Insist on an arrangement.
    winograd : bool
        Whether convolutions may be computed by Winograd's algorithm, which is less exact (``te.winograd``), where the
        model predicts a gain.

    Attributes
    ----------
    report : LayoutReport
        What the last run did with the function that has most convolutions.

    Examples
    --------
    >>> mod = PlanLayout({"kind": "llvm", "num-cores": 2})(mod)
    """

    def __init__(
        self, target: Any = None, device: DeviceSpec | str | None = None, only: str | None = None,
        winograd: bool = True,
    ) -> None:  # fmt: skip
        self.target, self.device, self.only, self.winograd = target, device, only, winograd
        self.report = LayoutReport()

    def transform_module(self, mod: Any, _context: Any) -> Any:
        """The module with its functions arranged."""
        start = time.perf_counter()
        device = device_of(self.device, find_target(self.target))
        self.report = LayoutReport()
        if device.kind != "cpu" or self.only == "NCHW":
            return mod
        result, costs = mod, LayoutCosts(device, self.winograd)
        for var, func in mod.functions_items():
            if isinstance(func, relax.Function) and not (func.attrs and "Primitive" in func.attrs):
                found = _best(result, func, costs, _arrangements(device, self.only), self.report)
                if found is not None:
                    result = with_functions(found[0], {found[0].get_global_var(var.name_hint): found[1]})
        self.report.seconds = time.perf_counter() - start
        return result if result is mod else without_dead_code(result)


def _arrangements(device: DeviceSpec, only: str | None) -> list[Arrangement]:
    lanes = max(1, device.vector_bytes // 4)
    return [a for a in (Arrangement(), Arrangement(lanes)) if only in (None, a.name, "blocked" if a.block else "NHWC")]


def _best(
    mod: Any, func: Any, costs: LayoutCosts, arrangements: list[Arrangement], report: LayoutReport
) -> tuple[Any, Any] | None:
    """Module and function of the arrangement with the least predicted time; None where the function stays as it is."""
    convs = Convolutions()
    convs.visit_expr(func)
    if not convs.found or convs.branches:
        return None
    costs.ask((c, a) for c in convs.found.values() for a in (None, *arrangements) if a is None or arrangeable(c, a))
    alone = {var: costs.convolution(c, None) for var, c in convs.found.items()}
    plain = sum(alone.values())
    predicted = {"NCHW": plain}
    best: tuple[float, str, Any, Any, Arranger] | None = None
    known: dict[tuple[int, int], np.ndarray] = {}
    made: dict[Any, Any] = {}
    insisted = len(arrangements) == 1
    alternatives = []
    for arrangement in arrangements:
        every = {var for var, c in convs.found.items() if arrangeable(c, arrangement)}
        gains = {var for var in every if costs.convolution(convs.found[var], arrangement) < alone[var]}
        for wanted in [gains, every] if gains != every else [every]:
            if wanted:
                own = [costs.convolution(c, arrangement) if v in wanted else alone[v] for v, c in convs.found.items()]
                alternatives.append((sum(own), arrangement, wanted))
    # Transformations come on top: an alternative that is slower without them is not made.
    for seconds, arrangement, wanted in sorted(alternatives, key=lambda one: one[0]):
        arranger = None
        if seconds < (plain if best is None else best[0]) or (insisted and best is None):
            arranger = Arranger(mod, arrangement, wanted, convs.found, costs.tile, costs.strip, known, made)
            changed = arranger.visit_expr(func)
            seconds += sum(costs.transformation(shape, arrangement) for shape in arranger.transformed)
        predicted[arrangement.name] = min(seconds, predicted.get(arrangement.name, seconds))
        if arranger is not None and (best is None or seconds < best[0]):
            best = seconds, arrangement.name, arranger.builder_.get(), changed, arranger
    if len(convs.found) > report.convolutions:
        report.predicted = predicted
    if best is None or (best[0] >= plain and not insisted):
        return None
    if best[4].arranged_convs > report.convolutions:
        report.chosen, report.convolutions = best[1], best[4].arranged_convs
        report.transformations = len(best[4].transformed)
        report.winograd = best[4].winograd_convs
    return best[2], best[3]
