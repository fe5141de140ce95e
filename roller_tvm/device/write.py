"""Write a device as the text of a spec file, from which `load_file` restores it without loss."""

from __future__ import annotations

import json
import re
from dataclasses import fields

from roller_tvm.device.load import FORMAT_VERSION, LEVEL_OPTIONAL, LIMITS, limit_key
from roller_tvm.device.spec import DeviceSpec, Limits, MemoryLevel

_LIMIT_UNITS = {
    "threads": "threads", "blocks": "blocks", "registers": "registers", "schedulers": "schedulers", "size": "B",
    "cycles": "cycles", "fma": "FMA/cycle", "issue": "instructions/cycle", "ways": "ways", "lanes": "lanes",
    "instructions": "instructions", "time_ns": "ns",
}  # fmt: skip
_UNITS = {"gpu": "SM", "cpu": "cores", "ipu": "tiles"}


def spec_text(spec: DeviceSpec) -> str:
    """Return the spec file of a device: every number with its unit and source.

    Examples
    --------
    >>> from roller_tvm.device import load_device
    >>> print(spec_text(load_device("v100")).splitlines()[1])
    name = "v100"
    """
    lines = [f"format = {FORMAT_VERSION}"]
    for key in ("name", "title", "kind", "arch"):
        lines.append(f"{key} = {_quoted(getattr(spec, key))}")
    if spec.source != "data sheet":  # a user's file is no data sheet
        lines.append(f"origin = {_quoted(spec.source)}")
    if spec.notes:
        lines.append(f"notes = [{', '.join(map(_quoted, spec.notes))}]")

    def entry(key: str, value: float, unit: str, full: str = "") -> str:
        source = _quoted(_source(spec, full or key))
        return f"{key} = {{ value = {value!r}, unit = {_quoted(unit)}, source = {source} }}"

    lines += ["", entry("units", spec.units, _UNITS[spec.kind])]
    lines.append(entry("vector_width", spec.vector_width, "lanes"))
    lines.append(entry("vector_load", spec.vector_bytes, "B"))
    lines.append(entry("clock", spec.clock_ghz, "GHz"))
    lines.append(entry("launch_overhead", spec.launch_overhead_us, "us"))
    for level in spec.levels:
        at = f"level.{level.name}"
        lines += ["", f"[{at}]", f"scope = {_quoted(level.scope)}"]
        lines += [entry(key, value, unit, f"{at}.{key}") for key, value, unit in _level(level)]
    names = {limit_key(f.name): f.name for f in fields(Limits)}
    limits = {key: getattr(spec.limits, names[key]) for key in LIMITS}
    rows = [(key, value, _LIMIT_UNITS[LIMITS[key]]) for key, value in limits.items() if value is not None]
    lines += ["", "[limits]", *(entry(key, value, unit, f"limits.{key}") for key, value, unit in rows)]
    for section, table in (("peak", spec.peak_gflops), ("tensor_peak", spec.tensor_gflops)):
        if table:
            lines += ["", f"[{section}]"]
            lines += [entry(dtype, rate, "GFLOP/s", f"{section}.{dtype}") for dtype, rate in table.items()]
    return "\n".join(lines) + "\n"


def _level(level: MemoryLevel) -> list[tuple[str, float, str]]:
    rows: list[tuple[str, float, str]] = [
        ("capacity", level.capacity_bytes, "B"),
        ("bandwidth", level.bandwidth_gbps, "GB/s"),
        ("transaction", level.transaction_bytes, "B"),
        ("line", level.line_bytes, "B"),
        ("banks", level.banks, "banks"),
        ("bank_width", level.bank_bytes, "B"),
        ("latency", level.latency_ns, "ns"),
    ]
    return [row for row in rows if row[1] or row[0] not in LEVEL_OPTIONAL]


def _source(spec: DeviceSpec, key: str) -> str:
    """Return a number's source without the number that the loader put before it, and without document marks."""
    text = re.sub(r"^[\d.e+-]+ [A-Za-z/]+: ", "", spec.sources.get(key, "")) or "not told"
    return re.sub(r"\[(\w+)\]", r"(\1)", text)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
