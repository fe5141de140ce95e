"""Built models on disk: a package as TVMC writes and runs it (.tar), or one shared library (.so)."""

from __future__ import annotations

import json
import os
import re
import tarfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from roller_tvm.errors import BadInput, TvmLineError
from roller_tvm.folders import work_folder
from roller_tvm.models import package
from roller_tvm.models.package import SUFFIX, kind_of_kernels
from roller_tvm.tuning.kernel_times import Call, KernelTime, kernel_times, tensor_words
from roller_tvm.tvm_env import import_relay_tvm

#: Files inside a package, in TVMC's names.
MEMBERS = LIBRARY, GRAPH, PARAMS = "mod.so", "mod.json", "mod.params"
FORMAT = package.Format(
    "Relay", (".tar", SUFFIX), "ends in neither .tar nor .so",
    "model.tar is a package as TVMC writes it, model.so one library", "'roller-tvm compile', or tvmc,",
)  # fmt: skip
REMEDY = FORMAT.remedy
#: TVM's constructor of an executor that runs single nodes.
DEBUG = "tvm.graph_executor_debug.create"


def save_params(params: Any) -> bytes:
    """Return weights as the bytes of a parameter file."""
    from tvm import relay

    return bytes(relay.save_param_dict(params))


def save_model(library: Any, path: str | os.PathLike[str]) -> Path:
    """Write the result of ``relay.build``; on failure no file is left.

    Examples
    --------
    >>> save_model(build(mod, params, target), "other.tar").name
    'other.tar'
    """

    def export(made: Path) -> None:
        if made.suffix == SUFFIX:
            library.export_library(str(made))
            return
        code, graph, params = (made.with_name(name) for name in MEMBERS)
        library.get_lib().export_library(str(code))
        graph.write_text(library.get_graph_json())
        params.write_bytes(save_params(library.get_params()))
        with tarfile.open(made, "w") as tar:
            for file in (code, graph, params):
                tar.add(file, file.name)

    return FORMAT.write(library, path, export)


class LoadedModel(package.LoadedModel):
    """A built model of the Relay line, run by TVM's graph executor; `package.LoadedModel` has the attributes."""

    FORMAT = FORMAT

    @staticmethod
    def import_tvm() -> Any:
        return import_relay_tvm("running a model")

    def _open(self, tvm: Any, path: Path, packed: bool, device: str) -> None:
        if packed:
            with work_folder() as folder:
                graph, params = unpack(path, folder)
                library = tvm.runtime.load_module(str(Path(folder, LIBRARY)))
            self._attach(tvm, library, library, device, str(path), graph, params)
            self._read_inputs(set())
        else:
            library = tvm.runtime.load_module(str(path))
            self._attach(tvm, library, library, device, str(path), "", None)
            self._read_inputs(weights_of(library))

    def _take(self, tvm: Any, built: Any, device: str, where: str) -> None:
        weights = built.get_params()
        graph, params = built.get_graph_json(), bytearray(save_params(weights))
        self._attach(tvm, built.get_lib(), built, device, where, graph, params)
        self._read_inputs(set(weights))

    @classmethod
    def of_parts(cls, library: Any, graph: str, params: Mapping[str, Any], report: Any) -> LoadedModel:
        """Return a model of kernels, a graph that calls them, and its weights."""
        model = cls.__new__(cls)
        weights = bytearray(save_params(dict(params)))
        model._attach(cls.import_tvm(), library, library, "", "model", graph, weights)
        model._read_inputs(set(params))
        model.report = report
        return model

    def _attach(
        self, tvm: Any, library: Any, made: Any, device: str, where: str, graph: str, params: bytearray | None
    ) -> None:
        from tvm.contrib import graph_executor

        kind = kind_of_kernels(library, lambda module: module.type_key, lambda module: module.imported_modules)
        self._choose(tvm, kind, device, where)
        self._debug = partial(_debug, library, self.device, graph, params)
        if params is None or made is not library:
            self.module = graph_executor.GraphModule(made["default"](self.device))
        else:
            self.module = graph_executor.create(graph, library, self.device)
            self.module.load_params(params)

    def _read_inputs(self, weights: set[str]) -> None:
        shapes, dtypes = self.module.get_input_info()
        self.inputs = {
            str(n): (tuple(int(e) for e in shapes[n]), str(dtypes[n]))
            for n in sorted(shapes, key=lambda name: int(self.module.get_input_index(str(name))))
            if str(n) not in weights
        }

    def run(self, inputs: Mapping[str, Any], on_device: bool = False) -> list[Any]:
        set_inputs(self.module, inputs)
        self.module.run()
        self.device.sync()
        outputs = [self.module.get_output(i) for i in range(self.module.get_num_outputs())]
        # The executor overwrites its own outputs in the next run.
        return [output.copyto(self.device) if on_device else output.numpy() for output in outputs]

    def arguments(self, inputs: Mapping[str, Any]) -> list[Any]:
        return [inputs]

    def call(self, *arguments: Any) -> Any:
        (inputs,) = arguments
        return self.run(inputs, on_device=True)

    def outputs(self, made: Any, on_device: bool = False) -> list[Any]:
        return list(made) if on_device else [output.numpy() for output in made]

    def times(self, inputs: Mapping[str, Any], number: int, repeat: int) -> list[float]:
        set_inputs(self.module, inputs)
        return [float(t) for t in self.module.benchmark(self.device, number=number, repeat=repeat).results]

    def kernel_times(self, inputs: Mapping[str, Any], repeat: int) -> list[KernelTime]:
        """Return the time of each kernel, over `repeat` runs that TVM's debug executor observes call by call.

        Raises
        ------
        TvmLineError
            TVM was built without its profiler.
        """
        import tvm

        if tvm.get_global_func(DEBUG, allow_missing=True) is None:
            remedy = "use a TVM that was built with USE_PROFILER, as 'roller-tvm install-tvm' installs"
            raise TvmLineError("this TVM has no profiler", "--profile", remedy)
        observed, graph = self._debug()
        set_inputs(observed, inputs)
        observed.run()
        watch = Watch(observed.module["execute_node"], json.loads(graph), self.device)
        return kernel_times([watch.run() for _ in range(repeat)])


