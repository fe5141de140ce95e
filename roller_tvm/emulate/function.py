"""A function of several kernels: what is launched in which order, on which buffers; TVM's host code, in short."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from roller_tvm.emulate.program import DeviceArray, Program
from roller_tvm.errors import UsageError


@dataclass(frozen=True)
class BufferSpec:
    """A buffer of a function: one of its parameters, or memory between its kernels.

    Attributes
    ----------
    name : str
    shape : tuple of int
    dtype : str
    """

    name: str
    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class Launch:
    """One kernel, launched.

    Attributes
    ----------
    kernel : str
    arguments : tuple of (str or number)
        Names of buffers, numbers.
    grid, block : tuple of int
        x, y, z.
    dynamic_shared : int
        Bytes.
    """

    kernel: str
    arguments: tuple[Any, ...]
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    dynamic_shared: int = 0

    def __str__(self) -> str:
        shared = f", {self.dynamic_shared} B" if self.dynamic_shared else ""
        return f"{self.kernel}<<<{self.grid}, {self.block}{shared}>>>({', '.join(map(str, self.arguments))})"


@dataclass(frozen=True)
class Function:
    """Launches in order, with the buffers they work on.

    Attributes
    ----------
    program : Program
    parameters : tuple of BufferSpec
    between : tuple of BufferSpec
        What kernels hand one another.
    launches : tuple of Launch
    """

    program: Program
    parameters: tuple[BufferSpec, ...]
    between: tuple[BufferSpec, ...]
    launches: tuple[Launch, ...]

    def __str__(self) -> str:
        return "\n".join(map(str, self.launches))

    @property
    def blocks(self) -> int:
        """Blocks of all launches."""
        return sum(prod(launch.grid) for launch in self.launches)

    def run(self, arrays: Sequence[Any], sample: int = 0, **options: Any) -> list[np.ndarray[Any, Any]]:
        """Run every kernel.

        Parameters
        ----------
        arrays : sequence
            For each parameter its array, or None for one that the kernels write; trailing Nones may be left out.
        sample : int
            Of a function of one kernel: run so many of its blocks, first and last among them; results are masked
            arrays then, of which the other blocks' elements are masked. 0 runs all.
        options
            Of `Program.run`.

        Returns
        -------
        list of array
            The parameters given as None. bfloat16 comes as uint16.

        Raises
        ------
        KernelFault
            A kernel misbehaved, or left elements of a result unwritten.
        UsageError
            An array does not fit its parameter.
        """
        if len(arrays) > len(self.parameters):
            raise UsageError(f"{len(arrays)} arrays for {len(self.parameters)} parameters")
        given = [*arrays, *[None] * (len(self.parameters) - len(arrays))]
        memory: dict[str, DeviceArray] = {}
        for spec, array in zip(self.parameters, given, strict=True):
            if array is not None and tuple(np.shape(array)) != spec.shape:
                raise UsageError(f"an array of shape {np.shape(array)} where {spec} is due")
            memory[spec.name] = DeviceArray(spec.shape, spec.dtype, spec.name, array)
        for spec in self.between:
            memory[spec.name] = DeviceArray(spec.shape, spec.dtype, spec.name)
        if sample and len(self.launches) != 1:
            raise UsageError("only the blocks of a single kernel can be sampled", where=str(self))
        for launch in self.launches:
            if sample:
                options["blocks"] = sampled(prod(launch.grid), sample)
            args = [memory[a] if isinstance(a, str) else a for a in launch.arguments]
            self.program.run(
                launch.kernel, launch.grid, launch.block, args, dynamic_shared=launch.dynamic_shared, **options
            )
        results = [memory[s.name] for s, array in zip(self.parameters, given, strict=True) if array is None]
        if not sample:
            return [r.numpy() for r in results]
        return [np.ma.masked_array(r.numpy(partly=True), ~r.written()) for r in results]


def sampled(count: int, most: int) -> list[int]:
    """Numbers spread over 0 to count, the first and the last among them.

    Examples
    --------
    >>> sampled(100, 4), sampled(3, 4)
    ([0, 33, 66, 99], [0, 1, 2])
    """
    if most >= count:
        return list(range(count))
    return sorted({i * (count - 1) // max(1, most - 1) for i in range(most)})


def launch_of(kernel: str, arguments: Sequence[Any], tags: Sequence[str], extents: Sequence[int]) -> Launch:
    """A launch from TVM's list of launch parameters ('blockIdx.x', ..., the bytes of dynamic shared memory last).

    Examples
    --------
    >>> print(launch_of("f", ["A"], ["blockIdx.x", "threadIdx.y"], [8, 4]))
    f<<<(8, 1, 1), (1, 4, 1)>>>(A)
    """
    values: Mapping[str, int] = dict(zip(tags, extents, strict=True))
    known = {f"{what}.{axis}" for what in ("blockIdx", "threadIdx") for axis in "xyz"}
    dynamic = [v for tag, v in values.items() if tag.endswith("use_dyn_shared_memory")]
    strange = [tag for tag in values if tag not in known and not tag.endswith("use_dyn_shared_memory")]
    if strange:
        raise UsageError(f"a kernel launched with {strange[0]!r}", where=kernel)

    def triple(what: str) -> tuple[int, int, int]:
        return values.get(f"{what}.x", 1), values.get(f"{what}.y", 1), values.get(f"{what}.z", 1)

    return Launch(kernel, tuple(arguments), triple("blockIdx"), triple("threadIdx"), sum(dynamic))
