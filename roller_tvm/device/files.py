"""Device spec files: complete ones, or a base with some numbers overridden.

A spec file is TOML; its keys are `SCALARS` here and the tables of `level`. Unknown keys, units of another dimension
and impossible values are refused, with file and key. A user's file may be short:

    base = "h200"
    name = "h200-mig-half"
    units = { value = 66, unit = "SM", source = "half of the GPU" }
    [level.dram]
    bandwidth = { value = 2.4, unit = "TB/s" }
"""

from __future__ import annotations

import difflib
import functools
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from roller_tvm.device.level import LEVEL, LIMITS, SCOPES, FileNumber
from roller_tvm.device.network import NETWORK, Network
from roller_tvm.device.quantity import Quantity, read_quantity
from roller_tvm.device.spec import DeviceSpec, FrozenMap, Limits, MemoryLevel
from roller_tvm.errors import SpecError, UnknownDevice
from roller_tvm.foreign import read_text

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FORMAT_VERSION = 1

TEXTS = ("name", "title", "kind", "arch", "base", "origin")
LISTS = ("default_for", "models", "notes")
TABLES = ("documents", "level", "limits", "network", "peak", "tensor_peak")
#: Key -> dimension of its unit.
SCALARS = {
    "units": "units", "vector_width": "threads", "vector_load": "size", "clock": "frequency",
    "launch_overhead": "time_us",
}  # fmt: skip
_DTYPE = re.compile(r"(float|bfloat|int|uint|tfloat|e4m3_float|e5m2_float)\d+")


@dataclass(frozen=True)
class SpecFile:
    """Identity of a shipped device: name, kind, architecture, and the targets that mean it."""

    name: str
    kind: str
    arch: str
    default_for: tuple[str, ...]
    models: tuple[str, ...]


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
    found = []
    for name in known_devices()[:-1]:
        doc, spec = read_shipped(name), shipped(name)
        lists = (tuple(doc.get(key, ())) for key in ("default_for", "models"))
        found.append(SpecFile(name, spec.kind, spec.arch, *lists))
    return tuple(found)


def read_file(path: Path, named: Callable[[str], DeviceSpec]) -> DeviceSpec:
    """Read a user's spec file.

    Parameters
    ----------
    named : function of str
        Returns the device of a name that stands as `base`: one of `known_devices`.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as err:
        remedy = f"give a file that exists, or one of {', '.join(known_devices())}"
        raise UnknownDevice(f"no spec file {str(path)!r}", "device", remedy) from err
    except (OSError, UnicodeDecodeError) as err:
        raise SpecError(f"cannot be read: {err}", str(path), "give a readable TOML file") from err
    return _Document(parse(text, str(path)), str(path), named, folder=path.parent).spec()


def parse(text: str, where: str) -> dict[str, Any]:
    """Parse TOML text; raises SpecError with line and column if it is not TOML."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise SpecError("not TOML: brackets too deep", where, "correct the syntax") from None
    except tomllib.TOMLDecodeError as err:
        raise SpecError(f"not TOML: {err}", where, "correct the syntax at that place") from err


@functools.cache
def read_shipped(name: str) -> dict[str, Any]:
    """Return the document of a shipped data file, by name without ending; not to be changed."""
    file = resources.files("roller_tvm.device") / "data" / f"{name}.toml"
    return parse(file.read_text(encoding="utf-8"), f"{name}.toml")


@functools.cache
def shipped(name: str) -> DeviceSpec:
    """Return a shipped device by its name."""
    return _Document(read_shipped(name), f"{name}.toml", shipped, shipped=True).spec()


