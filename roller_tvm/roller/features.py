"""Abilities of schedules beyond loops: passed to a construction, none by default.

A plan made without features is the same on every TVM. One made with features needs the line whose schedules can
express them.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

from ..device import DeviceSpec

#: First architecture with the instructions that are used, by the PTX ISA ("Target ISA notes" of mma.m16n8k16 and
#: cp.async).
_FIRST_ARCH = 80
#: Bytes of a tensor from which TVM 0.27's asynchronous copies read elsewhere: they count an offset's bytes in an int32.
ASYNC_COPY_BYTES = 2**31


@dataclass(frozen=True)
class Features:
    """Abilities of a line's schedules on a device.

    Parameters
    ----------
    tensor_cores : bool
        Products of matrices by instructions of a whole warp.
    async_copy : bool
        Copies into shared memory that bypass the registers and run ahead of their readers.
    dynamic_shared : bool
        Shared memory beyond the static limit, up to the device's opt-in limit for a block.
    tf32 : bool
        Products of float32 on tensor cores, with operands rounded to ten bits of fraction. Only if a user allows it,
        since results change.
    turned_copies : bool
        Copies whose dimensions are in another order than the tensor's (on CPUs).
    padded_constants : bool
        Constants packed with zeros behind their last column (on CPUs).
    uneven_lanes : bool
        Reductions in a number of lanes that does not divide them (on CPUs).
    slices : bool
        Loops of several nests as one, a slice of each at a time (on CPUs).
    open_sides : bool
        Padding along sides of open extent: whether a load is inside is not known until it runs (on CPUs).

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
    padded_constants: bool = False
    uneven_lanes: bool = False
    slices: bool = False
    open_sides: bool = False

    @classmethod
    def of_te(cls, device: DeviceSpec) -> Features:
        """Return the features of a ``te.Schedule`` on a device."""
        return cls(uneven_lanes=_whole_vectors(device))

    @classmethod
    def of_tensor_ir(cls, device: DeviceSpec, tf32: bool = False) -> Features:
        """Return the features of TensorIR on a device."""
        if device.kind == "cpu":
            whole = _whole_vectors(device)
            return cls(turned_copies=True, padded_constants=whole, uneven_lanes=whole, slices=True)
        arch = re.fullmatch(r"sm_(\d+)[a-z]?", device.arch)
        if device.kind != "gpu" or arch is None or int(arch[1]) < _FIRST_ARCH:
            return cls()
        return cls(bool(device.tensor_gflops), True, bool(device.limits.shared_per_block_optin_bytes), tf32)

    def shared_limit(self, device: DeviceSpec) -> int:
        """Return the bytes of shared memory that a block may have."""
        limits = device.limits
        static = limits.shared_per_block_bytes or device.level("shared").capacity_bytes
        return (limits.shared_per_block_optin_bytes or static) if self.dynamic_shared else static

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Features:
        return cls(**data)


def _whole_vectors(device: DeviceSpec) -> bool:
    """Return whether vectors over the edge of an axis stay vectors in this device's kernels."""
    return device.kind == "cpu" and device.limits.lanes_checked is None


NO_FEATURES = Features()
