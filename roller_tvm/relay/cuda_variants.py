"""Variants of a model's kernels on an NVIDIA GPU: host code to be linked, device code beside it, checks on the card.

A worker lowers a variant: its host code is an object file of the library. Its kernels are compiled here, each once;
TVM's runtime loads them, and the library imports them. The library's sites leave events (`explore.device_times`).
"""

from __future__ import annotations

import ctypes
import os
import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any

import tvm

from ..codegen.kept_cubins import kept_cubin
from ..codegen.mended_cuda import mend_cuda
from ..errors import MeasureError, last_line
from ..explore.device_times import Driver, EventTable
from ..explore.dispatch import NO_STREAM
from ..tuning import linked, worker
from ..tuning.explorable import Class, Linked, refused, to_check
from ..tuning.line import worker_side
from ..tuning.supervise import Call, Pool
from .line import LINE

#: TVM's name of the function that compiles CUDA.
CALLBACK = "tvm_callback_cuda_compile"
MODULE = "roller_tvm.relay.cuda_variants"
#: File beside a kernel's host code; TVM writes the kernels' parameters beside that.
CUBIN = ".cubin"


def write_cuda_variant(text: str, target: str, line: str, mode: int, name: str, path: str) -> dict[int, Any]:
    """Lower a State as a kernel into `path`.o and, as source, `path`.cubin; no weight is packed for a GPU."""
    workload = worker_side().open(text, target, ())
    schedule, args = workload.scheduled(line, mode)  # type: ignore[attr-defined]
    mend_cuda()
    tvm.register_func(CALLBACK, lambda code, *_: bytearray(code.encode()), override=True)
    with tvm.transform.PassContext(opt_level=3):
        write_parts(tvm.build(schedule, list(args), workload.target, name=name), path)
    return {}


def compile_sources(paths: Sequence[Path], arch: str, threads: int) -> dict[Path, str]:
    """Compile the sources of variants in their places; return the reasons of those that do not compile."""

    def one(path: Path) -> str:
        file = path.with_name(f"{path.name}{CUBIN}")
        try:
            file.write_bytes(kept_cubin(file.read_text(), arch))
        except Exception as error:  # whatever the compiler raises of one plan
            return last_line(error)
        return ""

    with ThreadPoolExecutor(threads) as pool:  # the compiler holds no lock of Python's
        return {path: why for path, why in zip(paths, pool.map(one, paths), strict=True) if why}


def write_parts(built: Any, path: str) -> None:
    """Write a module's host code and its kernels."""
    built.save(f"{path}.o")
    for device in built.imported_modules:
        device.save(f"{path}{CUBIN}")


def opened(library: str, cubins: Sequence[str]) -> Any:
    """Return a linked library with its kernels."""
    run = tvm.runtime.load_module(library)
    for path in cubins:
        run.import_module(tvm.runtime.load_module(path))
    return run


@lru_cache(maxsize=1)
def _opened(library: str, cubins: tuple[str, ...]) -> Any:
    return opened(library, cubins)


def check_on_device(library: str, cubins: tuple[str, ...], answers: str, kernels: Sequence[Any]) -> list[str]:
    """Return for each kernel why its results are not right, or ''.

    After an error the device is of no more use to its process, which ends then; the pool starts another.
    """
    right, device = linked.Answers.load(Path(answers)), tvm.cuda(0)

    def function(name: str) -> Any:
        run = _opened(library, cubins)[name]

        def call(*arguments: Any) -> None:
            run(*arguments)
            device.sync()

        return call

    try:
        return [linked.wrong(function(k.name), k, right, lambda v: tvm.nd.array(v, device)) for k in kernels]
    except Exception:  # an error of the device, as TVM raises it
        traceback.print_exc()
        os._exit(1)


def checked_on_device(
    pool: Pool, target: Any, made: Linked, cubins: Sequence[str], classes: Mapping[str, str], known: Mapping[str, Class]
) -> dict[tuple[str, str], str]:
    """Return `tuning.explorable.checked` of kernels that run on this machine's card."""
    checks = list(to_check(LINE, target, made, classes, known))
    files = [str(made.library.with_name(f"answers_{n}.npz")) for n in range(len(checks))]
    calls = [("make_answers", (check.task, file), linked.LIMIT_S) for check, file in zip(checks, files, strict=True)]
    for check, (_, _, reply) in zip(checks, pool.map(calls), strict=True):
        if not reply.ok:
            raise MeasureError(f"there is no reference: {reply.text}", check.key, "leave the operator out")

    def call(number: int, kernels: tuple[Any, ...]) -> Call:
        return "check_on_device", (str(made.library), tuple(cubins), files[number], kernels), linked.LIMIT_S

    with Pool(1, 1, MODULE) as on_card:
        found = linked.each_kernel(on_card, [check.task.kernels for check in checks], call)
    return refused(checks, found, made, classes, known)


def table_of(library: Path, count: int) -> EventTable:
    """Return the table of a loaded library; TVM before FFI queues all it does on the default stream."""
    return EventTable(library, count, Driver(), getattr(ctypes.CDLL(str(library)), NO_STREAM))


FUNCTIONS = {**linked.FUNCTIONS, **{f.__name__: f for f in (write_cuda_variant, check_on_device)}}

if __name__ == "__main__":
    worker.main(FUNCTIONS)
