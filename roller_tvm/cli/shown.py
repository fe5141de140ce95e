"""Outputs and times of a run as they are printed."""

from __future__ import annotations

from typing import Any

import numpy as np


def print_outputs(outputs: list[Any], top: int | None) -> None:
    """Print a line of statistics of each output, and its `top` largest values."""
    for number, output in enumerate(outputs):
        s = statistics_of(output)
        print(
            f"output_{number}: {s['shape']} {s['dtype']}, mean {s['mean']:.6g}, std {s['std']:.6g}, "
            f"min {s['min']:.6g}, max {s['max']:.6g}"
        )
        if top:
            _print_top(output, top)


def statistics_of(array: Any) -> dict[str, Any]:
    """Shape, type, mean, deviation and range of an array."""
    values = array.astype(np.float64) if array.size else np.zeros(1)
    return {
        "shape": list(array.shape),
        "dtype": str(array.dtype),
        "mean": float(values.mean()),
        "std": float(values.std()),
        "min": float(values.min()),
        "max": float(values.max()),
    }


def _print_top(array: Any, count: int) -> None:
    flat = array.reshape(-1)
    order = np.argsort(flat)[::-1][:count]
    print(f"  indices {order.tolist()}\n  values  {[float(f'{v:.6g}') for v in flat[order]]}")


def summary(times: list[float]) -> str:
    """In TVMC's form."""
    ms = np.array(times) * 1e3
    head = ("mean (ms)", "median (ms)", "max (ms)", "min (ms)", "std (ms)")
    values = (ms.mean(), np.median(ms), ms.max(), ms.min(), ms.std())
    return (
        "Execution time summary:\n"
        + " ".join(f"{h:^12}" for h in head)
        + "\n"
        + " ".join(f"{v:^12.4f}" for v in values)
    ).rstrip()
