"""Bounds that no sane measurement of a CUDA device crosses: `data/_cuda.toml`, checked and typed."""

from __future__ import annotations

import functools

from roller_tvm.device.load import read_shipped
from roller_tvm.device.quantity import read_quantity

_FILE = "_cuda.toml"
_SANITY = {
    "clock_share_min": "ratio",
    "clock_share_max": "ratio",
    "fma_lanes_min": "fma",
    "fma_lanes_max": "fma",
    "fma_latency_min": "cycles",
    "fma_latency_max": "cycles",
    "memory_share_min": "ratio",
    "memory_share_max": "ratio",
    "shared_min": "bytes_per_cycle",
    "shared_max": "bytes_per_cycle",
    "launch_max": "time_us",
}
_LAUNCH = {"graph_saves": "time_us"}


@functools.lru_cache(maxsize=64)
def sanity(key: str) -> float:
    """A bound on a measured number.

    Examples
    --------
    >>> sanity("fma_lanes_min") < 64 < 128 < sanity("fma_lanes_max")
    True
    """
    where = f"{_FILE}: sanity.{key}"
    quantity = read_quantity(read_shipped("_cuda")["sanity"][key], where, True)
    return float(quantity.canonical(_SANITY[key], where, 1.0, 1))


@functools.lru_cache(maxsize=8)
def launch_cost(key: str) -> float:
    """What starting a kernel costs beside a device's own overhead, in microseconds.

    Examples
    --------
    >>> 0 < launch_cost("graph_saves") < 2
    True
    """
    quantity = read_quantity(read_shipped("_cuda")["launch"][key], f"{_FILE}: launch.{key}", True)
    return float(quantity.canonical(_LAUNCH[key], f"{_FILE}: launch.{key}", 1.0, 1))
