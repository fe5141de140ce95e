"""Reference outputs for ``roller-tvm run``: arrays of a file, or a model run on this CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from roller_tvm.cli.arrays import read_arrays
from roller_tvm.errors import BadInput, WrongAnswer, last_line
from roller_tvm.models.line import ModelLine, Request
from roller_tvm.session import Session
from roller_tvm.tuning.numerics import difference

#: As if every output were one sum of so many terms: float32 may be off by a thousandth of the largest magnitude.
TERMS = 1 << 18
OF_THE_MODEL = "give the file that was compiled, or its outputs for the same inputs; else report it"


def expected(
    path: Path, inputs: Mapping[str, Any], line: ModelLine, threads: int | None, trusted: bool = False
) -> tuple[str, list[Any]]:
    """Return (who says so, outputs): of an .npz file, or of a model on the same inputs.

    Parameters
    ----------
    path : Path
        An .npz file; ONNX (run by onnxruntime if installed); or another model file, built with TVM's own schedules.
    threads : int, optional
        Threads of TVM's pool.
    trusted : bool
        Read a model that is a program.
    """
    if path.suffix == ".npz":
        arrays = read_arrays(path)
        names = [f"output_{n}" for n in range(len(arrays))]
        return str(path), [arrays[n] for n in (names if set(names) == set(arrays) else arrays)]
    if not path.is_file():
        raise BadInput("no such file", str(path), "give an .npz file of outputs, or a model")
    if path.suffix == ".onnx" and (made := _onnxruntime(path, inputs)) is not None:
        return f"onnxruntime on {path}", made
    return f"TVM's own schedules of {path} on this CPU", _by_tvm(path, inputs, line, threads, trusted)


def _by_tvm(
    path: Path, inputs: Mapping[str, Any], line: ModelLine, threads: int | None, trusted: bool
) -> list[Any]:
    """Return a model file's outputs on this CPU, with TVM's own schedules."""
    shapes = {name: array.shape for name, array in inputs.items()}
    request = Request("llvm", shapes, schedules="tvm", threads=threads, trusted=trusted)
    return Session(line, request).read(path).load().run(inputs)


def _onnxruntime(path: Path, inputs: Mapping[str, Any]) -> list[Any] | None:
    try:
        import onnxruntime
    except ImportError:
        return None
    try:
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    except Exception:  # a model, or an operator, that it does not know
        return None
    names = [i.name for i in session.get_inputs()]
    # An importer may have renamed what C++ has no name for; their order is the model's.
    ordered = [inputs[n] for n in names] if set(names) == set(inputs) else list(inputs.values())
    try:
        return list(session.run(None, dict(zip(names, ordered, strict=True))))
    except Exception as error:  # inputs of another number, type or shape; onnxruntime's errors have no common base
        told = f"does not take these inputs: {last_line(error)}"
        raise BadInput(told, str(path), "give the model that was compiled") from error


def compare(outputs: Sequence[Any], wanted: Sequence[Any], who: str) -> str:
    """Return the message for outputs that agree.

    Raises
    ------
    WrongAnswer
        They do not: which, and by how much.

    Examples
    --------
    >>> compare([np.ones(3, "float32")], [np.ones(3, "float32")], "me")
    '1 output agrees with me (largest error 0)'
    """
    if len(outputs) != len(wanted):
        raise WrongAnswer(f"{len(outputs)} outputs where {len(wanted)} are expected", who, OF_THE_MODEL)
    largest = 0.0
    for number, (got, other) in enumerate(zip(outputs, wanted, strict=True)):
        other = np.asarray(other)
        if got.shape != other.shape:
            raise WrongAnswer(f"output_{number} is {list(got.shape)}, expected is {list(other.shape)}", who)
        wrong = difference(got, other, TERMS)
        if wrong:
            raise WrongAnswer(f"output_{number} differs: {wrong}", who, OF_THE_MODEL)
        finite = np.isfinite(other) if np.issubdtype(other.dtype, np.floating) else np.ones(other.shape, bool)
        if finite.any():
            apart = np.abs(got[finite].astype(np.float64) - other[finite].astype(np.float64))
            largest = max(largest, float(apart.max()))
    agree = "1 output agrees" if len(outputs) == 1 else f"{len(outputs)} outputs agree"
    return f"{agree} with {who} (largest error {largest:.2g})"
