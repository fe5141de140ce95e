"""GPU schedules of the Relax line executed on the CPU: TVM's CUDA source, launched as its host code would."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..codegen.errors import NotEmulated
from ..codegen.host_code_tensorir import generated, target_of
from ..emulate import Function, OpenClFunction, compile_source
from ..emulate.opencl import LIMITS
from ..errors import RollerError, last_line

OPENCL = {"kind": "opencl", **LIMITS}


def emulated_function(
    scheduled: Any, target: Any = "sm_80", name: str = "", sizes: Mapping[str, int] | None = None, checked: bool = True
) -> Function:
    """Return the kernels of a scheduled function, compiled for this CPU, and their launches.

    Parameters
    ----------
    scheduled : IRModule, PrimFunc or s_tir.Schedule
        Function scheduled for a GPU. PassContext options (``tirx.use_async_copy``) hold as in a build.
    target : tvm.target.Target or str
        Target for cuda, or just the architecture, such as 'sm_90'.
    name : str
        Name of the function, if the module has several.
    sizes : mapping of str to int, optional
        Values of symbolic shapes, by the names of their variables.
    checked : bool
        True to check accesses to memory.

    Raises
    ------
    NotEmulated
        If the host code does more than launch kernels, or the emulator does not know part of the source.

    Examples
    --------
    >>> function = emulated_function(schedule, "sm_90")  # doctest: +SKIP
    >>> (out,) = function.run([a, b])  # doctest: +SKIP
    """
    source, host = generated(scheduled, target, name)
    program = compile_source(source, checked, str(target_of(target).attrs["arch"]))
    return Function.of(program, host, sizes)


def opencl_function(scheduled: Any, name: str = "") -> OpenClFunction:
    """Return the same schedule in OpenCL, for PoCL: an independent check of its results.

    Parameters
    ----------
    scheduled, name
        See `emulated_function`.

    Raises
    ------
    NotEmulated
        If TVM makes no OpenCL of it (tensor cores, cp.async).

    Examples
    --------
    >>> (out,) = opencl_function(schedule).run([a, b])  # doctest: +SKIP
    """
    try:
        return OpenClFunction.of(*generated(scheduled, OPENCL, name))
    except RollerError:
        raise
    except Exception as error:  # whatever its code generator stumbles over
        raise NotEmulated(f"TVM makes no OpenCL of it: {last_line(error)}") from error
