"""A second witness: the same schedule as OpenCL, run by PoCL on this CPU.

It shares only TVM's host code with the emulator: code generator, compiler and barriers are different ones. It computes
values but checks no accesses. Needs pyopencl and PoCL (Debian: pocl-opencl-icd).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from roller_check.function import arguments
from roller_tvm.codegen.errors import NotEmulated
from roller_tvm.codegen.host_code import BufferSpec, HostCode
from roller_tvm.errors import BadInput, ToolchainError, last_line

# With optimisation, PoCL 3.1 (LLVM 14) miscompiles guarded sums: some values are lost.
_OPTIONS = ("-w", "-cl-opt-disable")
_REMEDY = "pip install pyopencl, and install PoCL: apt install pocl-opencl-icd"


@functools.cache
def queue() -> Any:
    """Return a command queue of PoCL.

    Raises
    ------
    ToolchainError
        PoCL or pyopencl is missing; the remedy says what to install.
    """
    try:
        import pyopencl
    except ImportError:
        raise ToolchainError("running OpenCL needs pyopencl, which is not installed", remedy=_REMEDY) from None
    try:
        devices = [d for p in pyopencl.get_platforms() if "Portable" in p.name for d in p.get_devices()]
    except pyopencl.Error:
        devices = []
    if not devices:
        raise ToolchainError("pyopencl finds no platform of PoCL", remedy=_REMEDY)
    return pyopencl.CommandQueue(pyopencl.Context(devices[:1]))


@dataclass(frozen=True)
class OpenClFunction:
    """Kernels in OpenCL with their function's host code; the counterpart of `Function`."""

    source: str = field(repr=False)  # OpenCL with dynamic shared memory made static (``codegen.opencl.local_memory``)
    host: HostCode

    def __str__(self) -> str:
        return "\n".join(map(str, self.host.launches))

    def run(self, arrays: Sequence[Any], sizes: Mapping[str, int] | None = None) -> list[np.ndarray[Any, Any]]:
        """Run every kernel and return the results.

        Parameters
        ----------
        arrays : sequence
            Array for each parameter, or None for a result; trailing Nones may be left out.
        sizes : mapping of str to int, optional
            Values of open extents.

        Returns
        -------
        list of array
            Results for the parameters given as None. Unwritten elements have all bits set: NaN.

        Raises
        ------
        ToolchainError
            PoCL is missing, or refused the source.
        NotEmulated
            PoCL's device lacks a type.
        """
        import_queue = queue()
        import pyopencl as cl

        host = self.host.sized(sizes or {})
        given = arguments([p for p in host.parameters if isinstance(p, BufferSpec)], arrays)
        program = _built(self.source)
        memory: dict[str, tuple[Any, np.ndarray[Any, Any]]] = {}
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
        for spec, values in [*given, *((spec, None) for spec in host.between)]:
            array = _memory_of(spec, values)
            memory[spec.name] = cl.Buffer(import_queue.context, flags, hostbuf=array), array
        for launch in host.launches:
            kernel = cl.Kernel(program, launch.kernel)
            kernel.set_args(*(memory[a][0] if isinstance(a, str) else np.int32(a) for a in launch.arguments))
            whole = tuple(b * t for b, t in zip(launch.grid, launch.block, strict=True))
            cl.enqueue_nd_range_kernel(import_queue, kernel, whole, launch.block)
        results = []
        for spec, values in given:
            if values is None:
                buffer, array = memory[spec.name]
                cl.enqueue_copy(import_queue, array, buffer)
                results.append(array)
        import_queue.finish()
        return results


def _memory_of(spec: BufferSpec, values: Any) -> np.ndarray[Any, Any]:
    if spec.dtype == "bfloat16":
        raise NotEmulated("OpenCL has no bfloat16", where=spec.name)
    if values is not None:
        return np.array(values, np.dtype(spec.dtype), order="C")
    array = np.empty(spec.shape, np.dtype(spec.dtype))
    array.reshape(-1).view(np.uint8)[...] = 0xFF
    return array


@functools.lru_cache(maxsize=64)
def _built(source: str) -> Any:
    import pyopencl as cl

    context = queue().context
    extensions = set(context.devices[0].extensions.split())
    for needed in re.findall(r"#pragma OPENCL EXTENSION (\w+) : enable", _without_conditions(source)):
        if needed not in extensions:
            raise NotEmulated(f"PoCL's device has no {needed}")
    try:
        return cl.Program(context, source).build(options=list(_OPTIONS))
    except cl.Error as error:
        text = str(error)
        said = [line for line in text.splitlines() if "error:" in line]
        raise BadInput(f"PoCL refused the source: {(said or [last_line(error)])[0]}") from error


def _without_conditions(source: str) -> str:
    """Return the source without its #if blocks, whose pragmas ask only for extensions that the compiler has."""
    return re.sub(r"^#if.*?^#endif", "", source, flags=re.S | re.M)
