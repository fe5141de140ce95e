"""A built model of the Relay line on a server of TVM's RPC tracker, run by the graph executor there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..models.arguments import Signature
from ..tuning.model_report import ModelReport
from ..tuning.remote_run import Sent
from .package import LoadedModel, set_inputs


class RemoteModel(LoadedModel):
    """A model in a library that is sent; its argument is a mapping of names to values here.

    Parameters
    ----------
    sent : Sent
    executor : function of (library, device)
        Returns the graph executor of the loaded library.
    inputs : mapping of name to (shape, dtype)
    report : ModelReport
    """

    def __init__(
        self, sent: Sent, executor: Callable[[Any, Any], Any], inputs: Signature, report: ModelReport
    ) -> None:
        self._sent, self._make, self.module, self._given = sent, executor, None, None
        self.inputs, self.report, self.kind = inputs, report, "cpu"

    def call(self, *arguments: Any) -> Any:
        return self._sent.server.retried(lambda: self._run(*arguments))

    def _run(self, inputs: Mapping[str, Any]) -> list[Any]:
        module = self._sent.opened(self._make)
        if module is not self.module or inputs is not self._given:
            set_inputs(module, inputs)
            self.module, self._given = module, inputs
        self.module.run()
        outputs = [self.module.get_output(n) for n in range(self.module.get_num_outputs())]
        return [output.copyto(self._sent.server.device) for output in outputs]
