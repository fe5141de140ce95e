"""CUDA C++ or OpenCL of GPU schedules of the Relax line, with the launches read from TVM's host code."""

from __future__ import annotations

from typing import Any

from ..errors import RollerError, last_line
from .errors import NotEmulated
from .host_code import HostCode
from .host_reading import TakeHost, sources_in
from .mended_cuda import mend_cuda
from .opencl import LIMITS, local_memory

OPENCL = {"kind": "opencl", **LIMITS}


def generated(scheduled: Any, target: Any = "sm_80", name: str = "") -> tuple[str, HostCode]:
    """Return the CUDA source of a scheduled function, and its host code: buffers between kernels, launches."""
    import tvm

    mend_cuda()
    module = _module(scheduled, name)
    target = target_of(target)
    current = tvm.transform.PassContext.current()
    config = {str(k): v for k, v in current.config.items()}
    take = TakeHost()
    with tvm.transform.PassContext(current.opt_level, config=config, instruments=[take.instrument]):
        built = tvm.compile(module, target=target)
    if not take.modules:
        raise RollerError("TVM's build has no pass tirx.MakePackedAPI", remedy="report this with TVM's version")
    functions, refused = take.read()
    if len(functions) + len(refused) != 1:
        names = ", ".join([*functions, *refused])
        raise NotEmulated(f"{len(functions)} functions on the host: {names}", remedy="choose one by name=")
    for where, why in refused.items():
        raise NotEmulated(why, where=where)
    (host,) = functions.values()
    return sources_in(built, str(target.kind.name))[0], host


def _module(scheduled: Any, name: str) -> Any:
    import tvm

    module = getattr(scheduled, "mod", scheduled)
    if isinstance(module, tvm.tirx.PrimFunc):
        return tvm.IRModule({"main": module.with_attr("global_symbol", "main")})
    if name:
        return tvm.IRModule({name: module[name].with_attr("global_symbol", name)})
    return module


def generated_opencl(scheduled: Any, name: str = "") -> tuple[str, HostCode]:
    """Return the same schedule's OpenCL, ready for PoCL, and its host code.

    Raises
    ------
    NotEmulated
        TVM cannot generate OpenCL for it (tensor cores, cp.async).
    """
    try:
        return local_memory(*generated(scheduled, OPENCL, name))
    except RollerError:
        raise
    except Exception as error:  # whatever its code generator stumbles over
        raise NotEmulated(f"TVM makes no OpenCL of it: {last_line(error)}") from error


def target_of(given: Any) -> Any:
    """Return a target with a host; a bare architecture means cuda."""
    import tvm

    if isinstance(given, str) and given.startswith("sm_"):
        given = {"kind": "cuda", "arch": given}
    target = tvm.target.Target(given)
    return target if target.host is not None else target.with_host("llvm")
