"""The functions that a model calls, as rOperators: each is read and planned once, however often it is called."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..codegen.host_code import HostCode
from ..device import DeviceSpec
from ..errors import RollerError, UnsupportedOperator, UsageError
from .dialect import Dialect
from .roperator import DataFlowGraph, Edge, RKernel, ROperator


@dataclass(frozen=True)
class Call:
    """A function called in a model's graph.

    Parameters
    ----------
    name : str
        Name, unique in the graph.
    func : Any
        The function, as its TVM line has it; None if it has none and stays outside.
    tensors : tuple of str
        The graph's tensor for each parameter; the last ones are written.
    outside : str
        Why it is in no plan, whatever it computes; '' if it may be in one.
    effect : bool
        Whether it comes after all calls before it, and before all after it.
    function : str
        Name of the function in the model; by default the call's.
    """

    name: str
    func: Any
    tensors: tuple[str, ...]
    outputs: int = 1
    outside: str = ""
    effect: bool = False
    function: str = ""

    @property
    def reads(self) -> tuple[str, ...]:
        return self.tensors[: len(self.tensors) - self.outputs]

    @property
    def writes(self) -> tuple[str, ...]:
        return self.tensors[len(self.tensors) - self.outputs :]


@dataclass(eq=False)
class Planned:
    """A function with its rKernels.

    Parameters
    ----------
    handle : Any
        What the function's TVM line needs to generate code.
    arguments : tuple of str or None
        For each tensor of a call its name in the expression: '' if that is unknown, None if the function does not read
        it, and its kernels have no parameter for it.
    kernels : tuple of RKernel
        Those without code are dropped later.
    apart : str
        Why it cannot run side by side with others on a CPU; '' if it can.
    """

    handle: Any
    arguments: tuple[str | None, ...]
    kernels: tuple[RKernel, ...]
    apart: str = ""

    def drop(self, kernel: RKernel) -> bool:
        """Give up an rKernel that has no code; return whether it was there."""
        there = kernel in self.kernels
        self.kernels = tuple(k for k in self.kernels if k is not kernel)
        return there


class Functions(ABC):
    """The functions of one TVM line for a device; equal ones are read and planned once."""

    def __init__(self, device: DeviceSpec) -> None:
        self.device = device
        self._by_id: dict[int, tuple[Any, Planned | RollerError]] = {}
        self._by_digest: dict[int, list[tuple[Any, Planned | RollerError]]] = {}

    @abstractmethod
    def digest(self, func: Any) -> int:
        """Return a number that equal functions share."""

    @abstractmethod
    def same(self, func: Any, other: Any) -> bool:
        """Return whether two functions compute the same."""

    @abstractmethod
    def read(self, func: Any, name: str) -> Planned:
        """Read and plan a function; raise ``UnsupportedOperator`` if that cannot be."""

    def of(self, func: Any, name: str = "") -> Planned:
        """Return a function with its rKernels.

        Raises
        ------
        RollerError
            The function cannot be planned; the reason is that of the first equal one.
        """
        if id(func) not in self._by_id:
            alike = self._by_digest.setdefault(self.digest(func), [])
            found = next((made for other, made in alike if self.same(other, func)), None)
            if found is None:
                try:
                    found = self.read(func, name)
                except RollerError as error:
                    found = error
                alike.append((func, found))
            self._by_id[id(func)] = func, found
        known = self._by_id[id(func)][1]
        if isinstance(known, RollerError):
            raise known
        if not known.kernels:
            raise UnsupportedOperator("none of its plans has code", name, "leave the operator a kernel of its own")
        return known

    def called(self, call: Call) -> Planned:
        """Return the function of a call; see `of`."""
        return self.of(call.func, call.function or call.name)

    def reason(self, error: RollerError) -> str:
        """Return why a function cannot be planned, for a report."""
        return error.what


class CodeFunctions(Functions):
    """Functions whose rKernels TVM generates code for."""

    @abstractmethod
    def generate(self, planned: Planned, kernel: RKernel, dialect: Dialect) -> tuple[str, HostCode]:
        """Return the source of an rKernel and its host code, one launch a phase; raise if there is none."""


def call_graph(
    calls: Sequence[Call], functions: Functions, sizes: Mapping[str, int | None] | None = None
) -> DataFlowGraph:  # fmt: skip
    """Return calls as a graph of rOperators.

    Parameters
    ----------
    sizes : mapping of str to int or None, optional
        Bytes of tensors, for functions whose rKernels have no plan that says them; None if they are not known.

    Raises
    ------
    RollerError
        A function cannot be planned, or nobody knows the size of its results: leave its call out.
    UsageError
        Two calls write one tensor.
    """
    operators = []
    writer: dict[str, tuple[str, str]] = {}  # tensor -> the call, and its name there
    for call in calls:
        planned = functions.called(call)
        named = list(zip(planned.arguments, call.tensors, strict=True))
        split = len(call.reads)
        # An unread tensor is an edge too: the function is given it.
        inputs = tuple(Edge(argument or "", *writer[t]) for argument, t in named[:split] if t in writer)
        operators.append(ROperator(call.name, planned.kernels, inputs, _written_bytes(call, planned, sizes or {})))
        for argument, tensor in named[split:]:
            if tensor in writer:
                raise UsageError(f"'{tensor}' is written by '{writer[tensor][0]}' too", where=f"call '{call.name}'",
                                 remedy="give each result a tensor of its own")
            writer[tensor] = call.name, argument or ""
    return DataFlowGraph(tuple(operators))


def _written_bytes(call: Call, planned: Planned, sizes: Mapping[str, int | None]) -> int:
    """Return the bytes that a call writes; 0 if the plans of its rKernels say it."""
    if planned.kernels[0].plan is not None:
        return 0
    each = [sizes.get(t) for t in call.writes]
    if None in each:
        raise UnsupportedOperator("the size of its results is known only at run time", call.name,
                                  "leave the operator a function of its own")
    return sum(e for e in each if e is not None)
