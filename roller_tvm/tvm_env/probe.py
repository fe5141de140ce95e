"""Prints the features of a TVM as JSON. Run as a script, in a process of its own: a TVM that crashes
at import then takes only the probe with it. Imports nothing of roller_tvm."""

from __future__ import annotations

import importlib
import json
import sys

CODE_GENERATORS = ("llvm", "cuda", "opencl", "rocm", "vulkan", "nvptx")
PARTS = {  # any of the modules: some moved
    "Relay": ("tvm.relay",),
    "Relax": ("tvm.relax",),
    "AutoTVM": ("tvm.autotvm",),
    "auto_scheduler": ("tvm.auto_scheduler",),
    "MetaSchedule": ("tvm.s_tir.meta_schedule", "tvm.meta_schedule"),
}


def has(module: str) -> bool:
    """True if the module can be imported."""
    try:
        importlib.import_module(module)
    except Exception:  # noqa: BLE001 - any failure means the part cannot be used
        return False
    return True


def main() -> None:
    """Print the report."""
    import tvm

    report = {"version": tvm.__version__, "file": tvm.__file__, "info": {}}
    try:
        info = tvm.support.libinfo()
        report["info"] = {key: str(info[key]) for key in ("LLVM_VERSION", "CUDA_VERSION") if key in info}
    except Exception:  # noqa: BLE001 - the Relax line may drop it
        pass
    report["codegen"] = [k for k in CODE_GENERATORS if tvm.get_global_func(f"target.build.{k}", True)]
    report["parts"] = [name for name, modules in PARTS.items() if any(map(has, modules))]
    cpu = tvm.get_global_func("target.llvm_get_system_cpu", True)
    report["cpu"] = str(cpu()) if cpu else ""
    if not report["info"].get("LLVM_VERSION"):
        major = tvm.get_global_func("target.llvm_version_major", True)
        report["info"]["LLVM_VERSION"] = str(major()) if major else ""
    report["te_schedules"] = has("tvm.te") and hasattr(importlib.import_module("tvm.te"), "create_schedule")
    threads = tvm.get_global_func("runtime.NumThreads", True)
    report["pool"] = int(threads()) if threads else None
    report["gpu"] = None
    device = tvm.cuda(0)
    if device.exist:
        report["gpu"] = f"{device.device_name} (compute capability {device.compute_version})"
    json.dump(report, sys.stdout)


if __name__ == "__main__":
    main()
