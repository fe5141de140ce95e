"""Read device spec files: complete ones, or a base with some numbers overridden.

A spec file is TOML; its keys are those of `SCALARS`, `LEVEL` and `LIMITS` here.  Unknown keys, units of another
dimension and impossible values are refused, with file and key.  A user's file may be short:

    base = "h200"
    name = "h200-mig-half"
    units = { value = 66, unit = "SM", source = "half of the GPU" }
    [level.dram]
    bandwidth = { value = 2.4, unit = "TB/s" }
"""

from __future__ import annotations

import difflib
import functools
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from importlib import resources
from pathlib import Path
from typing import Any

from roller_tvm.device.quantity import Quantity, read_quantity
from roller_tvm.device.spec import DeviceSpec, FrozenMap, Limits, MemoryLevel
from roller_tvm.errors import SpecError, UnknownDevice, must_be

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FORMAT_VERSION = 1

TEXTS = ("name", "title", "kind", "arch", "base", "origin")
LISTS = ("default_for", "models", "notes")
TABLES = ("documents", "level", "limits", "peak", "tensor_peak")
#: key -> dimension of its unit
SCALARS = {
    "units": "units",
    "vector_width": "threads",
    "vector_load": "size",
    "clock": "frequency",
    "launch_overhead": "time_us",
}
LEVEL = {
    "capacity": "size",
    "bandwidth": "bandwidth",
    "transaction": "size",
    "line": "size",
    "banks": "banks",
    "bank_width": "size",
    "latency": "time_ns",
}
LEVEL_OPTIONAL = ("banks", "bank_width", "latency")
LIMITS = {
    "max_threads_per_block": "threads",
    "max_threads_per_unit": "threads",
    "max_blocks_per_unit": "blocks",
    "registers_per_unit": "registers",
    "max_registers_per_block": "registers",
    "max_registers_per_thread": "registers",
    "register_granularity": "registers",
    "schedulers_per_unit": "schedulers",
    "shared_per_block": "size",
    "shared_per_block_optin": "size",
    "shared_reserved": "size",
    "shared_granularity": "size",
    "vector_registers": "registers",
    "broadcast_registers": "registers",
    "lanes_checked": "lanes",
    "fma_latency": "cycles",
    "fma_per_cycle": "fma",
    "reorder_window": "instructions",
    "stores_per_cycle": "issue",
    "page": "size",
    "page_walk": "cycles",
    "l1_ways": "ways",
    "l2_ways": "ways",
    "l3_ways": "ways",
    "compiled_registers": "registers",
    "local_cache": "size",
    "global_cache": "size",
    "issue_per_cycle": "issue",
    "block_interval": "time_ns",
}


def limit_key(field: str) -> str:
    """Return a limit's key in a spec file: the field's name without its unit.

    Examples
    --------
    >>> limit_key("shared_per_block_bytes"), limit_key("fma_latency_cycles")
    ('shared_per_block', 'fma_latency')
    """
    return re.sub(r"_(bytes|cycles|ns)$", "", field)


_LEVEL_FIELDS = {
    "capacity": "capacity_bytes",
    "bandwidth": "bandwidth_gbps",
    "transaction": "transaction_bytes",
    "line": "line_bytes",
    "banks": "banks",
    "bank_width": "bank_bytes",
    "latency": "latency_ns",
}
_DTYPE = re.compile(r"(float|bfloat|int|uint|tfloat|e4m3_float|e5m2_float)\d+")


@dataclass(frozen=True)
class SpecFile:
    """Identity of a shipped device: name, kind, architecture, and the targets that mean it."""

    name: str
    kind: str
    arch: str
    default_for: tuple[str, ...]
    models: tuple[str, ...]


