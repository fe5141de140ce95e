"""Run a function of several kernels: its host code's launches, in order."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from roller_check.run import DeviceArray, Program
from roller_tvm.codegen.host_code import BufferSpec, HostCode, Launch
from roller_tvm.errors import UsageError


@dataclass(frozen=True)
class Function:
    """Launches in order, with the buffers they work on."""

    program: Program
    parameters: tuple[BufferSpec, ...]
    between: tuple[BufferSpec, ...]  # buffers that one kernel writes and a later one reads
    launches: tuple[Launch, ...]
    scratch: tuple[str, ...] = ()  # parameters that nobody reads after the call

    def __str__(self) -> str:
        return "\n".join(map(str, self.launches))

    @classmethod
    def of(cls, program: Program, host: HostCode, sizes: Mapping[str, int] | None = None) -> Function:
        """Return the function of host code.

        Raises
        ------
        NotEmulated
            An open size is missing from `sizes`.
        """
        known = host.sized(sizes or {})
        buffers = tuple(p for p in known.parameters if isinstance(p, BufferSpec))
        return cls(program, buffers, known.between, known.launches, known.scratch)

    @property
    def blocks(self) -> int:
        """Number of blocks of all launches."""
        return sum(prod(launch.grid) for launch in self.launches)

    def run(self, arrays: Sequence[Any], sample: int = 0, **options: Any) -> list[np.ndarray[Any, Any]]:
        """Run every kernel and return the results.

        Parameters
        ----------
        arrays : sequence
            Array for each parameter, or None for a result; trailing Nones may be left out.
        sample : int
            Number of blocks to run, first and last among them; only for a function of one kernel. Results are then
            masked arrays, with the other blocks' elements masked. 0 runs all.
        options
            Options of `Program.run`.

        Returns
        -------
        list of array
            Results for the parameters given as None; bfloat16 as uint16.

        Raises
        ------
        KernelFault
            A kernel misbehaved, or left elements of a result unwritten.
        UsageError
            An array does not fit its parameter.
        """
        given = arguments(self.parameters, arrays)
        memory = {s.name: DeviceArray(s.shape, s.dtype, s.name, array) for s, array in given}
        if sample and len(self.launches) != 1:
            raise UsageError("only the blocks of a single kernel can be sampled", where=str(self))
        self._run(memory, sample, options)
        results = [memory[s.name] for s, array in given if array is None]
        if not sample:
            return [r.numpy(r.name in self.scratch) for r in results]
        return [np.ma.masked_array(r.numpy(partly=True), ~r.written()) for r in results]

    def run_in_place(self, arrays: Sequence[np.ndarray[Any, Any]], fresh: Collection[int] = (), **options: Any) -> None:
        """Run every kernel on arrays that it changes, as a runtime calls the function.

        Parameters
        ----------
        arrays : sequence of array
            Array for each parameter.
        fresh : collection of int
            Positions of arrays not written yet: to read one is a fault, and so is to leave part of it unwritten.
        options
            Options of `Program.run`.

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
        """Run launch after launch on the parameters' memory, with the memory between kernels allocated here."""
        for spec in self.between:
            memory[spec.name] = DeviceArray(spec.shape, spec.dtype, spec.name)
        for launch in self.launches:
            if sample:
                options["blocks"] = sampled(prod(launch.grid), sample)
            args = [memory[a] if isinstance(a, str) else a for a in launch.arguments]
            self.program.run(
                launch.kernel, launch.grid, launch.block, args, dynamic_shared=launch.dynamic_shared, **options
            )


def arguments(parameters: Sequence[BufferSpec], arrays: Sequence[Any]) -> list[tuple[BufferSpec, Any]]:
    """Return each parameter with its array, or None for a result; trailing Nones may be left out of `arrays`.

    Raises
    ------
    UsageError
        An array does not fit its parameter.
    """
    if len(arrays) > len(parameters):
        raise UsageError(f"{len(arrays)} arrays for {len(parameters)} parameters")
    given = [*zip(parameters, arrays, strict=False), *((p, None) for p in parameters[len(arrays) :])]
    for spec, array in given:
        if array is not None and tuple(np.shape(array)) != spec.shape:
            raise UsageError(f"an array of shape {np.shape(array)} does not fit {spec}")
    return given


def sampled(count: int, most: int) -> list[int]:
    """Return up to `most` numbers spread over 0 to count - 1, the first and the last among them.

    Examples
    --------
    >>> sampled(100, 4), sampled(3, 4)
    ([0, 33, 66, 99], [0, 1, 2])
    """
    if most >= count:
        return list(range(count))
    return sorted({i * (count - 1) // max(1, most - 1) for i in range(most)})
