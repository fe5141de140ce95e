"""Readers that hand what they read to TVM: ONNX models, modules, MetaSchedule's databases, Ansor's records for a build.

They run in a process of their own (`apart.run_apart`), because TVM, onnx and LLVM may end theirs.
"""

from __future__ import annotations

import contextlib
import random
import tempfile
import warnings
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from roller_tvm.errors import RecordError, RecordWarning
from roller_tvm.tvm_env import line

from .readers import Reader, Wrong, ansor_records
from .rules import ODD, flip


def onnx_edit(data: bytes, rng: random.Random) -> bytes:
    """Edit one to three fields of an ONNX model: a number, a name, a node, a shape."""
    import onnx

    try:
        model = onnx.load_model_from_string(data)
    except Exception:  # not whole to begin with
        return flip(data, rng)
    for _ in range(rng.choice((1, 1, 2, 3))):
        messages = list(_messages(model))
        message = rng.choice(messages)
        set_ = message.ListFields()
        if not set_:
            continue
        field, value = rng.choice(set_)
        if _is_list(value):
            at = rng.randrange(len(value))
            if rng.random() < 0.4:
                del value[at]
            elif not hasattr(value[at], "ListFields"):
                with contextlib.suppress(TypeError, ValueError):
                    value[at] = _odd(value[at], rng)
            else:
                value.append(value[at])
        elif not hasattr(value, "ListFields"):
            with contextlib.suppress(TypeError, ValueError):
                setattr(message, field.name, _odd(value, rng))
        elif rng.random() < 0.3:
            message.ClearField(field.name)
    return bytes(model.SerializeToString())


def _messages(message: Any) -> Any:
    """Yield a protobuf message and all within it."""
    yield message
    for _, value in message.ListFields():
        for one in value if _is_list(value) else [value]:
            if hasattr(one, "ListFields"):
                yield from _messages(one)


def _is_list(value: Any) -> bool:
    return hasattr(value, "append")


def _odd(value: Any, rng: random.Random) -> Any:
    """Return an odd value of the type of another."""
    if isinstance(value, bytes):
        return rng.choice((b"", b"\xff\xfe", b"x" * 300, value[: len(value) // 2], value[::-1]))
    if isinstance(value, str):
        return rng.choice(("", "x", "w", "y", "Relu", "Reshape", "Loop", "\x1b[31m", "a" * 5000, value + "_"))
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return rng.choice(ODD)
    return rng.choice((0, 1, -1, -20, 2, 3, 7, 16, 99, 2**31 - 1, 2**31, 10**11, 2**62, value + 1, -value))


@lru_cache(maxsize=1)
def small_onnx() -> bytes:
    """Return a small network: a convolution, a pooling, a product, a softmax."""
    from onnx import helper, numpy_helper

    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((4, 3, 3, 3)).astype("float32"), "b": np.zeros(4, "float32"),
               "shape": np.array([1, -1]), "m": rng.standard_normal((64, 5)).astype("float32"),
               "axes": np.array([0]), "start": np.array([0]), "end": np.array([3])}  # fmt: skip
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], "conv", pads=[1, 1, 1, 1], strides=[2, 2], dilations=[1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=[1, 1]),
        helper.make_node("Reshape", ["p", "shape"], ["f"]),
        helper.make_node("MatMul", ["f", "m"], ["d"]),
        helper.make_node("Slice", ["d", "start", "end", "axes"], ["s"]),
        helper.make_node("Softmax", ["s"], ["y"], axis=-1),
    ]
    x, y = (helper.make_tensor_value_info(n, 1, s) for n, s in (("x", [1, 3, 8, 8]), ("y", [1, 5])))
    graph = helper.make_graph(nodes, "g", [x], [y], [numpy_helper.from_array(v, n) for n, v in weights.items()])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    return bytes(model.SerializeToString())


def importer() -> Any:
    """Return the importer of the line that is here."""
    from importlib import import_module

    return import_module(f"roller_tvm.{line()}.importers").IMPORTER


def _read_onnx(path: Path) -> object:
    return importer().load(path, verify=False).inputs


@lru_cache(maxsize=1)
def _module() -> bytes:
    import tvm

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "m.onnx")
        path.write_bytes(small_onnx())
        return str(tvm.ir.save_json(importer().load(path, verify=False).mod)).encode()


def _read_module(path: Path) -> object:
    return importer().load(path, trusted=True).inputs


@lru_cache(maxsize=1)
def _tuned() -> dict[str, bytes]:
    """Return the files of a database that a tuning without measurements writes (Relax line)."""
    from importlib import import_module

    import tvm

    database, tasks, candidates, devices = (
        import_module(f"roller_tvm.relax.{name}") for name in ("database", "tasks", "candidates", "devices")
    )
    te, target = tvm.te, tvm.target.Target({"kind": "llvm", "mcpu": "haswell", "num-cores": 2})
    a, b = te.placeholder((8, 16), name="a"), te.placeholder((16, 4), name="b")
    k = te.reduce_axis((0, 16), name="k")
    c = te.compute((8, 4), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
    (task,) = tasks.extract_tasks(te.create_prim_func([a, b, c], index_dtype_override="int64"))
    found = candidates.make_candidates(task.workloads[0]["main"], devices.device_of(None, target), 3)
    with tempfile.TemporaryDirectory() as folder:
        with database.Store(folder, target) as store:
            for number, (_, schedule) in enumerate(found.schedules(), 1):
                note = database.Note(f"plan {number}", measured_s=1e-3 * number, trials=number, key=task.key)
                store.commit(task, schedule, [1e-3 * number], note)
        return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir()) if path.is_file()}


def _read_database_with(name: str) -> Callable[[Path], object]:
    """Return a reader of a database of which one file is damaged."""

    def read(path: Path) -> object:
        from roller_tvm.relax.record_files import RECORDS, opened

        whole = _tuned()
        with tempfile.TemporaryDirectory() as folder:
            for other, data in whole.items():
                Path(folder, other).write_bytes(path.read_bytes() if other == name else data)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                database = opened(Path(folder))
        records = len(list(database.get_all_tuning_records()))
        said = any(issubclass(one.category, RecordWarning) for one in caught)
        if records < len(whole[RECORDS].splitlines()) and not said and name == RECORDS and path.read_bytes().strip():
            raise Wrong(f"{records} records were read of {len(whole[RECORDS].splitlines())}, and nothing was said")
        return records

    return read


def _read_for_build(path: Path) -> object:
    """Read Ansor's records as a build does: TVM parses what was let through."""
    from roller_tvm.relay.records import load_for_build

    with contextlib.suppress(RecordError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return len(load_for_build(path))
    return 0


def readers() -> dict[str, Reader]:
    """Return the readers of the line that is here, none without TVM."""
    found = {
        "onnx": Reader(".onnx", small_onnx, _read_onnx, (onnx_edit, onnx_edit, onnx_edit)),
        "module": Reader(".json", _module, _read_module),
    }
    if line() == "relax":
        for name in ("database_workload.json", "database_tuning_record.json", "roller_tvm.jsonl"):
            whole = lambda name=name: _tuned()[name]  # noqa: E731
            found[f"database:{name}"] = Reader(".json", whole, _read_database_with(name))
    elif line() == "relay":
        found["ansor-build"] = Reader(".json", ansor_records, _read_for_build)
    return found if line() else {}
