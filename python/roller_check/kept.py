"""Built models whose kernels run on the CPU: functions called by name, kernels compiled ahead, several at a time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from roller_check.faults import KernelFault
from roller_check.function import Function
from roller_check.run import Program, compile_source
from roller_tvm.codegen.built_kernels import BuiltKernels
from roller_tvm.codegen.cuda_text import CudaSource
from roller_tvm.codegen.errors import NotEmulated


@dataclass(frozen=True)
class Step:
    """A function of a model that was executed."""

    number: int  # number of the call, from 1
    name: str
    kernels: int
    blocks: int
    #: Seconds waited for the C++ compiler, and seconds of execution.
    compiling: float
    seconds: float

    def __str__(self) -> str:
        waited = f", {self.compiling:.1f} s to compile" if self.compiling >= 0.1 else ""
        kernels = f"{self.kernels} kernel{'s' if self.kernels != 1 else ''}"
        return f"{self.number:>4} {self.name}: {kernels}, {self.blocks} blocks, {self.seconds:.1f} s{waited}"


class Emulation:
    """Functions of a built model, called by name; compiled ahead, several at a time.

    Parameters
    ----------
    checked : bool
        True to check accesses to memory (several times slower).
    told : function of Step, optional
        Called after each function.

    Examples
    --------
    >>> source = 'extern "C" __global__ void twice(float* A) { A[threadIdx.x] *= 2.0f; }'
    >>> from roller_tvm.codegen.host_code import BufferSpec, HostCode, launch_of
    >>> host = HostCode((BufferSpec("A", (4,), "float32"),), (), (launch_of("twice", ["A"], ["threadIdx.x"], [4]),))
    >>> emulation = Emulation(BuiltKernels(source, "sm_80", {"f": host}, {}))
    >>> a = np.arange(4, dtype="float32")
    >>> emulation.call("f", [a])
    >>> a.tolist()
    [0.0, 2.0, 4.0, 6.0]
    """

    def __init__(
        self, kernels: BuiltKernels, checked: bool = True, told: Callable[[Step], object] = lambda step: None
    ) -> None:
        self.kernels, self.checked, self.told, self.calls = kernels, checked, told, 0
        self._pool: ThreadPoolExecutor | None = None
        self._programs: dict[tuple[str, ...], Future[Program]] = {}

    def _compile(self) -> None:
        """Start to compile the functions not compiled yet, in the likely order of their calls."""
        self._pool = ThreadPoolExecutor(os.cpu_count() or 1)
        sources = [CudaSource(text) for text in (self.kernels.source, *self.kernels.more)]
        home = {kernel.name: source for source in sources for kernel in source.kernels}
        for host in self.kernels.functions.values():
            if host.kernels not in self._programs:
                source = home.get(host.kernels[0], sources[0]).only(host.kernels)
                self._programs[host.kernels] = self._pool.submit(
                    compile_source, source, self.checked, self.kernels.arch
                )

    def close(self) -> None:
        """Cancel compilations not started yet; a later call compiles them."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._programs = {names: made for names, made in self._programs.items() if not made.cancelled()}
            self._pool = None

    def __contains__(self, name: str) -> bool:
        return name in self.kernels.functions or name in self.kernels.refused

    def call(self, name: str, arguments: Sequence[Any], fresh: Collection[int] = ()) -> None:
        """Call a function; arrays are changed in place.

        Parameters
        ----------
        fresh : collection of int
            Positions of arrays not written yet.

        Raises
        ------
        KernelFault
            A kernel misbehaved.
        NotEmulated
            The function uses something that is not emulated.
        """
        if name in self.kernels.refused:
            raise NotEmulated(self.kernels.refused[name], where=name)
        host, start = self.kernels.functions[name], time.perf_counter()
        if self._pool is None:
            self._compile()
        program = self._programs[host.kernels].result()
        compiled = time.perf_counter()
        sizes = host.sizes([a.shape if isinstance(a, np.ndarray) else a for a in arguments])
        function = Function.of(program, host, sizes)
        places = [n for n, a in enumerate(arguments) if isinstance(a, np.ndarray)]
        try:
            function.run_in_place([arguments[n] for n in places], [i for i, n in enumerate(places) if n in fresh])
        except KernelFault as fault:
            fault.where = f"{name}, call {self.calls + 1}: {fault.where}"
            raise
        self.calls += 1
        seconds = time.perf_counter() - compiled
        self.told(Step(self.calls, name, len(function.launches), function.blocks, compiled - start, seconds))


class EmulatedModel:
    """A model built for CUDA whose kernels run on the CPU; like `LoadedModel`, but without times.

    Parameters
    ----------
    path : path
        File that `save_model` wrote for a CUDA model.
    checked : bool
        True to check accesses to memory (several times slower).
    told : function of Step, optional
        Called after each function of the model.

    Attributes
    ----------
    inputs : dict
        Name -> (shape, dtype).
    """

    kind = "emulated cuda"
    inputs: dict[str, tuple[tuple[int | str, ...], str]]

    def __init__(
        self, path: str | os.PathLike[str], checked: bool = True, told: Callable[[Step], object] = lambda step: None
    ) -> None:
        self._emulation = Emulation(BuiltKernels.of_package(path), checked, told)
        self.inputs = self._load(Path(path))

    def _load(self, path: Path) -> dict[str, tuple[tuple[int | str, ...], str]]:
        """Load the model by its line's TVM; return its inputs."""
        raise NotImplementedError

    def _outputs(self, inputs: Mapping[str, Any]) -> list[Any]:
        """Return the outputs for these inputs, kernels called in `_emulation`."""
        raise NotImplementedError

    def run(self, inputs: Mapping[str, Any]) -> list[Any]:
        """Return the outputs as numpy arrays.

        Raises
        ------
        KernelFault
            A kernel misbehaved.
        """
        try:
            return self._outputs(inputs)
        finally:
            self._emulation.close()
