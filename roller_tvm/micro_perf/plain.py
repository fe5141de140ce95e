"""Time of a kernel that TVM scheduled, roughly: for its share of a model's time where Roller has no plan."""

from __future__ import annotations

from ..device import DeviceSpec

#: Share of a GPU's peak that TVM's default schedules are taken to reach; on a CPU, one core computes one at a time.
SHARE = 0.1


def plain_seconds(operations: float, size: float, device: DeviceSpec) -> float:
    """Return the seconds of a number of operations on `size` bytes of operands.

    Examples
    --------
    >>> from roller_tvm.device import load_device
    >>> cpu = load_device("cpu")
    >>> plain_seconds(1e9, 4, cpu) == 1 / cpu.clock_ghz
    True
    """
    rate = device.clock_ghz if device.kind == "cpu" else SHARE * device.peak("float32")
    return max(operations / rate, size / device.far.bandwidth_gbps) / 1e9
