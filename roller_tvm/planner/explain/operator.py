"""The least that an operator asks of a device: arithmetic, compulsory traffic, roofline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...device import DeviceSpec
from ...ir import TensorExpression
from ...recipes import RECIPES
from ...roller.rprogram import RProgram
from .words import amount, seconds


@dataclass(frozen=True)
class Roofline:
    """The least time that an operator can take: all arithmetic at the peak, every tensor moved once.

    Examples
    --------
    >>> from roller_tvm.device import load_device
    >>> from roller_tvm.ir.operators import matmul
    >>> roofline(matmul(m=1024, n=1024, k=1024), load_device("v100")).bound
    'compute'
    """

    flops: int
    bytes: int
    compute_seconds: float
    memory_seconds: float
    far: str

    @property
    def seconds(self) -> float:
        return max(self.compute_seconds, self.memory_seconds)

    @property
    def bound(self) -> str:
        return "compute" if self.compute_seconds >= self.memory_seconds else self.far

    @property
    def intensity(self) -> float:
        return self.flops / max(1, self.bytes)


def peak_of(expression: TensorExpression, device: DeviceSpec, programs: Sequence[RProgram] = ()) -> float:
    """Return the peak in GFLOP/s of the units that compute the anchor: tensor cores if a program uses them."""
    special = (RECIPES[p.recipe].peak(expression, p, device) for p in programs)
    return next((peak for peak in special if peak is not None), device.peak(expression.anchor.dtype))


def roofline(expression: TensorExpression, device: DeviceSpec, programs: Sequence[RProgram] = ()) -> Roofline:
    """Return the roofline of a fused operator, for the units that the programs use."""
    flops, moved = expression.flops, expression.io_bytes
    return Roofline(
        flops,
        moved,
        flops / (peak_of(expression, device, programs) * 1e9),
        moved / (device.far.bandwidth_gbps * 1e9),
        device.far.name,
    )


def operator_lines(
    expression: TensorExpression, device: DeviceSpec, programs: Sequence[RProgram] = ()
) -> list[str]:
    """Return lines on the operator and the best that the device could reach."""
    anchor, roof = expression.anchor, roofline(expression, device, programs)
    dtype = anchor.dtype
    fused = [
        f"{', '.join(s.name for s in stages)} {where}"
        for stages, where in ((expression.prologues, "before"), (expression.epilogues, "after"))
        if stages
    ]
    rate, far = peak_of(expression, device, programs), device.far
    peak, balance = amount(rate * 1e9, "FLOP/s"), rate / far.bandwidth_gbps
    side = "above" if roof.intensity >= balance else "below"
    return [
        f"operator {expression.name}: {anchor}" + (f"; fused: {'; '.join(fused)}" if fused else ""),
        f"  {amount(roof.flops, 'FLOP')}, compulsory traffic {amount(roof.bytes, 'B')}: intensity "
        f"{roof.intensity:.1f} FLOP/B, {side} the machine balance of {balance:.1f} ({far.name}, {dtype})",
        f"  roofline: compute {seconds(roof.compute_seconds)} at {peak}, {far.name} "
        f"{seconds(roof.memory_seconds)} at {amount(far.bandwidth_gbps * 1e9, 'B/s')}: "
        f"{seconds(roof.seconds)} at best, {roof.bound} bound",
    ]
