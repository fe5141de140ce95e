"""Code generation of fused kernels in ``relay.build``, for functions whose attribute Compiler is ours.

Such a function holds its computation in Relay, and its kernel (CUDA C++ with its launch) as an attribute. TVM
generates the host side (checks of arguments, memory between rTasks, the launch) for a kernel without a body; our source
replaces that kernel before it is compiled.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

from roller_tvm.codegen.cuda_text import CudaSource, split_top
from roller_tvm.codegen.host_code import BufferSpec, HostCode
from roller_tvm.errors import BadInput
from roller_tvm.rammer.cuda_functions import kernel_spans

#: The value of the attribute Compiler, and our own attribute.
COMPILER, ATTRIBUTE = "roller_rtasks", "roller_rtasks_kernel"
VERSION = 1
_EXTERNAL, _POSTPROC = f"relay.ext.{COMPILER}", "tvm_callback_cuda_postproc"
#: Stands for the kernel's body until its source is replaced.
_BODY = "roller_rtasks_body"


@dataclass(frozen=True)
class KernelCode:
    """A fused kernel, as stored in an attribute of a Relay function.

    Parameters
    ----------
    source : str
        CUDA C++ with one kernel.
    host : HostCode
        Its launch; parameters are the function's inputs, then its outputs.
    arch : str
        Architecture, such as 'sm_80'.
    """

    source: str
    host: HostCode
    arch: str

    def __post_init__(self) -> None:
        if len(self.host.launches) != 1:
            raise ValueError(f"a fused kernel is launched once, not {len(self.host.launches)} times")

    def to_json(self) -> str:
        return json.dumps({"version": VERSION, "arch": self.arch, "source": self.source, "host": self.host.to_json()})

    @classmethod
    def from_json(cls, text: str) -> KernelCode:
        data = json.loads(text)
        if data.get("version") != VERSION:
            raise BadInput(f"a fused kernel of version {data.get('version')!r}, this version reads {VERSION}",
                           remedy="run FuseRTasks on the model again")
        return cls(data["source"], HostCode.from_json(data["host"]), data["arch"])

    def named(self, kernel: str, order: list[str]) -> str:
        """Return the source with the kernel renamed and its parameters reordered.

        Examples
        --------
        >>> from roller_tvm.codegen.host_code import launch_of
        >>> host = HostCode((), (), (launch_of("f", ["x", "y"], ["blockIdx.x"], [1]),))
        >>> code = KernelCode("__global__ void f(float* a, int* b) { *a = *b; }", host, "sm_80")
        >>> code.named("g", ["b", "a"])
        '__global__ void g(int* b, float* a) { *a = *b; }'
        """
        (start, _), (opened, closed), _ = kernel_spans(self.source, self.host.launches[0].kernel)
        declared = [p.strip() for p in split_top(self.source[opened:closed], ",")]
        by_name = {re.findall(r"\w+", d)[-1]: d for d in declared}
        if sorted(by_name) != sorted(order):
            raise ValueError(f"parameters {', '.join(order)} for {', '.join(by_name)}")
        parameters = ", ".join(by_name[name] for name in order)
        return f"{self.source[:start]}{kernel}({parameters}{self.source[closed:]}"


@dataclass(frozen=True)
class RegionCode:
    """Operators side by side on a CPU's threads, as stored in an attribute of a Relay function.

    Parameters
    ----------
    text : str
        A module with one PrimFunc, as TVM's JSON.
    """

    text: str
    target: str

    def to_json(self) -> str:
        return json.dumps({"version": VERSION, "target": self.target, "module": self.text})


def runtime_module(function: Any) -> Any:
    """Return a function's runtime module, as ``relay.build`` expects it; for a GPU it holds host code and CUDA.

    Parameters
    ----------
    function : relay.Function
        A function with our attribute.
    """
    import tvm

    text, name = str(function.attrs[ATTRIBUTE]), str(function.attrs["global_symbol"])
    data = json.loads(text)
    if "module" in data:
        return tvm.build(tvm.ir.load_json(data["module"]), target=tvm.target.Target(data["target"]))
    code = KernelCode.from_json(text)
    target = tvm.target.Target(f"cuda -arch={code.arch}", host="llvm")

    def replaced(generated: str) -> str:
        kernel = next(k for k in CudaSource(generated).kernels if _BODY in generated)
        return code.named(kernel.name, [p.name for p in kernel.parameters])

    users = tvm.get_global_func(_POSTPROC, allow_missing=True)

    def processed(generated: str, on: Any = None) -> str:
        made = replaced(str(generated))
        return made if users is None else str(users(made, on))

    with _registered(_POSTPROC, processed):
        return tvm.build(tvm.IRModule({name: host_function(name, code)}), target=target)


def host_function(name: str, code: KernelCode) -> Any:
    """Return a host PrimFunc that launches the kernel by name; the kernel's body is added later."""
    import tvm
    from tvm import tir

    def data(c_name: str, dtype: str, scope: str = "global") -> Any:
        return tir.Var(c_name, tvm.ir.PointerType(tvm.ir.PrimType(dtype), scope))

    def bound(tag: str, extent: int, body: Any) -> Any:
        axis = tir.IterVar(tvm.ir.Range(0, extent), tir.Var(tag, "int32"), 1, tag)
        return tir.AttrStmt(axis, "thread_extent", tir.IntImm("int32", extent), body)

    launch = code.host.launches[0]
    c_names = [p.name for p in CudaSource(code.source).kernel(launch.kernel).parameters]
    known = {s.name: s for s in (*code.host.parameters, *code.host.between) if isinstance(s, BufferSpec)}
    pointers = {n: data(c, known[n].dtype) for n, c in zip(launch.arguments, c_names, strict=True)}
    arguments = list(pointers.values())
    dynamic = data("roller_rtasks_shared", "uint8", "shared.dyn") if launch.dynamic_shared else None
    body: Any = tir.Evaluate(tir.call_extern("int32", _BODY, *arguments, *([dynamic] if dynamic is not None else [])))
    always = tir.const(1, "bool")
    if dynamic is not None:
        body = tir.Allocate(dynamic, "uint8", [launch.dynamic_shared], always, body)
    for what, extents in (("threadIdx", launch.block), ("blockIdx", launch.grid)):
        for axis, extent in zip("xyz", extents, strict=True):
            if extent > 1 or axis == "x":
                body = bound(f"{what}.{axis}", extent, body)
    for spec in code.host.between:
        body = tir.Allocate(pointers[spec.name], spec.dtype, [max(1, prod(spec.shape))], always, body)
    handles, buffers = [], {}
    for number, parameter in enumerate(code.host.parameters):
        assert isinstance(parameter, BufferSpec)
        handle = tir.Var(f"p{number}", "handle")
        handles.append(handle)
        pointer = pointers.get(parameter.name, data(f"unread{number}", parameter.dtype))
        buffers[handle] = tir.decl_buffer(parameter.shape, parameter.dtype, f"buffer{number}", data=pointer)
    made = tir.PrimFunc(handles, body, None, buffers)
    return made.with_attr({"global_symbol": name, "tir.noalias": True, "from_legacy_te_schedule": True})


@contextlib.contextmanager
def _registered(name: str, function: Callable[..., Any]) -> Iterator[None]:
    """Replace a global function of TVM while this is open."""
    import tvm

    before = tvm.get_global_func(name, allow_missing=True)
    tvm.register_func(name, function, override=True)
    try:
        yield
    finally:
        if before is None:
            tvm._ffi.registry.remove_global_func(name)
        else:
            tvm.register_func(name, before, override=True)


def register_fused_kernels() -> None:
    """Register the code generator of fused kernels. `FuseRTasks` does so; call it before building a module from JSON.
    """
    import tvm

    tvm.register_func(_EXTERNAL, runtime_module, override=True)


@contextlib.contextmanager
def uncompiled() -> Iterator[None]:
    """Skip compiling fused kernels while this is open, for lowering a model only to inspect it."""

    def empty(function: Any) -> Any:
        with _registered("tvm_callback_cuda_compile", lambda _code, _target=None: ""):
            return runtime_module(function)

    with _registered(_EXTERNAL, empty):
        yield
