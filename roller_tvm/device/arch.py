"""NVIDIA architectures: their order, and the shipped device that represents each."""

from __future__ import annotations

import functools
import re
from dataclasses import replace

from roller_tvm.device.files import SpecFile, read_shipped, shipped, shipped_files
from roller_tvm.device.known import canonical
from roller_tvm.device.level import LIMITS
from roller_tvm.device.spec import DeviceSpec
from roller_tvm.errors import TargetError

NAME_THE_DEVICE = "or name the device itself: --device NAME, or a spec file of your own"
#: Numbers above the newest architecture of the table that are its variants (sm_121 beside sm_120).
_NEWER = 9


def arch_number(arch: str) -> int:
    """Return the number of an NVIDIA architecture, for comparisons: "sm_100" > "sm_90a" > "sm_9".

    Examples
    --------
    >>> arch_number("sm_90a"), arch_number("sm_100") > arch_number("sm_90")
    (90, True)
    """
    match = re.fullmatch(r"(?:sm|compute)_(\d+)[a-z]?", arch)
    if not match:
        told = f"{arch!r} is not an NVIDIA architecture"
        raise TargetError(told, "target", "write -arch=sm_90, -arch=sm_80, ...")
    return int(match[1])


def file_of_model(model: str) -> SpecFile | None:
    """Return the shipped device named by a target's -model or tag; None if there is none."""
    model = model.strip().lower()
    return next((f for f in shipped_files() if model == f.name or model in f.models), None)


def device_of_arch(number: int, where: str, notes: tuple[str, ...] = (), others: bool = True) -> DeviceSpec:
    """Return the shipped device for an architecture, or the nearest older one with the architecture's limits.

    Parameters
    ----------
    where : str
        Place named in the error if all shipped devices are newer.
    notes : tuple of str
        Further notes for the device.
    others : bool
        True to add a note on other devices of the architecture.
    """
    defaults = {arch_number(a): f for f in shipped_files() for a in f.default_for if a.startswith("sm_")}
    lower = [n for n in defaults if n <= number]
    if not lower:
        told = f"sm_{number} is older than any device known here"
        raise TargetError(told, where, f"sm_{min(defaults)} is the oldest; {NAME_THE_DEVICE}")
    newest = max(_arch_limits())
    if number > newest + _NEWER:
        told = f"sm_{number} is no architecture known here"
        raise TargetError(told, where, f"sm_{newest} is the newest, whose code newer cards run; {NAME_THE_DEVICE}")
    nearest = max(lower)
    spec = shipped(defaults[nearest].name)
    if nearest != number:
        return _as_arch(spec, number, notes)
    alike = [f.name for f in shipped_files() if f.arch == spec.arch and f.name != spec.name]
    if alike and others:
        notes = (*notes, f"sm_{number} is taken to be {spec.name}; -model={alike[0]} names another")
    return replace(spec, notes=(*spec.notes, *notes)) if notes else spec


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
    name = max((n for n in table if arch_number(n) <= number), key=arch_number, default=None)
    if name is None:
        return None
    return float(canonical(table[name], f"_cuda.toml: launch.{key}.{name}", "time_us"))


@functools.lru_cache(maxsize=1)
def _arch_limits() -> dict[int, dict[str, int]]:
    """Return the limits of every compute capability listed in `data/_cuda_arch.toml`, by their keys there."""
    found = {}
    for arch, rows in read_shipped("_cuda_arch").items():
        if arch != "documents":
            at = f"_cuda_arch.toml: {arch}"
            found[arch_number(arch)] = {
                key: int(canonical(entry, f"{at}.{key}", LIMITS[key].dimension if key in LIMITS else "size"))
                for key, entry in rows.items()
            }
    return found


def _as_arch(spec: DeviceSpec, number: int, notes: tuple[str, ...]) -> DeviceSpec:
    """Return the nearest older device with the limits of the wanted architecture."""
    known = max((n for n in _arch_limits() if n <= number), default=None)
    limits_of = spec.arch if known is None else f"sm_{known}"
    told = f"no device is known for sm_{number}: speeds are those of {spec.name} ({spec.arch})"
    told += f", limits those of {limits_of}"
    spec = replace(spec, name=f"{spec.name}-sm_{number}", arch=f"sm_{number}", notes=(*spec.notes, *notes, told))
    if known is None:
        return spec
    rows = dict(_arch_limits()[known])
    shared = rows.pop("shared_per_unit")
    levels = tuple(replace(lv, capacity_bytes=shared) if lv.name == "shared" else lv for lv in spec.levels)
    optin = rows["shared_per_block_optin"]
    changed = {LIMITS[key].field: value for key, value in rows.items()}
    changed["shared_per_block_bytes"] = min(spec.limits.shared_per_block_bytes or optin, optin)
    return replace(spec, limits=replace(spec.limits, **changed), levels=levels)