def load_device(device: str | os.PathLike[str]) -> DeviceSpec:
    """Return the device of a name or a spec file.

    Parameters
    ----------
    device : str or path
        Shipped device ('v100', 'h200', ...), 'cpu' or 'cuda:0' (this machine's, profiled once), or a TOML file.

    Raises
    ------
    UnknownDevice
        The device or file does not exist; the message lists the known devices.
    ProfileError
        The card does not exist.
    SpecError
        The file has an unknown key, a wrong unit or an impossible value.

    Examples
    --------
    >>> load_device("h200").level("shared").capacity_bytes // 1024
    228
    """
    if not isinstance(device, (str, os.PathLike)):
        told = must_be("device", "a name, a path or a DeviceSpec", device)
        raise UnknownDevice(told, "device", f"give one of {', '.join(known_devices())}, or the path of a spec file")
    text = os.fspath(device)
    name = text.strip().lower()
    if name == "cpu":
        from roller_tvm.device.cpu_profile import cpu_device

        return cpu_device()
    if name in known_devices():
        return _shipped(name)
    if card := re.fullmatch(r"cuda(?::(\d+))?", name):
        from roller_tvm.device.cuda_profile import cuda_report

        return cuda_report(int(card[1] or 0)).spec
    path = Path(text)
    if path.suffix == ".toml" or path.is_file():
        return load_file(path)
    close = difflib.get_close_matches(name, known_devices(), n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise UnknownDevice(
        f"no device is called {text!r}",
        where="device",
        remedy=f"{hint}known: {', '.join(known_devices())}; or give the path of a spec file (.toml)",
    )


@functools.lru_cache(maxsize=1)
def known_devices() -> tuple[str, ...]:
    """Return the names that `load_device` knows, 'cpu' last.

    Examples
    --------
    >>> "v100" in known_devices()
    True
    """
    folder = resources.files("roller_tvm.device") / "data"
    names = (p.name[: -len(".toml")] for p in folder.iterdir() if p.name.endswith(".toml"))
    return (*sorted(n for n in names if not n.startswith("_")), "cpu")


@functools.lru_cache(maxsize=1)
def shipped_files() -> tuple[SpecFile, ...]:
    """Return the identity of every shipped device, in the order of their names."""
    out = []
    for name in known_devices()[:-1]:
        doc, spec = read_shipped(name), _shipped(name)
        out.append(
            SpecFile(
                name, spec.kind, spec.arch, tuple(doc.get("default_for", ())), tuple(doc.get("models", ()))
            )
        )
    return tuple(out)


def load_file(path: str | os.PathLike[str]) -> DeviceSpec:
    """Read a user's spec file: complete, or `base = "h200"` and the numbers that differ.

    With a base only the named numbers change: a smaller `units` leaves the peak as it is.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as err:
        raise UnknownDevice(
            f"no spec file {str(path)!r}",
            where="device",
            remedy=f"give a file that exists, or one of {', '.join(known_devices())}",
        ) from err
    except (OSError, UnicodeDecodeError) as err:
        raise SpecError(
            f"cannot be read: {err}", where=str(path), remedy="give a readable TOML file"
        ) from err
    return spec_from_document(parse(text, str(path)), str(path), folder=path.parent)


def parse(text: str, where: str) -> dict[str, Any]:
    """Parse TOML text; raises SpecError with line and column if it is not TOML."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as err:
        raise SpecError(f"not TOML: {err}", where=where, remedy="correct the syntax at that place") from err


def read_shipped(name: str) -> dict[str, Any]:
    """Return the document of a shipped data file, by name without ending."""
    file = resources.files("roller_tvm.device") / "data" / f"{name}.toml"
    return parse(file.read_text(encoding="utf-8"), f"{name}.toml")


@functools.cache
def _shipped(name: str) -> DeviceSpec:
    return spec_from_document(read_shipped(name), f"{name}.toml", need_source=True)


def spec_from_document(
    doc: Mapping[str, Any],
    where: str,
    *,
    need_source: bool = False,
    folder: Path | None = None,
    _above: tuple[str, ...] = (),
) -> DeviceSpec:
    """Return a parsed spec file as a DeviceSpec.

    Parameters
    ----------
    doc : mapping
        Parsed TOML document.
    where : str
        Name of the file, for messages.
    need_source : bool
        True to refuse numbers without a source, as for shipped files.
    folder : Path, optional
        Folder to which a relative path in `base` refers.
    """
    _check_keys(doc, where)
    documents = doc.get("documents", {})
    base = _base(doc, where, folder, _above)
    flat = _quantities(doc, where, need_source)
    for key, quantity in flat.items():
        for ref in re.findall(r"\[(\w+)\]", quantity.source):
            if ref not in documents:
                raise SpecError(
                    f"source names document [{ref}], which is not listed",
                    where=f"{where}: {key}",
                    remedy="add it to the [documents] table",
                )
    try:
        return _build(doc, flat, base, where, documents, need_source)
    except SpecError as err:
        if err.where.startswith(where):
            raise
        raise SpecError(err.what, where=f"{where}: {err.where}", remedy=err.remedy) from None


def _base(
    doc: Mapping[str, Any], where: str, folder: Path | None, above: tuple[str, ...]
) -> DeviceSpec | None:
    name = doc.get("base")
    if name is None:
        return None
    if name == "cpu" or name in known_devices():
        return load_device(name)
    path = (folder or Path()) / name
    if path.is_file():
        full = str(path.resolve())
        if full in above:
            raise SpecError(
                f"base {name!r} goes in a circle", where=f"{where}: base", remedy="break the circle"
            )
        sub = parse(path.read_text(encoding="utf-8"), str(path))
        return spec_from_document(sub, str(path), folder=path.parent, _above=(*above, full))
    raise UnknownDevice(
        f"no device or file is called {name!r}",
        where=f"{where}: base",
        remedy=f"use one of {', '.join(known_devices())} or the path of another spec file",
    )


def _check_keys(doc: Mapping[str, Any], where: str) -> None:
    known = ("format", *TEXTS, *LISTS, *TABLES, *SCALARS)
    _known(doc, known, where, "")
    version = doc.get("format", FORMAT_VERSION)
    if version != FORMAT_VERSION:
        raise SpecError(
            f"spec file of format {version!r}, this version reads {FORMAT_VERSION}",
            where=f"{where}: format",
            remedy=f"write format = {FORMAT_VERSION}",
        )
    for key in TEXTS:
        if key in doc and not isinstance(doc[key], str):
            raise SpecError(f"{doc[key]!r} is not text", where=f"{where}: {key}", remedy="write it in quotes")
    for key in LISTS:
        value = doc.get(key, [])
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise SpecError(
                f"{value!r} is not a list of texts", where=f"{where}: {key}", remedy='write ["..."]'
            )
    for key in TABLES:
        if not isinstance(doc.get(key, {}), Mapping):
            raise SpecError(f"{doc[key]!r} is not a table", where=f"{where}: {key}", remedy=f"write [{key}]")
    _known(doc.get("limits", {}), tuple(LIMITS), where, "limits.")
    for name, table in doc.get("level", {}).items():
        if not isinstance(table, Mapping):
            raise SpecError(
                f"{table!r} is not a table", where=f"{where}: level.{name}", remedy=f"write [level.{name}]"
            )
        _known(table, ("scope", *LEVEL), where, f"level.{name}.")
    for part in ("peak", "tensor_peak"):
        for dtype in doc.get(part, {}):
            if not _DTYPE.fullmatch(dtype):
                raise SpecError(
                    f"unknown key {dtype!r}: not a dtype",
                    where=f"{where}: {part}.{dtype}",
                    remedy="use float64, float32, float16, bfloat16, tfloat32, int8, ...",
                )


def _known(table: Mapping[str, Any], known: tuple[str, ...], where: str, prefix: str) -> None:
    for key in table:
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            raise SpecError(
                f"unknown key {key!r}",
                where=f"{where}: {prefix}{key}",
                remedy=(f"did you mean {close[0]!r}? " if close else "") + f"known here: {', '.join(known)}",
            )


def _quantities(doc: Mapping[str, Any], where: str, need_source: bool) -> dict[str, Quantity]:
    """Return every number of the document by its full key, with its form checked."""
    flat: dict[str, Any] = {key: doc[key] for key in SCALARS if key in doc}
    for name, table in doc.get("level", {}).items():
        flat |= {f"level.{name}.{key}": value for key, value in table.items() if key != "scope"}
    for part in ("limits", "peak", "tensor_peak"):
        flat |= {f"{part}.{key}": value for key, value in doc.get(part, {}).items()}
    return {key: read_quantity(value, f"{where}: {key}", need_source) for key, value in flat.items()}


def _build(
    doc: Mapping[str, Any],
    flat: Mapping[str, Quantity],
    base: DeviceSpec | None,
    where: str,
    documents: Mapping[str, str],
    shipped: bool,
) -> DeviceSpec:
    def missing(key: str) -> SpecError:
        return SpecError(
            f"{key!r} is missing", where=f"{where}: {key}", remedy='add it, or build on base = "..."'
        )

    def text(key: str, default: str | None) -> str:
        value = doc.get(key, default)
        if value is None:
            raise missing(key)
        return str(value)

    # Clock and units first: numbers per clock and per unit need them.
    clock = base.clock_ghz if base else 0.0
    units = base.units if base else 0
    if "clock" in flat:
        clock = float(flat["clock"].canonical("frequency", f"{where}: clock", 1.0, 1))
    if "units" in flat:
        units = int(flat["units"].canonical("units", f"{where}: units", 1.0, 1))
    for key, value in (("clock", clock), ("units", units)):
        if value <= 0:
            raise (
                missing(key)
                if key not in flat
                else SpecError(
                    f"{key} must be above 0, not {value:g}",
                    where=f"{where}: {key}",
                    remedy="give a number above 0",
                )
            )

    def number(key: str, dimension: str) -> float | int:
        return flat[key].canonical(dimension, f"{where}: {key}", clock, units)

    def scalar(key: str, default: float | int | None) -> float | int:
        if key in flat:
            return number(key, SCALARS[key])
        if default is None:
            raise missing(key)
        return default

    levels = {lv.name: lv for lv in base.levels} if base else {}
    for name, table in doc.get("level", {}).items():
        changed: dict[str, Any] = {
            _LEVEL_FIELDS[k]: number(f"level.{name}.{k}", LEVEL[k]) for k in table if k != "scope"
        }
        if "scope" in table:
            changed["scope"] = table["scope"]
        if name in levels:
            levels[name] = replace(levels[name], **changed)
            continue
        for key in ("scope", *LEVEL):
            if key not in table and key not in LEVEL_OPTIONAL:
                raise missing(f"level.{name}.{key}")
        levels[name] = MemoryLevel(name=name, **changed)

    limit_fields = {limit_key(f.name): f.name for f in fields(Limits)}
    limits: dict[str, Any] = {
        limit_fields[k]: number(f"limits.{k}", LIMITS[k]) for k in doc.get("limits", {})
    }
    peaks = dict(base.peak_gflops) if base else {}
    peaks |= {k: number(f"peak.{k}", "rate") for k in doc.get("peak", {})}
    tensor = dict(base.tensor_gflops) if base else {}
    tensor |= {k: number(f"tensor_peak.{k}", "rate") for k in doc.get("tensor_peak", {})}

    sources = dict(base.sources) if base else {}
    for key, q in flat.items():
        cited = re.sub(r"\[(\w+)\]", lambda m: documents[m.group(1)], q.source)
        sources[key] = f"{q.value:g} {q.unit}: {cited}"
    return DeviceSpec(
        name=text("name", base.name if base else None),
        title=text("title", base.title if base else ""),
        kind=text("kind", base.kind if base else None),
        arch=text("arch", base.arch if base else None),
        units=units,
        vector_width=int(scalar("vector_width", base.vector_width if base else None)),
        vector_bytes=int(scalar("vector_load", base.vector_bytes if base else None)),
        levels=tuple(_far_to_near(levels)),
        limits=replace(base.limits if base else Limits(), **limits),
        peak_gflops=FrozenMap(peaks),
        tensor_gflops=FrozenMap(tensor),
        clock_ghz=clock,
        launch_overhead_us=float(scalar("launch_overhead", base.launch_overhead_us if base else None)),
        source="data sheet" if shipped else text("origin", "user"),
        sources=FrozenMap(sources),
        notes=(*(base.notes if base else ()), *doc.get("notes", ())),
    )


def _far_to_near(levels: Mapping[str, MemoryLevel]) -> list[MemoryLevel]:
    """Sort levels, including those added to a base: by scope, then by capacity, largest first."""
    order = {"device": 0, "unit": 1, "thread": 2}
    return sorted(levels.values(), key=lambda lv: (order.get(lv.scope, 0), -lv.capacity_bytes))
