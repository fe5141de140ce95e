"""A built model of the Relax line on a server of TVM's RPC tracker, run by the virtual machine there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm.runtime.vm import VirtualMachine

from ..models.arguments import Signature
from ..tuning.model_report import ModelReport
from ..tuning.remote_run import Sent, SentInputs
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
        self._sent, self._given, self._machine, self._turn = sent, SentInputs(sent.server), None, 0
        self.inputs, self.report, self.kind = inputs, report, "cpu"

    def _machine_there(self) -> Any:
        module, server = self._sent.module, self._sent.server
        if self._turn != server.turn:
            self._machine, self._turn = VirtualMachine(module, server.device), server.turn
        return self._machine

    def arguments(self, inputs: Mapping[str, Any]) -> list[Any]:
        return [inputs[name] for name in self.inputs]

    def call(self, *arguments: Any) -> Any:
        def run() -> Any:
            machine = self._machine_there()
            tensors = self._given.tensors(dict(zip(self.inputs, arguments, strict=True)))
            machine.set_input("main", *tensors.values())
            machine.invoke_stateful("main")
            return machine.get_outputs("main")

        return self._sent.server.retried(run)
