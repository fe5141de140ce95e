"""Watch: the kernels that TVM's virtual machine calls, and how long each takes."""

from __future__ import annotations

from time import perf_counter
from typing import Any

from ..tuning.kernel_times import Call, tensor_words

#: The virtual machine's own functions: shapes, memory, closures.
_OWN = ("vm.builtin.", "vm.memory_manager.")


class Watch:
    """An instrument for ``VirtualMachine.set_instrument`` that times each kernel alone.

    Each call costs a microsecond or two more than without it. Of a function that calls others only its own time counts.

    Examples
    --------
    >>> watch = Watch(tvm.cpu())
    >>> machine.set_instrument(watch)
    >>> y, calls = machine["main"](x), watch.taken()
    """

    def __init__(self, device: Any) -> None:
        self._wait = None if str(device).startswith("cpu") else device.sync
        self._calls: list[Call] = []
        #: Of each call under way: when it began, and seconds of the calls inside of it.
        self._open: list[list[float]] = []

    def __call__(self, _function: Any, name: str, before: bool, _result: Any, *arguments: Any) -> int:
        """Record a call's time; the virtual machine calls this before and after each call. Returns 0 to go on."""
        if self._wait is not None:
            self._wait()
        if before:
            self._open.append([perf_counter(), 0.0])
            return 0
        began, inside = self._open.pop()
        took = perf_counter() - began
        if self._open:
            self._open[-1][1] += took
        if not name.startswith(_OWN):
            self._calls.append(Call(name, tuple(_words(arguments)), took - inside))
        return 0

    def taken(self) -> list[Call]:
        """The calls since this was asked last."""
        calls, self._calls = self._calls, []
        return calls


def _words(arguments: Any) -> Any:
    for one in arguments:
        if hasattr(one, "shape") and hasattr(one, "dtype"):
            yield tensor_words(one.shape, str(one.dtype))
