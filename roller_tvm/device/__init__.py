"""Devices as data: the facts that the planner and the model need of a device, and the sources of its numbers."""

from roller_tvm.device.arch import arch_number
from roller_tvm.device.cpu_detect import default_cpu_target, detect_cpu
from roller_tvm.device.cpu_profile import CpuReport, cpu_device, cpu_report
from roller_tvm.device.cuda_profile import CudaReport, cuda_report
from roller_tvm.device.files import known_devices
from roller_tvm.device.from_target import device_for_target, parse_target
from roller_tvm.device.load import load_device, load_file
from roller_tvm.device.network import Network
from roller_tvm.device.spec import DeviceSpec, FrozenMap, Limits, MemoryLevel
from roller_tvm.device.write import spec_text

__all__ = [
    "CpuReport",
    "CudaReport",
    "DeviceSpec",
    "FrozenMap",
    "Limits",
    "MemoryLevel",
    "Network",
    "arch_number",
    "cpu_device",
    "cpu_report",
    "cuda_report",
    "default_cpu_target",
    "detect_cpu",
    "device_for_target",
    "known_devices",
    "load_device",
    "load_file",
    "parse_target",
    "spec_text",
]