class Watch:
    """Times a graph's calls one by one, less what the asking takes: about a microsecond a call is uncertain.

    TVM's own profiler ends the threads of its pool first. They give way 300,000 times before they end, which takes
    minutes on a busy machine.

    Parameters
    ----------
    execute : callable
        Runs the node of a number; of inputs, nothing.
    graph : dict
    device : tvm.runtime.Device
    """

    def __init__(self, execute: Callable[[int], None], graph: Mapping[str, Any], device: Any) -> None:
        self.execute = execute
        self.wait = (lambda: None) if str(device).startswith("cpu") else device.sync
        self.names = [str(node.get("attrs", {}).get("func_name", "__nop")) for node in graph["nodes"]]
        words = list(map(tensor_words, graph["attrs"]["shape"][1], graph["attrs"]["dltype"][1]))
        first = graph["node_row_ptr"]
        tensors = [[first[n] + output for n, output, _ in node["inputs"]] for node in graph["nodes"]]
        for n, own in enumerate(tensors):
            own += range(first[n], first[n + 1])
        self.tensors = [tuple(words[one] for one in own) for own in tensors]

    def run(self) -> list[Call]:
        """Run all nodes once and return the calls of kernels."""
        took = []
        for n in range(len(self.names)):
            began = perf_counter()
            self.execute(n)
            self.wait()
            took.append(perf_counter() - began)
        asking = min((t for t, name in zip(took, self.names, strict=True) if name == "__nop"), default=0.0)
        rows = zip(self.names, self.tensors, took, strict=True)
        return [Call(name, tensors, max(t - asking, 1e-9)) for name, tensors, t in rows if name != "__nop"]


def set_inputs(module: Any, inputs: Mapping[str, Any]) -> None:
    """Set the inputs of a graph executor, whatever their names.

    ``set_input(**inputs)`` confuses inputs called 'key' and 'value' with its own arguments.
    """
    import tvm

    for name, array in inputs.items():
        if module.get_input_index(name) >= 0:  # the graph may have no use for one
            plain = isinstance(array, (np.ndarray, tvm.nd.NDArray)) or not hasattr(array, "__dlpack__")
            module.set_input(name, array if plain else tvm.nd.from_dlpack(array))


def _debug(library: Any, device: Any, graph: str, params: bytearray | None) -> tuple[Any, str]:
    """Return an executor that runs single nodes, and its graph; `graph` is needed if the library does not hold it.

    TVM's own class for this writes every tensor of a run to files.
    """
    import tvm
    from tvm.contrib import graph_executor

    if not graph:
        made = graph_executor.GraphModule(library["debug_create"]("default", device))
        return made, str(library["get_graph_json"]())
    made = tvm.get_global_func(DEBUG)(graph, library, device.device_type, device.device_id)
    module = graph_executor.GraphModule(made)
    module.load_params(params)
    return module, graph


def weights_of(library: Any) -> set[str]:
    """Return the names of the graph's inputs that are weights held by the library."""
    try:
        return {str(name) for name in library["get_graph_params"]()}
    except AttributeError:  # an older TVM
        graph = json.loads(library["get_graph_json"]())
        names = [graph["nodes"][n]["name"] for n in graph["arg_nodes"]]
        return {name for name in names if re.fullmatch(r"p\d+", name)}  # relay.build calls them so


def unpack(path: Path, folder: str) -> tuple[str, bytearray]:
    """Return a package's graph and parameters; extracts its library into the folder."""
    with tarfile.open(path) as tar:
        lacking = [name for name in MEMBERS if name not in tar.getnames()]
        if lacking:
            raise BadInput(f"holds no {', '.join(lacking)}", str(path), REMEDY)
        for name in MEMBERS:
            member = tar.extractfile(name)
            assert member is not None
            Path(folder, name).write_bytes(member.read())
    return Path(folder, GRAPH).read_text(), bytearray(Path(folder, PARAMS).read_bytes())
