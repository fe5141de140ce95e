"""Other runtimes of whole models, on the CPU: onnxruntime, OpenVINO, PyTorch, and PyTorch compiled.

Each builds a model (returning the fields of a result) and opens it, with each thread pinned to a CPU of its own as
TVM's are.
"""

from __future__ import annotations

import importlib.util
import operator
import os
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

from roller_bench.running import Arrays, Running, read_inputs
from roller_tvm.errors import UnsupportedOperator
from roller_tvm.tvm_env.pin import pin_calling_thread

#: Install onnx2torch without its dependencies: one of them has no build for torch without CUDA.
REMEDY = "pip install torch && pip install --no-deps onnx2torch"


def build_onnxruntime(model: dict[str, Any], threads: int) -> dict[str, Any]:
    """Create a session, which is all that its user waits for."""
    if not model["onnx"]:
        raise UnsupportedOperator("the model is no ONNX file", model["title"])
    try:
        import onnxruntime
    except ImportError as error:
        raise UnsupportedOperator("onnxruntime is not installed", model["title"], "pip install onnxruntime") from error
    start = time.perf_counter()
    session_of(Path(model["onnx"]), threads)
    return _built(model, start, f"onnxruntime {onnxruntime.__version__}")


def open_onnxruntime(file: Path, inputs: Arrays, threads: int) -> Running:
    session = session_of(file, threads)

    def run() -> list[Any]:
        return list(session.run(None, dict(inputs)))

    pin_calling_thread()
    return Running(run, run)


def session_of(model: Path | bytes, threads: int) -> Any:
    """Return onnxruntime's session of a file or of a model's bytes, its other threads pinned."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    cpus = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if 1 < threads <= len(cpus):  # the calling thread is one of them; they are counted from 1
        others = ";".join(str(cpu + 1) for cpu in cpus[1:threads])
        options.add_session_config_entry("session.intra_op_thread_affinities", others)
    given = model if isinstance(model, bytes) else str(model)
    return onnxruntime.InferenceSession(given, options, providers=["CPUExecutionProvider"])


def open_openvino(file: Path, inputs: Arrays, threads: int) -> Running:
    """Open an ONNX file in OpenVINO, in float32, for the latency of one request."""
    import openvino

    told = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
    compiled = openvino.Core().compile_model(str(file), "CPU", told)
    request, given = compiled.create_infer_request(), list(inputs.values())

    def run() -> Any:
        return request.infer(given, share_inputs=True, share_outputs=True)

    return Running(run, lambda: [array.copy() for array in run().to_tuple()])


def build_torch(model: dict[str, Any], threads: int, compiled: bool = False) -> dict[str, Any]:
    """Make the torch module from the ONNX file and run it once, which is when torch compiles."""
    if lacking := unavailable(model):
        raise UnsupportedOperator(lacking, model["title"], REMEDY)
    import torch

    start = time.perf_counter()
    try:
        _torch(Path(model["onnx"]), read_inputs(Path(model["inputs"])), threads, compiled).run()
    except Exception as error:  # torch's own refusal becomes a reason; anything else goes on
        if (told := why_not_compiled(error)) is None:
            raise
        raise UnsupportedOperator(told, model["title"]) from error
    return _built(model, start, f"torch {torch.__version__}")


def build_torchcompile(model: dict[str, Any], threads: int) -> dict[str, Any]:
    return build_torch(model, threads, compiled=True)


def _built(model: dict[str, Any], start: float, schedule: str) -> dict[str, Any]:
    spent = time.perf_counter() - start
    return {"file": model["onnx"], "build_s": spent, "seconds": 0.0, "schedule": schedule}


def why_not_compiled(error: Exception) -> str | None:
    """Return torch.compile's reason for refusing a model (the first line of its error), or None for another error."""
    if not type(error).__module__.startswith("torch._dynamo"):
        return None
    return f"torch.compile cannot take it: {next(iter(str(error).strip().splitlines()), type(error).__name__)}"


def unavailable(model: dict[str, Any]) -> str:
    """Return the reason that torch cannot run a model here, or ''."""
    if not model["onnx"]:
        return "the model is no ONNX file"
    missing = [name for name in ("torch", "onnx2torch") if importlib.util.find_spec(name) is None]
    return f"{' and '.join(missing)} not installed: torch, and onnx2torch to read ONNX files" if missing else ""


def open_torch(file: Path, inputs: Arrays, threads: int, compiled: bool = False) -> Running:
    os.environ.setdefault("OMP_PROC_BIND", "true")  # read when torch is loaded
    return _torch(file, inputs, threads, compiled)


def open_torchcompile(file: Path, inputs: Arrays, threads: int) -> Running:
    return open_torch(file, inputs, threads, compiled=True)


def _torch(file: Path, inputs: Arrays, threads: int, compiled: bool) -> Running:
    import torch

    _without_torchvision()
    from onnx2torch import convert

    torch.set_num_threads(threads)
    module = _with_known_shapes(convert(_readable(file))).eval()
    if compiled:
        module = torch.compile(module)
    given = [torch.from_numpy(array) for array in inputs.values()]

    def run() -> Any:
        with torch.inference_mode():
            return module(*given)

    def outputs() -> list[Any]:
        made = run()
        return [t.numpy() for t in (made if isinstance(made, (list, tuple)) else [made])]

    return Running(run, outputs)


def _without_torchvision() -> None:
    """Let onnx2torch be imported without torchvision, which it needs only for NonMaxSuppression and RoiAlign."""
    if "torchvision" in sys.modules or importlib.util.find_spec("torchvision") is not None:
        return
    package, ops = ModuleType("torchvision"), ModuleType("torchvision.ops")

    def missing(name: str) -> Any:
        if name.startswith("__"):  # what tools look for in any module
            raise AttributeError(name)

        def absent(*_: object, **__: object) -> Any:
            raise UnsupportedOperator("torchvision is not installed", name, "pip install torchvision")

        return absent

    ops.__getattr__ = missing  # type: ignore[method-assign]
    package.ops = ops  # type: ignore[attr-defined]
    sys.modules.update({"torchvision": package, "torchvision.ops": ops})


def _readable(file: Path) -> Any:
    """Return an ONNX model that onnx2torch reads: constants as initializers, Dropout as Identity."""
    import onnx

    model = onnx.load(str(file))
    nodes, graph = list(model.graph.node), model.graph
    del graph.node[:]
    for node in nodes:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            value = node.attribute[0].t
            value.name = node.output[0]
            graph.initializer.append(value)
            continue
        if node.op_type == "Dropout":
            node.op_type = "Identity"
            del node.attribute[:], node.input[1:], node.output[1:]
        graph.node.append(node)
    return model


def _with_known_shapes(module: Any) -> Any:
    """Replace Reshape's constant shape tensor by numbers, because ``torch.compile`` breaks a graph at such a tensor."""
    import torch

    graph = module.graph
    for node in list(graph.nodes):
        if node.op != "call_module" or type(module.get_submodule(node.target)).__name__ != "OnnxReshape":
            continue
        given, wanted = node.args
        if wanted.op != "get_attr" or 0 in (shape := operator.attrgetter(wanted.target)(module).tolist()):
            continue
        with graph.inserting_before(node):
            reshaped = graph.call_function(torch.reshape, (given, tuple(shape)))
        node.replace_all_uses_with(reshaped)
        graph.erase_node(node)
    module.recompile()
    return module
