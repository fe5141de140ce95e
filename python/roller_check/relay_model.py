"""A model built for CUDA, its graph walked on the CPU: its kernels are executed by the emulator."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from roller_check import kept
from roller_tvm.codegen.errors import NotEmulated
from roller_tvm.errors import BadInput
from roller_tvm.folders import work_folder
from roller_tvm.models import last_line
from roller_tvm.relay.package import LIBRARY, REMEDY, unpack
from roller_tvm.tvm_env import import_relay_tvm

_SAME, _COPY = "__nop", "__copy"  # a reshape; from one device to another


class EmulatedModel(kept.EmulatedModel):
    """A model built for CUDA whose graph is walked here."""

    def _load(self, path: Path) -> dict[str, tuple[tuple[int | str, ...], str]]:
        tvm = import_relay_tvm("running a model")
        try:
            graph, self._params, self._library = _load(tvm, path)
        except (tvm.TVMError, RuntimeError, AttributeError, OSError, ValueError) as error:
            raise BadInput(f"is not a model of the Relay line: {last_line(error)}", str(path), REMEDY) from error
        self._nd, self._nodes, self._heads, self._first = tvm.nd, graph["nodes"], graph["heads"], graph["node_row_ptr"]
        shapes, dtypes = graph["attrs"]["shape"][1], graph["attrs"]["dltype"][1]
        self._tensors = [(tuple(s), "bool" if d == "uint1" else d) for s, d in zip(shapes, dtypes, strict=True)]
        names = {n: self._nodes[n]["name"] for n in graph["arg_nodes"]}
        return {name: self._tensors[self._first[n]] for n, name in names.items() if name not in self._params}

    def _outputs(self, inputs: Mapping[str, Any]) -> list[Any]:
        values: list[Any] = [None] * len(self._tensors)
        for number, node in enumerate(self._nodes):
            first = self._first[number]
            if node["op"] == "null":
                name = node["name"]
                values[first] = np.asarray(inputs[name] if name in inputs else self._params[name], order="C")
                continue
            given = [values[self._place(entry)] for entry in node["inputs"]]
            made = [np.empty(*self._tensors[first + n]) for n in range(int(node["attrs"]["num_outputs"]))]
            self._call(node["attrs"]["func_name"], given, made)
            values[first : first + len(made)] = made
        return [values[self._place(entry)] for entry in self._heads]

    def _place(self, entry: list[int]) -> int:
        return int(self._first[entry[0]] + entry[1])

    def _call(self, name: str, given: list[Any], made: list[Any]) -> None:
        if name in (_SAME, _COPY):
            np.copyto(made[0], given[0].reshape(made[0].shape))
        elif not any(array.size for array in made):  # TVM has no kernel for it
            return
        elif name in self._emulation:
            self._emulation.call(name, [*given, *made], range(len(given), len(given) + len(made)))
        else:  # a function of the host
            try:
                function = self._library[name]
            except AttributeError:
                raise NotEmulated(f"the library has no function {name!r}") from None
            tensors = [self._nd.array(a) for a in (*given, *made)]
            function(*tensors)
            for array, tensor in zip(made, tensors[len(given) :], strict=True):
                np.copyto(array, tensor.numpy())


def _load(tvm: Any, path: Path) -> tuple[dict[str, Any], dict[str, Any], Any]:
    """Return the graph, the parameters as arrays, and the library."""
    if tarfile.is_tarfile(path):
        with work_folder() as folder:
            text, data = unpack(path, folder)
            library = tvm.runtime.load_module(str(Path(folder, LIBRARY)))
        params = tvm.runtime.load_param_dict(data)
    else:
        library = tvm.runtime.load_module(str(path))
        text, params = library["get_graph_json"](), library["get_graph_params"]()
    return json.loads(text), {str(name): array.numpy() for name, array in params.items()}, library


__all__ = ["EmulatedModel"]
