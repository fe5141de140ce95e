"""A function of several kernels, run: what its host code launches, in that order."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from roller_tvm.emulate.host import BufferSpec, HostCode, Launch
from roller_tvm.emulate.program import DeviceArray, Program
from roller_tvm.errors import UsageError


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
    scratch : tuple of str
        Parameters that nobody reads afterwards.
    """

    program: Program
    parameters: tuple[BufferSpec, ...]
    between: tuple[BufferSpec, ...]
    launches: tuple[Launch, ...]
    scratch: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join(map(str, self.launches))

    @classmethod
    def of(cls, program: Program, host: HostCode, sizes: Mapping[str, int] | None = None) -> Function:
        """The function of host code.

        Raises
        ------
        NotEmulated
            A size is open that `sizes` does not give.
        """
        known = host.sized(sizes or {})
        buffers = tuple(p for p in known.parameters if isinstance(p, BufferSpec))
        return cls(program, buffers, known.between, known.launches, known.scratch)

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
        if sample and len(self.launches) != 1:
            raise UsageError("only the blocks of a single kernel can be sampled", where=str(self))
        self._run(memory, sample, options)
        results = [memory[s.name] for s, array in zip(self.parameters, given, strict=True) if array is None]
        if not sample:
            return [r.numpy(r.name in self.scratch) for r in results]
        return [np.ma.masked_array(r.numpy(partly=True), ~r.written()) for r in results]

    def run_in_place(self, arrays: Sequence[np.ndarray[Any, Any]], fresh: Collection[int] = (), **options: Any) -> None:
        """Run every kernel on arrays that it changes, as a runtime calls the function.

        Parameters
        ----------
        arrays : sequence of array
            One for each parameter.
        fresh : collection of int
            Places of those that nobody has written yet: reading them is a fault, and so is leaving part of them so.
        options
            Of `Program.run`.

        Raises
        ------
        KernelFault
            A kernel misbehaved, or left elements of a fresh array unwritten.
        """
        memory = {
            spec.name: DeviceArray(spec.shape, spec.dtype, spec.name, None if number in fresh else array)
            for number, (spec, array) in enumerate(zip(self.parameters, arrays, strict=True))
        }
        self._run(memory, 0, options)
        for spec, array in zip(self.parameters, arrays, strict=True):
            if array.flags.writeable:
                partly = spec.name in self.scratch
                np.copyto(array, memory[spec.name].numpy(partly).view(array.dtype).reshape(array.shape))

    def _run(self, memory: dict[str, DeviceArray], sample: int, options: dict[str, Any]) -> None:
        """Launch after launch, on the parameters' memory and what is allocated between them."""
        for spec in self.between:
            memory[spec.name] = DeviceArray(spec.shape, spec.dtype, spec.name)
        for launch in self.launches:
            if sample:
                options["blocks"] = sampled(prod(launch.grid), sample)
            args = [memory[a] if isinstance(a, str) else a for a in launch.arguments]
            self.program.run(
                launch.kernel, launch.grid, launch.block, args, dynamic_shared=launch.dynamic_shared, **options
            )


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
