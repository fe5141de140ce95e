"""Fused kernels as OpenCL on PoCL: a second check beside the emulator, for kernels whose blocks do not wait.

OpenCL does not promise to run the blocks of a kernel together, so a block must not wait for another: plan with the
policy 'horizontal'.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from roller_check.check import Checked
from roller_check.pocl import OpenClFunction, queue
from roller_check.together import Arrays, Member, check_together, witnessed
from roller_tvm.codegen.host_code import BufferSpec
from roller_tvm.device import DeviceSpec
from roller_tvm.errors import RollerError, TargetError
from roller_tvm.rammer.functions import Call, CodeFunctions, Planned
from roller_tvm.rammer.fusion_plan import Part
from roller_tvm.rammer.makers import KernelMaker
from roller_tvm.rammer.opencl_functions import OPENCL


@dataclass(frozen=True)
class OwnLoops:
    """A function as TVM computes it by itself.

    Parameters
    ----------
    tensors : tuple of (shape, dtype)
        The tensors that it reads, then those that it writes.
    compute : function of a list of array
        Returns the results, given the tensors that it reads.
    terms : int
        Number of terms in its sums.
    """

    tensors: tuple[tuple[tuple[int, ...], str], ...]
    compute: Callable[[Arrays], Arrays]
    terms: int


class OnPocl:
    """Parts of plans as OpenCL kernels, each compared with the own loops of its functions; those are built once.

    Parameters
    ----------
    own : function
        (planned function, a call of it) -> its `OwnLoops`.

    Attributes
    ----------
    found : dict of str to Checked or RollerError
        The result for each function that a `Fuser` told of; see `together.witnessed`.

    Examples
    --------
    >>> print(OnPocl(functions, own_loops).check("rtasks_0", part, calls))
    executed in OpenCL by PoCL: 1 kernel, all blocks, all elements agree with the reference (0.1 s)
    """

    def __init__(self, functions: CodeFunctions, own: Callable[[Planned, Call], OwnLoops]) -> None:
        self.functions, self.own = functions, own
        self.maker = KernelMaker(functions, dialect=OPENCL)
        self.found: dict[str, Checked | RollerError] = {}
        self._built: dict[int, tuple[Planned, OwnLoops]] = {}

    def __call__(self, symbol: str, part: Part, calls: Sequence[Call], kept: Collection[str]) -> None:
        """Check a function as soon as it is made; see ``Fuser.told``."""
        self.found[symbol] = witnessed(lambda: self.check(symbol, part, calls, kept))

    def check(self, name: str, part: Part, calls: Sequence[Call], kept: Collection[str] = ()) -> Checked:
        """Execute the kernel of a part; see `KernelMaker.fused`.

        Raises
        ------
        CannotFuse, NotEmulated, WrongAnswer, ToolchainError
        """
        kernel = self.maker.fused(name, part, calls, kept)
        inside = {operator for operator, _ in part.kernels}
        members = [self._member(call) for call in calls if call.name in inside]
        return check_together(OpenClFunction(kernel.source, kernel.host), members)

    def _member(self, call: Call) -> Member:
        planned = self.functions.called(call)
        if id(planned) not in self._built:
            self._built[id(planned)] = planned, self.own(planned, call)
        loops = self._built[id(planned)][1]
        read = [t for argument, t in zip(planned.arguments, call.tensors, strict=True) if argument is not None]
        specs = tuple(BufferSpec(t, shape, dtype) for t, (shape, dtype) in zip(read, loops.tensors, strict=True))
        return Member(specs, loops.compute, loops.terms, call.outputs)


def require_gpu_and_pocl(device: DeviceSpec, kind: str) -> None:
    """Raise ``TargetError`` unless the device is a GPU, and ``ToolchainError`` if there is no PoCL."""
    if device.kind != "gpu":
        raise TargetError("fused kernels are a GPU's", f"target {kind}", "give one of kind cuda")
    queue()