class _Document:
    """A parsed spec file whose form is right; `spec` puts the device together.

    Parameters
    ----------
    where : str
        Name of the file, for messages.
    named : function of str
        Returns the device of a name that stands as `base`.
    shipped : bool
        True for shipped files, whose numbers must have a source.
    folder : Path, optional
        Folder to which a relative path in `base` refers.
    above : tuple of str
        Files that build on this one.
    """

    def __init__(
        self, doc: Mapping[str, Any], where: str, named: Callable[[str], DeviceSpec], shipped: bool = False,
        folder: Path | None = None, above: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        self.doc, self.where, self.named, self.shipped = doc, where, named, shipped
        self.documents: Mapping[str, str] = doc.get("documents", {})
        self._check_form()
        self.base = self._find_base(folder, above)
        self.quantities = self._read_quantities()
        self.clock, self.units = 1.0, 1

    def _error(self, what: str, key: str, remedy: str) -> SpecError:
        return SpecError(what, f"{self.where}: {key}", remedy)

    # Form ----------------------------------------------------------------------------------------------

    def _check_form(self) -> None:
        """Refuse unknown keys, and values of another kind than text, list, table or quantity."""
        doc = self.doc
        self._check_keys(doc, ("format", *TEXTS, *LISTS, *TABLES, *SCALARS), "")
        version = doc.get("format", FORMAT_VERSION)
        if version != FORMAT_VERSION:
            told = f"spec file of format {version!r}, this version reads {FORMAT_VERSION}"
            raise self._error(told, "format", f"write format = {FORMAT_VERSION}")
        for key in TEXTS:
            if key in doc and not isinstance(doc[key], str):
                raise self._error(f"{doc[key]!r} is not text", key, "write it in quotes")
        for key in LISTS:
            value = doc.get(key, [])
            if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
                raise self._error(f"{value!r} is not a list of texts", key, 'write ["..."]')
        for key in TABLES:
            self._check_table(doc.get(key, {}), key)
        self._check_keys(doc.get("limits", {}), tuple(LIMITS), "limits.")
        self._check_keys(doc.get("network", {}), tuple(NETWORK), "network.")
        for name, table in doc.get("level", {}).items():
            self._check_table(table, f"level.{name}")
            self._check_keys(table, ("scope", *LEVEL), f"level.{name}.")
        for part in ("peak", "tensor_peak"):
            for dtype in doc.get(part, {}):
                if not _DTYPE.fullmatch(dtype):
                    remedy = "use float64, float32, float16, bfloat16, tfloat32, int8, ..."
                    raise self._error(f"unknown key {dtype!r}: not a dtype", f"{part}.{dtype}", remedy)

    def _check_table(self, table: Any, key: str) -> None:
        if not isinstance(table, Mapping):
            raise self._error(f"{table!r} is not a table", key, f"write [{key}]")

    def _check_keys(self, table: Mapping[str, Any], known: tuple[str, ...], prefix: str) -> None:
        for key in table:
            if key not in known:
                close = difflib.get_close_matches(key, known, n=1)
                hint = f"did you mean {close[0]!r}? " if close else ""
                raise self._error(f"unknown key {key!r}", f"{prefix}{key}", f"{hint}known here: {', '.join(known)}")

    def _find_base(self, folder: Path | None, above: tuple[str, ...]) -> DeviceSpec | None:
        name = self.doc.get("base")
        if name is None:
            return None
        if name in known_devices():
            return self.named(name)
        path = (folder or Path()) / name
        try:
            there = path.is_file()
        except (OSError, ValueError):  # a name that no file can have
            there = False
        if not there:
            remedy = f"use one of {', '.join(known_devices())} or the path of another spec file"
            raise UnknownDevice(f"no device or file is called {name!r}", f"{self.where}: base", remedy)
        full = str(path.resolve())
        if full in above:
            raise self._error(f"base {name!r} goes in a circle", "base", "break the circle")
        text = read_text(path, "TOML", "give a readable TOML file")
        return _Document(parse(text, str(path)), str(path), self.named, folder=path.parent, above=(*above, full)).spec()

    def _read_quantities(self) -> dict[str, Quantity]:
        """Return every number of the document by its full key, with its form and source checked."""
        doc = self.doc
        flat: dict[str, Any] = {key: doc[key] for key in SCALARS if key in doc}
        for name, table in doc.get("level", {}).items():
            flat |= {f"level.{name}.{key}": value for key, value in table.items() if key != "scope"}
        for part in ("limits", "network", "peak", "tensor_peak"):
            flat |= {f"{part}.{key}": value for key, value in doc.get(part, {}).items()}
        found = {key: read_quantity(value, f"{self.where}: {key}", self.shipped) for key, value in flat.items()}
        for key, quantity in found.items():
            for ref in re.findall(r"\[(\w+)\]", quantity.source):
                if ref not in self.documents:
                    told = f"source names document [{ref}], which is not listed"
                    raise self._error(told, key, "add it to the [documents] table")
        return found

    # The device ----------------------------------------------------------------------------------------

    def spec(self) -> DeviceSpec:
        """Return the device: the base's values, and over them those of the document."""
        try:
            # Clock and units first: numbers per clock and per unit need them.
            self.clock = self._above_0("clock", "clock_ghz")
            self.units = int(self._above_0("units", "units"))
            base, limits = self.base, self._table("limits", LIMITS)
            return DeviceSpec(
                name=self._text("name"), title=self._text("title", ""), kind=self._text("kind"),
                arch=self._text("arch"), units=self.units,
                vector_width=int(self._scalar("vector_width", "vector_width")),
                vector_bytes=int(self._scalar("vector_load", "vector_bytes")),
                levels=self._levels(), limits=replace(base.limits if base else Limits(), **limits),
                peak_gflops=self._rates("peak", "peak_gflops"),
                tensor_gflops=self._rates("tensor_peak", "tensor_gflops"),
                clock_ghz=self.clock, launch_overhead_us=float(self._scalar("launch_overhead", "launch_overhead_us")),
                network=self._network(),
                source="data sheet" if self.shipped else str(self.doc.get("origin", "user")),
                sources=self._sources(), notes=(*self._of_base("notes", ()), *self.doc.get("notes", ())),
            )  # fmt: skip
        except SpecError as err:
            if err.where.startswith(self.where):
                raise
            raise self._error(err.what, err.where, err.remedy) from None

    def _of_base(self, name: str, default: Any = None) -> Any:
        return getattr(self.base, name, default)

    def _missing(self, key: str) -> SpecError:
        return self._error(f"{key!r} is missing", key, 'add it, or build on base = "..."')

    def _text(self, key: str, default: str | None = None) -> str:
        value = self.doc.get(key, self._of_base(key, default))
        if value is None:
            raise self._missing(key)
        return str(value)

    def _number(self, key: str, dimension: str) -> float | int:
        return self.quantities[key].canonical(dimension, f"{self.where}: {key}", self.clock, self.units)

    def _scalar(self, key: str, field: str) -> float | int:
        """Return a number of the document, or else the base's `field`."""
        value = self._number(key, SCALARS[key]) if key in self.quantities else self._of_base(field)
        if value is None:
            raise self._missing(key)
        return value

    def _above_0(self, key: str, field: str) -> float | int:
        value = self._scalar(key, field)
        if value <= 0:
            raise self._error(f"{key} must be above 0, not {value:g}", key, "give a number above 0")
        return value

    def _table(self, part: str, numbers: Mapping[str, FileNumber]) -> dict[str, Any]:
        """Return field -> value of the numbers in one of the document's tables, such as 'level.dram'."""
        given = [key.removeprefix(f"{part}.") for key in self.quantities if key.startswith(f"{part}.")]
        return {numbers[key].field: self._number(f"{part}.{key}", numbers[key].dimension) for key in given}

    def _network(self) -> Network | None:
        base, given = self._of_base("network"), self._table("network", NETWORK)
        if base is not None:
            return replace(base, **given)
        if given and (absent := [key for key, number in NETWORK.items() if number.field not in given]):
            raise self._missing(f"network.{absent[0]}")
        return Network(**given) if given else None

    def _levels(self) -> tuple[MemoryLevel, ...]:
        """Return the levels by scope, then by capacity, largest first: those added to a base in their place."""
        levels = {level.name: level for level in self._of_base("levels", ())}
        for name, table in self.doc.get("level", {}).items():
            changed = self._table(f"level.{name}", LEVEL) | {k: table[k] for k in ("scope",) if k in table}
            if name in levels:
                levels[name] = replace(levels[name], **changed)
                continue
            needed = ["scope", *(key for key, number in LEVEL.items() if not number.optional)]
            if absent := [key for key in needed if key not in table]:
                raise self._missing(f"level.{name}.{absent[0]}")
            levels[name] = MemoryLevel(name=name, **changed)
        return tuple(sorted(levels.values(), key=lambda lv: (SCOPES.index(lv.scope), -lv.capacity_bytes)))

    def _rates(self, part: str, field: str) -> FrozenMap[float]:
        own = {dtype: self._number(f"{part}.{dtype}", "rate") for dtype in self.doc.get(part, {})}
        return FrozenMap({**self._of_base(field, {}), **own})

    def _sources(self) -> FrozenMap[str]:
        def told(quantity: Quantity) -> str:
            cited = re.sub(r"\[(\w+)\]", lambda m: self.documents[m.group(1)], quantity.source)
            return f"{quantity.value:g} {quantity.unit}: {cited}"

        return FrozenMap({**self._of_base("sources", {}), **{k: told(q) for k, q in self.quantities.items()}})
