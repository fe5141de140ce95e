"""A fused kernel as a PrimFunc: TensorIR launches it, its CUDA C++ goes with the call (``tirx.cuda.func_call``).

Such a function is a value like any other: it prints and can be saved. Any build of the module for CUDA has its text
among the other kernels.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ..codegen.cuda_text import split_top
from ..codegen.host_code import BufferSpec
from ..codegen.host_code_tensorir import generated
from ..codegen.host_reading import SCRATCH
from ..errors import TvmLineError
from ..rammer.cuda_functions import kernel_text, preamble
from ..rammer.fused_kernel import FusedKernel

#: Attribute of a function that is a plan: the operators in it.
OPERATORS = "roller_tvm.rtasks"
_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include\b.*$", re.M)
_ARENA = re.compile(r"[ \t]*(?:extern )?__shared__ [^;]*\brammer_arena\[\d*\];\n")
#: Operator that calls a function whose source goes with it; in apache-tvm 0.27.
_CALL = "tirx.cuda.func_call"
#: Alignment of the shared memory in which rTasks have their arrays.
_ALIGNMENT = 128
#: Attribute by which TVM's code generator leaves room for some blocks on a unit: the second of ``__launch_bounds__``.
_RESIDENT = "tirx.launch_bounds_min_blocks_per_sm"


def fused_function(
    name: str, kernel: FusedKernel, target: Any, parameters: Sequence[BufferSpec], operators: Collection[str] = ()
) -> Any:  # fmt: skip
    """Return the PrimFunc that launches a fused kernel.

    Parameters
    ----------
    name : str
        Name of the function; the kernel's name is derived from it.
    target : tvm.target.Target or str
        Target for cuda.
    parameters : sequence of BufferSpec
        Parameters of the function, named as the kernel's tensors; last the memory that only it sees.
    operators : collection of str
        Names of the operators in it, for readers of the module.
    """
    from tvm import tirx

    (launch,) = kernel.host.launches
    given = {spec.name: tirx.decl_buffer(spec.shape, spec.dtype, f"t{n}") for n, spec in enumerate(parameters)}
    if missing := set(launch.arguments) - set(given):
        raise ValueError(f"kernel '{launch.kernel}' works on {', '.join(sorted(missing))}, which are no parameters")
    types = [given[argument] for argument in launch.arguments]
    # TensorIR cannot say how many threads a larger block would have: then how many blocks a unit has to have room for.
    said = kernel.bounds is not None and kernel.bounds.threads == launch.block[0]
    blocks = kernel.bounds.blocks if kernel.bounds and said else kernel.resident

    def made(source: str, callee: str) -> Any:
        arguments = [given[a].data for a in launch.arguments]
        arena = None
        if kernel.shared_bytes:
            scope = "shared.dyn" if launch.dynamic_shared else "shared"
            arena = tirx.decl_buffer((kernel.shared_bytes,), "uint8", "arena", scope=scope, data_alignment=_ALIGNMENT)
        arguments.append(arena.data if arena is not None else tirx.const(0, "int32"))
        body: Any = tirx.Evaluate(tirx.call_intrin("", _CALL, callee, *arguments, source))
        if arena is not None:
            body = tirx.SeqStmt([tirx.AllocBuffer(arena), body])
        if blocks:
            body = tirx.AttrStmt(tirx.const(0, "int32"), _RESIDENT, blocks, body)
        for tag, extent in (("threadIdx.x", launch.block[0]), ("blockIdx.x", launch.grid[0])):
            axis = tirx.IterVar(None, tirx.Var(tag.replace(".", "_"), "int32"), 1, tag)
            body = tirx.AttrStmt(axis, "thread_extent", extent, body)
        # Who reads what another rTask wrote has it by one pointer: none is declared to be the only way to it.
        attrs = {"global_symbol": name, "tirx.noalias": False, "tirx.is_scheduled": True, "op_pattern": 8,
                 OPERATORS: list(operators), SCRATCH: len(kernel.host.between)}  # fmt: skip
        func = tirx.PrimFunc(list(given.values()), body)
        for key, value in attrs.items():
            func = func.with_attr(key, value)
        return func

    known = _of_tvm(str(target), tuple(str(b.dtype) for b in types), made)
    source, callee = device_text(kernel, name, known)
    return made(source, callee)


def require_sources() -> None:
    """Raise ``TvmLineError`` if TVM takes no CUDA source in a PrimFunc."""
    import tvm

    if _CALL not in set(map(str, tvm.ir.Op.list_op_names())):
        remedy = "pip install 'apache-tvm>=0.27'; without fuse_rtasks this one builds the model"
        raise TvmLineError(f"TVM {tvm.__version__} takes no CUDA source in a PrimFunc", "FuseRTasks", remedy)


def tvm_options() -> tuple[str, ...]:
    """Return the options that TVM 0.27 adds when it compiles CUDA (``tvm/support/nvcc.py``) and that affect registers.

    Examples
    --------
    >>> tvm_options()
    ('--use_fast_math', '--ptxas-options=--register-usage-level=10')
    """
    level = os.environ.get("TVM_CUDA_PTXAS_REG_LEVEL", "10")
    return "--use_fast_math", f"--ptxas-options=--register-usage-level={level}"


def device_text(kernel: FusedKernel, name: str, known: Collection[str] = ()) -> tuple[str, str]:
    """Return a fused kernel as a device function in a namespace of its own: (the text, the name to call).

    Parameters
    ----------
    name : str
        Name of the namespace.
    known : collection of str
        Pieces of the text that the code generator writes before it anyway.
    """
    (launch,) = kernel.host.launches
    source = kernel.source
    given, inner = kernel_text(source, launch.kernel)
    body = _ARENA.sub("", f"{{{inner}}}")
    declared = [p.strip() for p in split_top(given, ",") if p.strip()]
    parameters = ", ".join([*declared, "unsigned char* rammer_arena"])
    pieces = [p for p in preamble(source) if p not in known]
    # An include stands outside of a namespace.
    includes = dict.fromkeys(line.strip() for piece in pieces for line in _INCLUDE.findall(piece))
    own = "\n".join(_INCLUDE.sub("", piece) for piece in pieces)
    text = [*includes, f"namespace {name}_code {{", own,
            f"static __device__ __forceinline__ void run({parameters}) {body}", "}",
            f"#define {name}_run {name}_code::run", ""]  # fmt: skip
    return "\n".join(text), f"{name}_run"


_KNOWN: dict[tuple[str, tuple[str, ...]], frozenset[str]] = {}


def _of_tvm(target: str, dtypes: tuple[str, ...], made: Any) -> frozenset[str]:
    """Return the pieces that TVM writes before any kernel of these dtypes."""
    key = target, tuple(sorted(set(dtypes)))
    if key not in _KNOWN:
        source, _ = generated(made("#define roller_tvm_nothing(...)\n", "roller_tvm_nothing"), target)
        _KNOWN[key] = frozenset(preamble(source))
    return _KNOWN[key]


def kernels_of(module: Any) -> Mapping[str, tuple[str, ...]]:
    """Return the functions of a module that are plans: name -> operators in it.

    Examples
    --------
    >>> kernels_of(FuseRTasks(target)(mod))
    {'rtasks_0': (...)}
    """
    return {str(var.name_hint): tuple(map(str, func.attrs[OPERATORS])) for var, func in module.functions_items()
            if func.attrs and OPERATORS in func.attrs}  # fmt: skip


__all__ = ["OPERATORS", "device_text", "fused_function", "kernels_of", "require_sources", "tvm_options"]
