"""DeviceSpec: the facts about a device that the planner may use (the paper's hardware abstraction layer).

A device is parallel execution units over levels of memory.  Nothing here knows CUDA, a CPU or TVM.  Numbers come from
data files (`load`) or from profiling (`cpu_profile`), never from rules.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

from roller_tvm.device.frozen import FrozenMap, check, is_int, positive
from roller_tvm.device.level import SCOPES, Limits, MemoryLevel
from roller_tvm.device.network import Network
from roller_tvm.errors import SpecError

FORMAT_VERSION = 1
KINDS = ("gpu", "cpu", "ipu")
ORIGINS = ("data sheet", "profiled", "estimated", "user")
#: Fields in the order of the JSON form: plain values, and mappings.
_SCALARS = ("name", "title", "kind", "arch", "source", "units", "vector_width", "vector_bytes", "clock_ghz",
            "launch_overhead_us")  # fmt: skip
_MAPS = ("peak_gflops", "tensor_gflops", "sources")

__all__ = ["DeviceSpec", "FrozenMap", "Limits", "MemoryLevel"]


@dataclass(frozen=True)
class DeviceSpec:
    """A device, as the planner and the micro-performance model see it.

    Attributes
    ----------
    units : int
        Number of SMs, compute units, IPU tiles, or CPU cores to which threads scale: the paper's TEUs.
    vector_width : int
        Threads per warp or wavefront; on a CPU, float32 lanes of its widest SIMD.
    vector_bytes : int
        Bytes of a thread's widest vector load; on a CPU, of a SIMD register.
    levels : tuple of MemoryLevel
        Memory levels from far ('dram') to near ('register').
    peak_gflops, tensor_gflops : FrozenMap
        GFLOP/s of the whole device by input dtype: ordinary (FMA) units, and tensor or matrix cores.
    network : Network, optional
        Links to other nodes of this kind, outside the levels. Plans of kernels, and `digest`, know nothing of it.
    source : str
        Origin of the numbers: 'data sheet', 'profiled', 'estimated' or 'user'.
    sources, notes : outside equality, `digest` and hash
        Source of each number, and notes for the reader (why profiling was not possible, ...).

    Examples
    --------
    >>> from roller_tvm.device import load_device
    >>> v100 = load_device("v100")
    >>> v100.units, v100.vector_width, v100.level("shared").capacity_bytes
    (80, 32, 98304)
    >>> DeviceSpec.from_json(v100.to_json()) == v100
    True
    """

    name: str
    kind: str
    arch: str
    units: int
    vector_width: int
    vector_bytes: int
    levels: tuple[MemoryLevel, ...]
    limits: Limits
    peak_gflops: FrozenMap[float]
    tensor_gflops: FrozenMap[float]
    clock_ghz: float
    launch_overhead_us: float
    title: str = ""
    network: Network | None = None
    source: str = "data sheet"
    sources: FrozenMap[str] = field(default_factory=FrozenMap, compare=False, repr=False)
    notes: tuple[str, ...] = field(default=(), compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "levels", tuple(self.levels))
        object.__setattr__(self, "notes", tuple(self.notes))
        for key in _MAPS:
            if not isinstance(getattr(self, key), FrozenMap):
                object.__setattr__(self, key, FrozenMap(getattr(self, key)))
        check(bool(self.name), "a device needs a name", "name")
        check(self.kind in KINDS, f"kind {self.kind!r} is not one of {', '.join(KINDS)}", "kind")
        check(bool(self.arch), "a device needs an arch, e.g. 'sm_90'", "arch")
        check(self.source in ORIGINS, f"source {self.source!r} is not one of {', '.join(ORIGINS)}", "source")
        for key in ("units", "vector_width", "vector_bytes"):
            value = getattr(self, key)
            check(is_int(value) and value > 0, f"{key} must be a whole number above 0, not {value!r}", key)
        check(positive(self.clock_ghz), f"the clock must be above 0, not {self.clock_ghz!r}", "clock")
        check(
            math.isfinite(self.launch_overhead_us) and self.launch_overhead_us >= 0,
            f"launch overhead must be 0 or more, not {self.launch_overhead_us!r}",
            "launch_overhead",
        )
        self._check_levels()
        check(
            "float32" in self.peak_gflops,
            "the peak rate of float32 is missing",
            "peak.float32",
            'add a [peak] table with float32, e.g. float32 = { value = 15.7, unit = "TFLOP/s" }',
        )
        for table in ("peak_gflops", "tensor_gflops"):
            for dtype, value in getattr(self, table).items():
                check(positive(value), f"peak of {dtype} must be above 0, not {value!r}", f"{table}.{dtype}")

    def __hash__(self) -> int:
        """Return a hash of a few fields: memoised functions ask for it often."""
        return hash((self.name, self.arch, self.units, self.clock_ghz))

    def _check_levels(self) -> None:
        names = [level.name for level in self.levels]
        check(len(names) >= 2, f"a device needs at least two memory levels, not {names}", "levels")
        check(len(set(names)) == len(names), f"two memory levels of one name: {names}", "levels")
        order = [SCOPES.index(level.scope) for level in self.levels]
        check(
            order == sorted(order),
            "memory levels must run from far to near: device scope, then unit, then thread; "
            f"got {[(lv.name, lv.scope) for lv in self.levels]}",
            "levels",
        )
        for far, near in zip(self.levels, self.levels[1:], strict=False):
            check(
                near.bandwidth_gbps >= far.bandwidth_gbps,
                f"{near.name} ({near.bandwidth_gbps:g} GB/s) is slower than {far.name}, which is farther "
                f"({far.bandwidth_gbps:g} GB/s)",
                f"level {near.name!r}",
                "bandwidths count all instances of the device together",
            )

    # Levels ------------------------------------------------------------------------------------------

    def level(self, name: str) -> MemoryLevel:
        """Return the level called `name`; raises SpecError if there is none."""
        for level in self.levels:
            if level.name == name:
                return level
        names = ", ".join(level.name for level in self.levels)
        raise SpecError(f"{self.name} has no memory level {name!r}", f"device {self.name}", f"its levels are {names}")

    def has(self, name: str) -> bool:
        """Return True if there is a level of this name."""
        return any(level.name == name for level in self.levels)

    def index(self, name: str) -> int:
        """Return the position of a level, 0 for the farthest."""
        return self.levels.index(self.level(name))

    @property
    def far(self) -> MemoryLevel:
        """Farthest level: operands start and results end there."""
        return self.levels[0]

    @property
    def near(self) -> MemoryLevel:
        """Nearest level: registers."""
        return self.levels[-1]

    @property
    def cores(self) -> int:
        """Same as `units`, for code about CPUs."""
        return self.units

    def built_by_tvm(self) -> DeviceSpec:
        """Return the device for kernels built by TVM alone: on a CPU, it checks vectors over an edge lane by lane.

        Examples
        --------
        >>> from roller_tvm.device import load_device
        >>> load_device("v100").built_by_tvm() == load_device("v100")
        True
        """
        return replace(self, limits=replace(self.limits, lanes_checked=1)) if self.kind == "cpu" else self

    def one_unit(self) -> DeviceSpec:
        """Return one unit of the device while all of them work: its share of the bandwidths, capacities and peaks.

        Examples
        --------
        >>> from roller_tvm.device import load_device
        >>> v100 = load_device("v100")
        >>> one = v100.one_unit()
        >>> one.units, round(v100.peak() / one.peak()), round(v100.bandwidth("dram") / one.bandwidth("dram"))
        (1, 80, 80)
        """

        def shared(level: MemoryLevel) -> MemoryLevel:
            own = level.capacity_bytes // (self.units if level.scope == "device" else 1)
            return replace(level, capacity_bytes=own, bandwidth_gbps=level.bandwidth_gbps / self.units)

        def each(peaks: Mapping[str, float]) -> FrozenMap[float]:
            return FrozenMap({dtype: rate / self.units for dtype, rate in peaks.items()})

        levels = tuple(map(shared, self.levels))
        peak, tensor = each(self.peak_gflops), each(self.tensor_gflops)
        return replace(self, units=1, levels=levels, peak_gflops=peak, tensor_gflops=tensor)

    # Rates -------------------------------------------------------------------------------------------

    def peak(self, dtype: str = "float32", tensor: bool = False) -> float:
        """Return the peak GFLOP/s for inputs of `dtype`.

        A dtype without a figure runs at the rate of float32 (integers at that of int32 if given), as it is converted on
        the way in.  With `tensor`, 0.0 if no tensor core takes the dtype.
        """
        if tensor:
            return self.tensor_gflops.get(dtype, 0.0)
        if dtype in self.peak_gflops:
            return self.peak_gflops[dtype]
        if dtype.startswith(("int", "uint")) and "int32" in self.peak_gflops:
            return self.peak_gflops["int32"]
        return self.peak_gflops["float32"]

    def bandwidth(self, name: str) -> float:
        """Return the bandwidth of a level in GB/s, whole device."""
        return self.level(name).bandwidth_gbps

    def machine_balance(self, name: str, dtype: str = "float32", tensor: bool = False) -> float:
        """Return the FLOPs per byte of level `name` above which compute, not that level, is the limit.

        Examples
        --------
        >>> from roller_tvm.device import load_device
        >>> round(load_device("v100").machine_balance("dram"), 1)
        17.4
        """
        return self.peak(dtype, tensor) / self.level(name).bandwidth_gbps

    # Forms -------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Return plain dictionaries and lists, ready for JSON."""
        return {
            "format": FORMAT_VERSION,
            **{key: getattr(self, key) for key in _SCALARS},
            "levels": [asdict(level) for level in self.levels],
            "limits": asdict(self.limits),
            **({"network": asdict(self.network)} if self.network else {}),
            **{key: dict(getattr(self, key)) for key in _MAPS},
            "notes": list(self.notes),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> DeviceSpec:
        """Return the device that `to_dict` wrote; raises SpecError for anything unknown, missing or impossible."""
        data = dict(data)
        version = data.pop("format", None)
        check(
            version == FORMAT_VERSION,
            f"device JSON of format {version!r}, this version reads {FORMAT_VERSION}",
            "format",
            "write the spec again with this version of roller_tvm",
        )
        try:
            data["levels"] = tuple(MemoryLevel(**level) for level in data["levels"])
            data["limits"] = Limits(**data["limits"])
            if data.get("network") is not None:
                data["network"] = Network(**data["network"])
            data |= {key: FrozenMap(data.get(key, {})) for key in _MAPS}
            data["notes"] = tuple(data.get("notes", ()))
            return cls(**data)
        except (TypeError, KeyError, AttributeError, ValueError) as err:
            raise _not_json(f"not a device: {err}") from err

    def to_json(self, indent: int | None = None) -> str:
        """Return JSON text; `from_json` reads it without loss."""
        return json.dumps(self.to_dict(), indent=indent)

    @classmethod
    def from_json(cls, text: str | Mapping[str, Any]) -> DeviceSpec:
        """Return the device that `to_json` (or `to_dict`) wrote."""
        if isinstance(text, Mapping):
            return cls.from_dict(text)
        try:
            data = json.loads(text)
        except json.JSONDecodeError as err:
            raise _not_json(f"not JSON: {err}") from err
        if not isinstance(data, dict):
            raise _not_json("not a JSON object")
        return cls.from_dict(data)

    def digest(self) -> str:
        """Return sixteen hexadecimal digits that depend on every number and nothing else; the same in every process."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        data = self.to_dict()
        for key in ("title", "sources", "notes", "source", "network"):
            data.pop(key, None)
        text = json.dumps(data, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def __str__(self) -> str:
        peak = _si(self.peak_gflops["float32"] * 1e9, "FLOP/s")
        word = {"gpu": "units", "cpu": "cores", "ipu": "tiles"}[self.kind]
        return (
            f"{self.name} ({self.arch}): {self.units} {word} at {self.clock_ghz:.4g} GHz, float32 {peak}, "
            f"{self.far.name} {_si(self.far.bandwidth_gbps * 1e9, 'B/s')}"
        )

    def describe(self, sources: bool = False) -> str:
        """Return a table for readers; with `sources`, also the source of each number.

        Examples
        --------
        >>> from roller_tvm.device import load_device
        >>> print(load_device("v100").describe().splitlines()[0])
        v100  NVIDIA Tesla V100 SXM2 16GB  (sm_70, data sheet)
        """
        lines = [f"{self.name}  {self.title or self.kind}  ({self.arch}, {self.source})"]
        lines.append(
            f"  {self.units} units, vector {self.vector_width} x, vector load {self.vector_bytes} B, "
            f"clock {self.clock_ghz:.2f} GHz, launch {self.launch_overhead_us:.3g} us"
        )
        lines.append(
            f"  {'level':<9} {'scope':<7} {'capacity':>10} {'bandwidth':>11} {'transaction':>12}"
            f" {'line':>6} {'banks':>8} {'latency':>9} {'FLOP/B':>8}"
        )
        for lv in self.levels:
            banks = f"{lv.banks}x{lv.bank_bytes}B" if lv.banks else "-"
            latency = f"{lv.latency_ns:.1f} ns" if lv.latency_ns else "-"
            lines.append(
                f"  {lv.name:<9} {lv.scope:<7} {_bytes(lv.capacity_bytes):>10} "
                f"{_si(lv.bandwidth_gbps * 1e9, 'B/s'):>11} {f'{lv.transaction_bytes} B':>12} "
                f"{f'{lv.line_bytes} B':>6} {banks:>8} {latency:>9} {self.machine_balance(lv.name):>8.2f}"
            )
        for word, table in (("peak", self.peak_gflops), ("tensor", self.tensor_gflops)):
            if table:
                rates = ", ".join(f"{k} {_si(v * 1e9, 'FLOP/s')}" for k, v in table.items())
                lines.append(f"  {word}: {rates}")
        if self.network is not None:
            rate = _si(self.network.bandwidth_gbps * 1e9, "B/s")
            lines.append(f"  network: {self.network.nodes} nodes, {rate} a node, {self.network.latency_us:.3g} us")
        limits = asdict(self.limits).items()
        lines.append("  limits: " + ", ".join(f"{k} {_plain(v)}" for k, v in limits if v is not None))
        lines += [f"  note: {note}" for note in self.notes]
        if sources:
            lines += [f"  {key}: {text}" for key, text in self.sources.items()]
        return "\n".join(lines)


def _not_json(what: str) -> SpecError:
    return SpecError(what, "device JSON", "give the unchanged output of DeviceSpec.to_json")


def _si(value: float, unit: str) -> str:
    for factor, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if value >= factor:
            return f"{value / factor:.4g} {prefix}{unit}"
    return f"{value:.4g} {unit}"


def _plain(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.4g}"


def _bytes(value: int) -> str:
    for factor, unit in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if value >= factor:
            return f"{value / factor:.4g} {unit}"
    return f"{value} B"
