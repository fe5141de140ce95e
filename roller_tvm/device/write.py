"""Write a device as the text of a spec file, from which `load_file` restores it without loss."""

from __future__ import annotations

import json
import re

from roller_tvm.device.files import FORMAT_VERSION
from roller_tvm.device.level import LEVEL, LIMITS
from roller_tvm.device.network import NETWORK
from roller_tvm.device.quantity import canonical_unit
from roller_tvm.device.spec import DeviceSpec

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

    def entry(key: str, value: float, unit: str, table: str = "") -> str:
        source = _quoted(_source(spec, f"{table}.{key}" if table else key))
        return f"{key} = {{ value = {value!r}, unit = {_quoted(unit)}, source = {source} }}"

    lines += ["", entry("units", spec.units, _UNITS[spec.kind])]
    lines.append(entry("vector_width", spec.vector_width, "lanes"))
    lines.append(entry("vector_load", spec.vector_bytes, "B"))
    lines.append(entry("clock", spec.clock_ghz, "GHz"))
    lines.append(entry("launch_overhead", spec.launch_overhead_us, "us"))
    for level in spec.levels:
        at = f"level.{level.name}"
        lines += ["", f"[{at}]", f"scope = {_quoted(level.scope)}"]
        for key, number in LEVEL.items():
            value = getattr(level, number.field)
            if value or not number.optional:
                lines.append(entry(key, value, canonical_unit(number.dimension), at))
    lines += ["", "[limits]"]
    for key, number in LIMITS.items():
        if (value := getattr(spec.limits, number.field)) is not None:
            lines.append(entry(key, value, canonical_unit(number.dimension), "limits"))
    if spec.network is not None:
        lines += ["", "[network]"]
        for key, number in NETWORK.items():
            value = getattr(spec.network, number.field)
            lines.append(entry(key, value, canonical_unit(number.dimension), "network"))
    for section, table in (("peak", spec.peak_gflops), ("tensor_peak", spec.tensor_gflops)):
        if table:
            lines += ["", f"[{section}]", *(entry(dtype, rate, "GFLOP/s", section) for dtype, rate in table.items())]
    return "\n".join(lines) + "\n"


def _source(spec: DeviceSpec, key: str) -> str:
    """Return a number's source without the number that the loader put before it, and without document marks."""
    text = re.sub(r"^[\d.e+-]+ [A-Za-z/]+: ", "", spec.sources.get(key, "")) or "not told"
    return re.sub(r"\[(\w+)\]", r"(\1)", text)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
