"""What a schedule can say beside loops: asked for with a construction, nothing by default.

A plan made without features is the same on every TVM; one made with them is for the line whose schedules have words
for them.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

from ..device import DeviceSpec

#: First architecture with the instructions that are used, by the PTX ISA ("Target ISA notes" of mma.m16n8k16 and
#: cp.async).
_FIRST_ARCH = 80


@dataclass(frozen=True)
class Features:
    """Words that schedules have on a line, for what the device has.

    Parameters
    ----------
    tensor_cores : bool
        Products of matrices by instructions of a whole warp.
    async_copy : bool
        Copies into shared memory that run ahead of what reads them, past the registers.
    dynamic_shared : bool
        Shared memory beyond the static limit, as far as the device lets a block opt in.
    tf32 : bool
        Products of float32 on tensor cores, whose operands are rounded to ten bits of fraction: only where a user
        allows it, since answers change.
    turned_copies : bool
        Copies whose dimensions stand in another order than the tensor's (on CPUs).
    uneven_lanes : bool
        Reductions in lanes that do not divide them (on CPUs).

    Examples
    --------
    >>> from roller_tvm.device import load_device
    >>> Features.of_tensor_ir(load_device("a100")).tensor_cores, Features.of_tensor_ir(load_device("v100")).tensor_cores
    (True, False)
    """

    tensor_cores: bool = False
    async_copy: bool = False
    dynamic_shared: bool = False
    tf32: bool = False
    turned_copies: bool = False
    uneven_lanes: bool = False

    @classmethod
    def of_te(cls, device: DeviceSpec) -> Features:
        """What a ``te.Schedule`` can say for a device."""
        return cls(uneven_lanes=_whole_vectors(device))

    @classmethod
    def of_tensor_ir(cls, device: DeviceSpec, tf32: bool = False) -> Features:
        """What TensorIR can say for a device."""
        if device.kind == "cpu":
            return cls(turned_copies=True, uneven_lanes=_whole_vectors(device))
        arch = re.fullmatch(r"sm_(\d+)[a-z]?", device.arch)
        if device.kind != "gpu" or arch is None or int(arch[1]) < _FIRST_ARCH:
            return cls()
        return cls(bool(device.tensor_gflops), True, bool(device.limits.shared_per_block_optin_bytes), tf32)

    def shared_limit(self, device: DeviceSpec) -> int:
        """Bytes of shared memory that a block may have."""
        limits = device.limits
        static = limits.shared_per_block_bytes or device.level("shared").capacity_bytes
        return (limits.shared_per_block_optin_bytes or static) if self.dynamic_shared else static

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Features:
        return cls(**data)


def _whole_vectors(device: DeviceSpec) -> bool:
    """Whether vectors over the edge of an axis stay vectors, where this device's kernels are built."""
    return device.kind == "cpu" and device.limits.lanes_checked is None


NO_FEATURES = Features()
