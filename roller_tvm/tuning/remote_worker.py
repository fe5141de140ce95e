"""A worker that builds here and runs on a server of TVM's RPC tracker.

Each run has a session of its own, with a time limit that the server itself keeps: a kernel that hangs is killed there.
A connection that is lost is tried once more, maybe on another server: lost twice, it is the candidate's fault.
"""

from __future__ import annotations

import math
import pickle
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ..errors import MeasureError, ToolchainError
from ..tvm_env.compiler import cross_compiler, is_foreign
from . import numerics, worker
from .line import in_order, worker_side
from .remote import Told, Tracker, is_lost, request
from .session import PACKED
from .supervise import Failed, last_line

Result = TypeVar("Result")

#: Attempts of a candidate whose connection is lost.
ATTEMPTS = 2
#: In the message of a session that its server has ended.
EXPIRED = "RPCSessionTimeoutError"


@dataclass(frozen=True)
class _Tensor:
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class _Sent:
    """A library in the folder of all workers, and what its kernel takes."""

    name: str
    tensors: tuple[_Tensor, ...]
    outputs: tuple[int, ...]


def library(key: str, number: int, mode: int) -> Path:
    """Return the file of a candidate's library, the same in all workers."""
    return Path(Told.here().folder, f"{zlib.crc32(key.encode()):x}_{number}_{mode}.so")


def device_present(kind: str) -> bool:
    """Return whether a server has a device of this kind."""
    with held() as remote:
        return bool(_device(remote, kind).exist)


def build(key: str, number: int, line: str, mode: int) -> float:
    """Build a candidate into the folder of all workers. Returns the seconds it took."""
    opened, start = worker.TASKS[key], time.perf_counter()
    _export(opened.workload.build(line, mode), key, number, mode, opened.target)
    return time.perf_counter() - start


def build_default(key: str, number: int, text: str, mode: int) -> float:
    """Build TVM's own kernel."""
    opened, start = worker.TASKS[key], time.perf_counter()
    try:
        built = opened.workload.build_default(text)
    except Exception as error:  # whatever TVM's passes raise
        raise Failed("build error", last_line(error)) from error
    _export(built, key, number, mode, opened.target)
    return time.perf_counter() - start


def _export(built: Any, key: str, number: int, mode: int, target: Any) -> None:
    path = library(key, number, mode)
    try:
        built.exported.export_library(str(path), **_linker(target))
    except Exception as error:  # whatever the linker says
        raise Failed("build error", last_line(error)) from error
    tensors = tuple(_Tensor(numerics.shape_of(t), str(t.dtype)) for t in built.tensors)
    path.with_suffix(".pkl").write_bytes(pickle.dumps(_Sent(built.name, tensors, built.outputs)))


def _linker(target: Any) -> dict[str, Any]:
    """Return the arguments of ``export_library`` for another architecture than this machine's."""
    triple = str(target.attrs.get("mtriple", ""))
    if not is_foreign(triple):
        return {}
    try:
        compiler = cross_compiler(triple)
    except ToolchainError as error:
        raise Failed("build error", f"{error.what}: {error.remedy}") from error
    try:
        from tvm.support import cc
    except ImportError:
        from tvm.contrib import cc
    return {"fcompile": cc.cross_compiler(compiler)}


class held:  # noqa: N801  (a context manager)
    """A session with a server, waited for; its end frees the server."""

    def __enter__(self) -> Any:
        told = Told.here()
        try:
            self._remote = request(Tracker(told.host, told.port, told.key), told.wait_s, told.session_s)
        except MeasureError as error:
            raise Failed(error.kind, error.what) from error
        return self._remote

    def __exit__(self, *_: object) -> None:
        self._remote = None


def _device(remote: Any, kind: str) -> Any:
    return remote.device("cpu" if kind in ("llvm", "c") else kind, 0)


def run(key: str, number: int, mode: int, best: float, options: dict[str, Any]) -> dict[str, Any]:
    """Run a candidate on a server, as ``worker.run`` does here; times come from the server's own clock."""
    return attempted(partial(_run, key, number, mode, options))


def attempted(call: Callable[[], Result]) -> Result:
    """Return the result of a call that holds a server; one that is lost is tried once more."""
    lost = ""
    for _ in range(ATTEMPTS):
        try:
            return call()
        except Failed:
            raise
        except Exception as error:  # whatever TVM raises of a kernel, or of a connection
            if EXPIRED in str(error):
                raise Failed("run timeout", f"its session was ended after {Told.here().session_s:g} s") from error
            if not is_lost(error):
                raise Failed("run error", last_line(error)) from error
            lost = last_line(error)
    raise Failed("crash", f"the connection was lost {ATTEMPTS} times: {lost}")


def _run(key: str, number: int, mode: int, options: dict[str, Any]) -> dict[str, Any]:
    opened, path = worker.TASKS[key], library(key, number, mode)
    sent: _Sent = pickle.loads(path.with_suffix(".pkl").read_bytes())
    inputs: Sequence[Any] = opened.inputs
    if mode == PACKED:  # values matter to no time
        inputs = numerics.make_inputs([t for n, t in enumerate(sent.tensors) if n not in sent.outputs])
    with held() as remote:
        device = _device(remote, opened.target.kind.name)
        remote.upload(str(path))
        module = remote.load_module(path.name)
        values = in_order(inputs, [worker.poison(sent.tensors[n]) for n in sent.outputs], sent.outputs)
        arguments = [worker_side().tensor(np.asarray(v), device) for v in values]
        start = time.perf_counter()
        module[sent.name](*arguments)
        device.sync()
        once = time.perf_counter() - start
        if mode != PACKED:
            pairs = zip((arguments[n].numpy() for n in sent.outputs), opened.expected, strict=True)
            told = (numerics.difference(got, right, opened.workload.terms) for got, right in pairs)
            if wrong := next(filter(None, told), ""):
                return {"repeats": [], "pruned": False, "wrong": wrong}
        if not options:
            return {"repeats": [], "pruned": False, "wrong": ""}
        least = module.time_evaluator(sent.name, device, number=1, repeat=2)(*arguments).results
        once = max(min(once, *least), 1e-7)
        runs = max(1, math.ceil(options["repeat_s"] / once))
        repeats = int(min(options["repeats"], max(1.0, options["budget_s"] // (once * runs))))
        found = module.time_evaluator(sent.name, device, number=runs, repeat=repeats)(*arguments).results
        return {"repeats": [float(s) for s in found], "pruned": False, "wrong": ""}


FUNCTIONS = {
    **worker.FUNCTIONS, "device_present": device_present, "build": build, "build_default": build_default, "run": run,
}  # fmt: skip

if __name__ == "__main__":
    worker.main(FUNCTIONS)
