"""onnxruntime as an implementation of a whole model, on the CPU."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from roller_tvm.compare.whole.running import Arrays, Running
from roller_tvm.errors import UnsupportedOperator


def build(model: dict[str, Any], output: Path, threads: int) -> dict[str, Any]:
    """Nothing but a session: that is what its user waits for."""
    if not model["onnx"]:
        raise UnsupportedOperator("it is no ONNX file", model["title"])
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
    """A session on these inputs."""
    session = _session(file, threads)

    def run() -> list[Any]:
        return list(session.run(None, dict(inputs)))

    return Running(run, run)


def _session(file: Path, threads: int) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
