"""Device and features that an operator is planned for on a TVM line. Imports no TVM, which takes a second."""

from __future__ import annotations

from dataclasses import replace

from ..device import DeviceSpec
from ..roller.features import Features
from ..tvm_env import Line

#: The LLVM of the Relax line's TVM broadcasts a value where it is used (seen in its code for register tiles of 14 x 2
#: and 4 x 4 vectors; the Relay line's LLVM 10 keeps all of a tile's in registers, or in memory).
BROADCAST_REGISTERS = 1


def planning_on(line: Line, device: DeviceSpec) -> tuple[DeviceSpec, Features]:
    """Return the device to plan for, and the features of a line's schedules.

    Examples
    --------
    >>> from roller_tvm.device import load_device
    >>> device, features = planning_on(Line.RELAX, load_device("v100"))
    """
    if line is Line.RELAX:
        return with_relax_llvm(device), Features.of_tensor_ir(device)
    return device, Features.of_te(device)


def with_relax_llvm(device: DeviceSpec) -> DeviceSpec:
    """Return a CPU with what the LLVM of the Relax line makes of its registers."""
    if device.kind != "cpu" or device.limits.broadcast_registers is not None:
        return device
    return replace(device, limits=replace(device.limits, broadcast_registers=BROADCAST_REGISTERS))
