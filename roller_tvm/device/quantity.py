"""Numbers with units: `{ value = 96, unit = "KiB", source = "..." }` to canonical numbers.

Canonical units are bytes, GB/s (1e9), GFLOP/s, GHz, ns, us for launch overhead, and plain counts.  Rates per clock and
times in cycles are converted with the device's clock and number of units, so that a data file can quote a document
literally ("128 B/clk per SM").
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from roller_tvm.errors import SpecError

_SIZE = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_SIZE |= {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_BANDWIDTH = {"MB/s": 1e-3, "GB/s": 1.0, "TB/s": 1e3, "PB/s": 1e6, "GiB/s": 2**30 / 1e9, "TiB/s": 2**40 / 1e9}
_BANDWIDTH |= {"Gbit/s": 0.125}
_RATE = {"GFLOP/s": 1.0, "TFLOP/s": 1e3, "PFLOP/s": 1e6, "GOP/s": 1.0, "TOP/s": 1e3}
_TIME_NS = {"ns": 1.0, "us": 1e3, "ms": 1e6}

#: Dimension -> unit -> factor to the canonical unit.
UNITS: dict[str, dict[str, float]] = {
    "size": dict(_SIZE),
    "bandwidth": _BANDWIDTH | {"B/clk": math.nan, "B/clk/unit": math.nan},
    "rate": _RATE | {"FLOP/clk/unit": math.nan, "OP/clk/unit": math.nan},
    "frequency": {"MHz": 1e-3, "GHz": 1.0},
    "time_ns": _TIME_NS | {"cycles": math.nan},
    "time_us": {"ns": 1e-3, "us": 1.0, "ms": 1e3},
    "cycles": {"cycles": 1.0},
    "fma": {"FMA/cycle": 1.0},
    "issue": {"instructions/cycle": 1.0},
    "loads": {"vectors/cycle": 1.0},
    "ratio": {"ratio": 1.0},
    "bytes_per_cycle": {"B/cycle": 1.0},
    "units": dict.fromkeys(("units", "SM", "CU", "cores", "tiles"), 1.0),
    "nodes": {"nodes": 1.0},
    "threads": dict.fromkeys(("threads", "lanes"), 1.0),
    "blocks": dict.fromkeys(("blocks", "workgroups"), 1.0),
    "registers": {"registers": 1.0},
    "banks": {"banks": 1.0},
    "ways": {"ways": 1.0},
    "lanes": {"lanes": 1.0},
    "instructions": {"instructions": 1.0},
    "schedulers": dict.fromkeys(("schedulers", "SIMD"), 1.0),
}
#: Dimensions whose canonical numbers are whole.
WHOLE = frozenset(
    {"size", "units", "nodes", "threads", "blocks", "registers", "banks", "ways", "lanes", "schedulers", "instructions"}
)


def canonical_unit(dimension: str) -> str:
    """Return the unit of a dimension's canonical numbers.

    Examples
    --------
    >>> canonical_unit("size"), canonical_unit("bandwidth")
    ('B', 'GB/s')
    """
    return next(unit for unit, factor in UNITS[dimension].items() if factor == 1.0)


@dataclass(frozen=True)
class Quantity:
    """A number with its unit and source, as in a file."""

    value: float
    unit: str
    source: str

    def canonical(self, dimension: str, where: str, clock_ghz: float, units: int) -> float | int:
        """Return the number in the canonical unit of `dimension`; raises SpecError for a unit of another dimension."""
        known = UNITS[dimension]
        if self.unit not in known:
            raise SpecError(f"unit {self.unit!r} does not fit here", where, f"use one of {', '.join(known)}")
        factor = known[self.unit]
        if math.isnan(factor):
            factor = 1.0 / clock_ghz if self.unit == "cycles" else clock_ghz
            if self.unit.endswith("/unit"):
                factor *= units
        number = self.value * factor
        if dimension in WHOLE:
            if abs(number - round(number)) > 1e-6:
                raise SpecError(f"{self.value:g} {self.unit} is not a whole number", where, "give a whole number")
            return round(number)
        return number


def read_quantity(entry: Any, where: str, need_source: bool) -> Quantity:
    """Return one entry of a spec file, checked: the number must be finite and not negative."""
    form = '{ value = 96, unit = "KiB", source = "..." }'
    if not isinstance(entry, Mapping):
        raise SpecError(f"{entry!r} has no unit", where=where, remedy=f"write it as {form}")
    for key in entry:
        if key not in ("value", "unit", "source"):
            raise SpecError(f"unknown key {key!r}", where=where, remedy=f"write it as {form}")
    for key in ("value", "unit") + (("source",) if need_source else ()):
        if key not in entry:
            raise SpecError(f"{key!r} is missing", where=where, remedy=f"write it as {form}")
    value, unit, source = entry["value"], entry["unit"], entry.get("source", "user")
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise SpecError(f"value {value!r} is not a number", where=where, remedy=f"write it as {form}")
    if value < 0:
        raise SpecError(f"value {value!r} is negative", where=where, remedy="give a number from 0 up")
    if not isinstance(unit, str):
        raise SpecError(f"unit {unit!r} is not text", where=where, remedy=f"write it as {form}")
    if not isinstance(source, str) or not source.strip():
        raise SpecError("source is empty", where=where, remedy="name the document or the measurement")
    return Quantity(value, unit, source)
