"""An exploration that begins on one machine and runs on another, which has a card and TVM's runtime but no compiler.

A folder holds the library with variants, the cubins of its kernels, the answers to check each by, and the sites.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tvm_ffi

from ..errors import BadInput, MeasureError
from ..explore.device_times import Driver, EventTable
from ..explore.dispatch import Site, Variant
from ..explore.running import Exploration
from ..tuning.linked import LIMIT_S, each_kernel
from ..tuning.supervise import Call, Pool
from .cubins import Cubins
from .device_check import MODULE
from .package import LoadedModel

#: Files of the folder.
LIBRARY, CUBINS, TOLD, STATE = "variants.so", "cubins", "explore.json", "state.json"
#: The model whose kernels are captured in CUDA graphs.
GRAPH = "main_graph"


@dataclass(frozen=True)
class DeviceCheck:
    """A site whose options are to be checked: the kernels in the order of the options, and the file of answers."""

    key: str
    options: tuple[str, ...]
    kernels: tuple[str, ...]
    answers: str


@dataclass(frozen=True)
class Carried:
    """The sites of a library, and how their options are checked.

    Parameters
    ----------
    classes : dict
        Operator -> key of its equivalence class.
    names : dict
        Key -> name of its first operator.
    failed : list of (key, label, why)
        Options that did not build.
    """

    arch: str
    sites: Sequence[Site]
    classes: Mapping[str, str]
    names: Mapping[str, str]
    checks: Sequence[DeviceCheck]
    failed: Sequence[tuple[str, str, str]] = ()

    def save(self, folder: Path) -> None:
        """Write it beside the library."""
        (folder / TOLD).write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Carried:
        """Read what `save` wrote."""
        try:
            told = json.loads((folder / TOLD).read_text(encoding="utf-8"))
            sites = [
                Site(s["operator"], tuple(s["options"]), tuple(Variant(v["kernel"], tuple(v["places"]))
                                                               for v in s["variants"])) for s in told["sites"]
            ]  # fmt: skip
            checks = [DeviceCheck(c["key"], tuple(c["options"]), tuple(c["kernels"]), c["answers"])
                      for c in told["checks"]]  # fmt: skip
            failed = [(str(key), str(label), str(why)) for key, label, why in told["failed"]]
            return cls(told["arch"], sites, told["classes"], told["names"], checks, failed)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BadInput("holds no exploration", str(folder), "make one with 'explore --prepare'") from error

    def cubins(self, folder: Path) -> Cubins:
        return Cubins(self.arch, folder / CUBINS)

    def checked(self, folder: Path, workers: int = 1, limit_s: float = LIMIT_S) -> dict[tuple[str, str], str]:
        """Return (key, label) -> why an option must not run, after each was run on this machine's card."""
        cubins, library = self.cubins(folder), str(folder / LIBRARY)

        def call(number: int, kernels: tuple[str, ...]) -> Call:
            return "check_on_device", (library, cubins, str(folder / self.checks[number].answers), kernels), limit_s

        with Pool(workers, 1, MODULE) as pool:
            found = each_kernel(pool, [check.kernels for check in self.checks], call)
        failed = {(key, label): why for key, label, why in self.failed}
        for check, own in zip(self.checks, found, strict=True):
            failed.update({(check.key, label): why for label, why in zip(check.options, own, strict=True) if why})
            if all(own):
                what = f"no plan computes what it should, the one in use neither: {own[0]}"
                raise MeasureError(what, self.names[check.key], "do not use the model; report it, please")
        return failed

    def opened(self, folder: Path) -> LoadedModel:
        """Return the model with variants; raise ``BadInput`` if there is no card here."""
        with self.cubins(folder).used():
            return LoadedModel(folder / LIBRARY)

    def table(self, folder: Path, driver: Driver | None = None) -> EventTable:
        """Return the table of the opened library."""
        return EventTable(folder / LIBRARY, len(self.sites), driver or Driver(), tvms_stream())

    def exploration(
        self, folder: Path, loaded: LoadedModel, failed: Mapping[tuple[str, str], str], careful: bool = False
    ) -> Exploration:
        """Return the exploration, which goes on from the state in the folder."""
        table = self.table(folder)
        return Exploration(self.sites, self.classes, table, loaded.call, failed, folder / STATE, careful)


def captured_run(loaded: LoadedModel, table: EventTable) -> Callable[..., Any]:
    """Return a function that runs a model with its kernels captured, with the plans of the table in its first run.

    The first run raises whatever TVM raises of kernels that cannot be captured.
    """
    machine = loaded.new_machine()
    table.timing(False)

    def run(*arguments: Any) -> Any:
        made = machine[GRAPH](*arguments)
        loaded.device.sync()
        return made

    return run


def tvms_stream() -> Any:
    """Return TVM's function of C that tells a device's stream."""
    import ctypes

    return ctypes.CDLL(str(tvm_ffi.libinfo.find_libtvm_ffi())).TVMFFIEnvGetStream
