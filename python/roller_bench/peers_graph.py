"""Other runtimes of whole models, on the CPU: onnxruntime and OpenVINO, each thread pinned to a CPU as TVM's are."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from roller_bench.running import Arrays, Running
from roller_tvm.errors import UnsupportedOperator
from roller_tvm.tvm_env.pin import pin_calling_thread


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
    return {"file": model["onnx"], "build_s": time.perf_counter() - start, "seconds": 0.0,
            "schedule": f"onnxruntime {onnxruntime.__version__}"}  # fmt: skip


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
