"""onnxruntime as an implementation of a whole model, on the CPU."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from roller_tvm.compare.whole.running import Arrays, Running
from roller_tvm.errors import UnsupportedOperator
from roller_tvm.tvm_env.pin import pin_calling_thread


def build(model: dict[str, Any], output: Path, threads: int) -> dict[str, Any]:
    """Create a session, which is all that its user waits for; return the fields of a result."""
    if not model["onnx"]:
        raise UnsupportedOperator("the model is no ONNX file", model["title"])
    try:
        import onnxruntime
    except ImportError as error:
        raise UnsupportedOperator("onnxruntime is not installed", model["title"], "pip install onnxruntime") from error
    start = time.perf_counter()
    _session(Path(model["onnx"]), threads)
    spent = time.perf_counter() - start
    told = f"onnxruntime {onnxruntime.__version__}"
    return {"file": model["onnx"], "build_s": spent, "seconds": 0.0, "schedule": told}


def open_model(file: Path, inputs: Arrays, threads: int) -> Running:
    """Open a session on these inputs, with each thread pinned to a CPU of its own as TVM's are."""
    session = _session(file, threads)

    def run() -> list[Any]:
        return list(session.run(None, dict(inputs)))

    pin_calling_thread()
    return Running(run, run)


def _session(file: Path, threads: int) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    cpus = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if 1 < threads <= len(cpus):  # the calling thread is one of them; they are counted from 1
        others = ";".join(str(cpu + 1) for cpu in cpus[1:threads])
        options.add_session_config_entry("session.intra_op_thread_affinities", others)
    return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
