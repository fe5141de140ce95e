"""A second witness: the same schedule as OpenCL, run by PoCL on this CPU.

It shares only TVM's host code with the emulator: code generator, compiler and barriers are different ones. It computes
values but checks no accesses. Needs pyopencl and PoCL (Debian: pocl-opencl-icd).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from roller_tvm.codegen.errors import NotEmulated
from roller_tvm.codegen.host_code import BufferSpec, HostCode
from roller_tvm.errors import BadInput, ToolchainError, UsageError, last_line

# With optimisation, PoCL 3.1 (LLVM 14) miscompiles guarded sums: some values are lost.
_OPTIONS = ("-w", "-cl-opt-disable")
#: Limits of PoCL's device, named as in TVM's targets.
LIMITS = {"max_num_threads": 1024, "max_shared_memory_per_block": 1 << 20}
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
    """Kernels in OpenCL with their function's host code; the counterpart of `Function`.

    Attributes
    ----------
    source : str
    host : HostCode

    Examples
    --------
    >>> function = relax_or_relay_edge.opencl_function(schedule)  # doctest: +SKIP
    >>> (out,) = function.run([a, b])  # doctest: +SKIP
    """

    source: str = field(repr=False)
    host: HostCode

    def __str__(self) -> str:
        return "\n".join(map(str, self.host.launches))

    @classmethod
    def of(cls, source: str, host: HostCode) -> OpenClFunction:
        """Return the function of TVM's source; dynamic shared memory becomes the kernels' own, of fixed size.

        TVM's code generator for OpenCL omits the qualifier ``__local``, which makes a block share it.

        Examples
        --------
        >>> from roller_tvm.emulate import Launch
        >>> text = "__kernel void f() { uchar d[64]; vstore2(x, 0, (float*)d + 8); }"
        >>> made = OpenClFunction.of(text, HostCode((), (), (Launch("f", (), (1, 1, 1), (1, 1, 1), 64),)))
        >>> made.source
        '__kernel void f() { __local uchar d[64]; vstore2(x, 0, (__local float*)d + 8); }'
        >>> made.host.launches[0].dynamic_shared
        0
        """
        if not any(launch.dynamic_shared for launch in host.launches):
            return cls(source, host)
        sizes = "|".join({str(launch.dynamic_shared) for launch in host.launches if launch.dynamic_shared})
        names = "|".join({m[1] for m in re.finditer(rf"\buchar (\w+)\[(?:{sizes})\];", source)})
        if not names:
            raise NotEmulated("the source does not declare its dynamic shared memory", where=host.launches[0].kernel)
        source = re.sub(rf"\buchar ((?:{names})\[(?:{sizes})\];)", r"__local uchar \1", source)
        source = re.sub(rf"\(([\w ]+\*\)\s*\(?(?:{names})\b)", r"(__local \1", source)
        return cls(source, replace(host, launches=tuple(replace(launch, dynamic_shared=0) for launch in host.launches)))

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
        parameters = [p for p in host.parameters if isinstance(p, BufferSpec)]
        if len(arrays) > len(parameters):
            raise UsageError(f"{len(arrays)} arrays for {len(parameters)} parameters")
        given = [*arrays, *[None] * (len(parameters) - len(arrays))]
        program = _built(self.source)
        memory: dict[str, tuple[Any, np.ndarray[Any, Any]]] = {}
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
        for spec, values in zip([*parameters, *host.between], [*given, *[None] * len(host.between)], strict=True):
            array = _memory_of(spec, values)
            memory[spec.name] = cl.Buffer(import_queue.context, flags, hostbuf=array), array
        for launch in host.launches:
            kernel = cl.Kernel(program, launch.kernel)
            arguments = [memory[a][0] if isinstance(a, str) else np.int32(a) for a in launch.arguments]
            kernel.set_args(*arguments)
            whole = tuple(b * t for b, t in zip(launch.grid, launch.block, strict=True))
            cl.enqueue_nd_range_kernel(import_queue, kernel, whole, launch.block)
        results = []
        for spec, values in zip(parameters, given, strict=True):
            if values is None:
                buffer, array = memory[spec.name]
                cl.enqueue_copy(import_queue, array, buffer)
                results.append(array)
        import_queue.finish()
        return results


def _memory_of(spec: BufferSpec, values: Any) -> np.ndarray[Any, Any]:
    if spec.dtype == "bfloat16":
        raise NotEmulated("OpenCL has no bfloat16", where=spec.name)
    if values is not None and tuple(np.shape(values)) != spec.shape:
        raise UsageError(f"an array of shape {np.shape(values)} does not fit {spec}")
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
