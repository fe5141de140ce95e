"""Devices as data: what the planner and the model may ask of one, and where its numbers come from."""

from roller_tvm.device.load import known_devices, load_device, load_file
from roller_tvm.device.spec import DeviceSpec, FrozenMap, Limits, MemoryLevel

__all__ = ["DeviceSpec", "FrozenMap", "Limits", "MemoryLevel", "known_devices", "load_device", "load_file"]
