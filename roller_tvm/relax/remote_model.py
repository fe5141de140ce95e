"""A built model of the Relax line on a server of TVM's RPC tracker, run by the virtual machine there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm.runtime.vm import VirtualMachine

from ..models.arguments import Signature
from ..tuning.line import worker_side
from ..tuning.model_report import ModelReport
from ..tuning.remote_run import Sent
from .package import LoadedModel


class RemoteModel(LoadedModel):
    """A model in a library that is sent; arguments are values here.

    Parameters
    ----------
    sent : Sent
    inputs : mapping of name to (shape, dtype)
    report : ModelReport
    """

    def __init__(self, sent: Sent, inputs: Signature, report: ModelReport) -> None:
        self._sent = sent
        self.inputs, self.report, self.kind = inputs, report, "cpu"

    def arguments(self, inputs: Mapping[str, Any]) -> list[Any]:
        return [inputs[name] for name in self.inputs]

    def call(self, *arguments: Any) -> Any:
        def run() -> Any:
            machine, known = self._sent.opened(_machine)
            for name, value in zip(self.inputs, arguments, strict=True):
                if name not in known or known[name][0] is not value:
                    known[name] = value, worker_side().tensor(value, self._sent.server.device)
            machine.set_input("main", *(known[name][1] for name in self.inputs))
            machine.invoke_stateful("main")
            return machine.get_outputs("main")

        return self._sent.server.retried(run)


def _machine(library: Any, device: Any) -> tuple[Any, dict[str, tuple[Any, Any]]]:
    """Return the virtual machine of a library, and room for the inputs that it was sent: values here and there."""
    return VirtualMachine(library, device), {}
