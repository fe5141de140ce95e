"""Profile a card with the kit's own kernels: spec file, tensor cores' peaks, barrier times."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from roller_bench.kit.archive import read_member
from roller_bench.kit.support import ARCHIVE
from roller_tvm.device.cuda_bench import measure
from roller_tvm.device.cuda_driver import Driver, DriverCard
from roller_tvm.device.cuda_measure import CudaProfile, measure_cuda
from roller_tvm.device.cuda_profile import cuda_spec
from roller_tvm.device.rates import Rates, Request, merge
from roller_tvm.device.spec import DeviceSpec, FrozenMap
from roller_tvm.device.write import spec_text
from roller_tvm.errors import ProfileError

#: Operand type -> operations of a warp in one round of `bench.cu` (a multiply-add counts as two).
TENSOR_WORK = {"float16": 8 * 4096, "bfloat16": 8 * 4096, "tfloat32": 8 * 2048, "int8": 8 * 8192}
_THREADS, _BLOCKS_PER_UNIT = 256, 8
#: Block sizes, in threads, for which a barrier is timed.
BARRIERS = (32, 128, 256, 512, 1024)
REPEATS, REPEAT_NS = 8, 2e6
MMA_SOURCE = "measured: mma.sync on random fractions, sums in float32 (int32 of int8); wgmma is not used"


def profile(driver: Driver, ordinal: int, kit: Path, arch: str) -> dict[str, Any]:
    """Profile a card.

    Parameters
    ----------
    arch : str
        Architecture of the kit's cubins that the card runs.

    Returns
    -------
    dict
        'rates': the samples of every request. 'profile': the measured profile, or None if the numbers are implausible;
        'refused' then gives the reason. 'tensor': peaks in GFLOP/s. 'barrier_ns': nanoseconds of a barrier by threads
        per block. 'spec': text of a spec file.
    """
    rates: Rates = {}
    found: CudaProfile | None = None
    refused = ""
    with DriverCard(driver, ordinal, read_member(kit / arch / ARCHIVE, "profile.cubin")) as card:

        def run(requests: Sequence[Request]) -> Rates:
            taken = measure(card, requests)
            merge(rates, taken)
            return taken

        try:
            found = measure_cuda(card.facts, run)
        except ProfileError as error:
            refused = error.what
        facts = card.facts
    with DriverCard(driver, ordinal, read_member(kit / arch / ARCHIVE, "bench.cubin")) as card:
        tensor, barrier = tensor_peaks(card), barriers(card)
    when = f"profiled on {time.strftime('%Y-%m-%d', time.gmtime())} by the GPU kit"
    notes = (when, f"not measured: {refused}") if refused else (when,)
    spec = with_tensor(cuda_spec(facts, found, notes), tensor)
    told = [[r.kind, r.bytes, sorted(round(v, 4) for v in values)] for r, values in rates.items()]
    return {
        "rates": told, "profile": found.to_dict() if found else None, "refused": refused, "tensor": tensor,
        "barrier_ns": {str(t): ns for t, ns in barrier.items()}, "spec": spec_text(spec),
    }  # fmt: skip


def tensor_peaks(card: DriverCard) -> dict[str, float]:
    """Measure the tensor cores' peak of the whole card in GFLOP/s, by operand type."""
    out = card.alloc(64)
    grid = card.facts.units * _BLOCKS_PER_UNIT
    warps = grid * _THREADS // card.facts.warp
    try:
        found = {}
        for dtype, work in TENSOR_WORK.items():
            never = ctypes.c_int(12345) if dtype == "int8" else ctypes.c_float(-1.0e30)
            rounds, ns = _least(card, f"tensor_{dtype}", grid, _THREADS, [never, ctypes.c_uint64(out)])
            found[dtype] = work * warps * rounds / ns
        return found
    finally:
        card.free(out)


def barriers(card: DriverCard) -> dict[int, float]:
    """Measure one barrier in nanoseconds, by threads per block, with one block on each multiprocessor."""
    out = card.alloc(64)
    try:
        found = {}
        for threads in BARRIERS:
            args = [ctypes.c_uint(0), ctypes.c_uint64(out)]
            rounds, ns = _least(card, "barrier", card.facts.units, threads, args)
            found[threads] = ns / rounds
        return found
    finally:
        card.free(out)


def _least(card: DriverCard, kernel: str, grid: int, block: int, args: list[Any]) -> tuple[int, float]:
    """Return (rounds, nanoseconds) of the fastest repeat; `rounds` is large enough to make the launch negligible."""
    rounds, spent = 16, 0.0
    while spent < REPEAT_NS and rounds < 1 << 28:
        rounds *= 4
        spent = card.time(kernel, grid, block, [ctypes.c_uint(rounds), *args])
    return rounds, min(card.time(kernel, grid, block, [ctypes.c_uint(rounds), *args]) for _ in range(REPEATS))


def with_tensor(spec: DeviceSpec, tensor: dict[str, float]) -> DeviceSpec:
    """Return the device with measured peaks of its tensor cores instead of the data sheet's.

    Examples
    --------
    >>> from roller_tvm.device import load_device
    >>> with_tensor(load_device("h200"), {"float16": 600e3}).peak("float16", tensor=True)
    600000.0
    """
    known = {dtype: rate for dtype, rate in tensor.items() if dtype in spec.tensor_gflops and rate > 0}
    sources = dict(spec.sources) | {f"tensor_peak.{dtype}": MMA_SOURCE for dtype in known}
    return replace(
        spec, tensor_gflops=FrozenMap({**spec.tensor_gflops, **known}), sources=FrozenMap(sources)
    )
