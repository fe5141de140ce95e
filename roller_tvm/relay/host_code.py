"""CUDA C++ or OpenCL of GPU schedules of the Relay line, with the launches read from TVM's host code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from roller_tvm.codegen.errors import NotEmulated
from roller_tvm.codegen.host_code import HostCode
from roller_tvm.codegen.host_reading import TakeHost
from roller_tvm.codegen.opencl import LIMITS, local_memory
from roller_tvm.errors import RollerError, last_line
from roller_tvm.relay.cuda import cuda_source


def generated(schedule: Any, args: Sequence[Any], arch: str = "sm_80") -> tuple[str, HostCode]:
    """Return the CUDA C++ that TVM generates for a schedule, and its host code with the launches.

    Raises
    ------
    NotEmulated
        The host code does more than launch kernels.
    """
    import tvm

    take, current = TakeHost(), tvm.transform.PassContext.current()
    config = {str(k): v for k, v in current.config.items()}
    with tvm.transform.PassContext(current.opt_level, config=config, instruments=[take.instrument]):
        source = cuda_source(schedule, args, arch)
    if not take.modules:
        raise RollerError("TVM's build has no pass tir.MakePackedAPI", remedy="report this with TVM's version")
    functions, refused = take.read()
    for name, why in refused.items():
        raise NotEmulated(why, where=name)
    if len(functions) != 1:
        raise NotEmulated(f"{len(functions)} functions on the host")
    (host,) = functions.values()
    return source, host


def generated_opencl(schedule: Any, args: Sequence[Any]) -> tuple[str, HostCode]:
    """Return the OpenCL that TVM generates for a schedule, ready for PoCL, and its host code with the launches.

    Parameters
    ----------
    schedule : te.Schedule
    args : sequence of te.Tensor

    Raises
    ------
    NotEmulated
        TVM cannot generate OpenCL for it.
    """
    import tvm

    take, current = TakeHost(), tvm.transform.PassContext.current()
    config = {str(k): v for k, v in current.config.items()}
    options = " ".join(f"-{name}={value}" for name, value in LIMITS.items())
    try:
        with tvm.transform.PassContext(current.opt_level, config=config, instruments=[take.instrument]):
            built = tvm.build(schedule, list(args), tvm.target.Target(f"opencl {options}", host="llvm"), name="kernel")
    except Exception as error:  # whatever its code generator stumbles over
        raise NotEmulated(f"TVM makes no OpenCL of it: {last_line(error)}") from error
    (host,) = take.read()[0].values()
    return local_memory(str(built.imported_modules[0].get_source()), host)
