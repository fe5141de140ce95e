"""Bounds that no plausible measurement of a CUDA device crosses: `data/_cuda.toml`, checked and typed."""

from __future__ import annotations

import functools

from roller_tvm.device.arch import arch_number
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


@functools.lru_cache(maxsize=64)
def sanity(key: str) -> float:
    """Return a bound on a measured number.

    Examples
    --------
    >>> sanity("fma_lanes_min") < 64 < 128 < sanity("fma_lanes_max")
    True
    """
    where = f"{_FILE}: sanity.{key}"
    quantity = read_quantity(read_shipped("_cuda")["sanity"][key], where, True)
    return float(quantity.canonical(_SANITY[key], where, 1.0, 1))


@functools.lru_cache(maxsize=64)
def launch_cost(key: str, arch: str) -> float | None:
    """Return the cost of starting kernels one after the other, in microseconds, on an architecture.

    Parameters
    ----------
    key : str
        'graph': a kernel as a node of a CUDA graph. 'barrier': all blocks of one kernel waiting for each other.
    arch : str
        Architecture, such as 'sm_90'. If it was not measured, the next older one's cost is returned.

    Returns
    -------
    float or None
        None if no older one was measured either.

    Examples
    --------
    >>> launch_cost("graph", "sm_90") > launch_cost("barrier", "sm_90"), launch_cost("graph", "sm_37")
    (True, None)
    """
    table = read_shipped("_cuda")["launch"][key]
    number = arch_number(arch) if arch.startswith("sm_") else 0
    known = [name for name in table if arch_number(name) <= number]
    if not known:
        return None
    name = max(known, key=arch_number)
    where = f"{_FILE}: launch.{key}.{name}"
    return float(read_quantity(table[name], where, True).canonical("time_us", where, 1.0, 1))
