"""CUDA source and host code of TensorIR schedules: buffers between kernels, launches."""

from __future__ import annotations

from typing import Any

from ..errors import RollerError
from .errors import NotEmulated
from .host_code import HostCode
from .host_reading import TakeHost, sources_in


def generated(scheduled: Any, target: Any = "sm_80", name: str = "") -> tuple[str, HostCode]:
    """Return the CUDA source of a scheduled function, and its host code: buffers between kernels, launches."""
    import tvm

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


def target_of(given: Any) -> Any:
    """Return a target with a host; a bare architecture means cuda."""
    import tvm

    if isinstance(given, str) and given.startswith("sm_"):
        given = {"kind": "cuda", "arch": given}
    target = tvm.target.Target(given)
    return target if target.host is not None else target.with_host("llvm")
