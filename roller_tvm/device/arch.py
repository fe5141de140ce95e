"""NVIDIA architectures: their order, and the shipped device that represents each."""

from __future__ import annotations

import functools
import re
from dataclasses import replace

from roller_tvm.device.load import SpecFile, load_device, read_shipped, shipped_files
from roller_tvm.device.quantity import read_quantity
from roller_tvm.device.spec import DeviceSpec
from roller_tvm.errors import TargetError

NAME_THE_DEVICE = "or name the device itself: --device NAME, or a spec file of your own"
_ARCH_LIMITS = {
    "shared_per_unit": "size",
    "shared_per_block_optin": "size",
    "shared_reserved": "size",
    "max_threads_per_unit": "threads",
    "max_blocks_per_unit": "blocks",
    "registers_per_unit": "registers",
    "max_registers_per_block": "registers",
}


def arch_number(arch: str) -> int:
    """Return the number of an NVIDIA architecture, for comparisons: "sm_100" > "sm_90a" > "sm_9".

    Examples
    --------
    >>> arch_number("sm_90a"), arch_number("sm_100") > arch_number("sm_90")
    (90, True)
    """
    match = re.fullmatch(r"(?:sm|compute)_(\d+)[a-z]?", arch)
    if not match:
        raise TargetError(
            f"{arch!r} is not an NVIDIA architecture",
            where="target",
            remedy="write -arch=sm_90, -arch=sm_80, ...",
        )
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
        raise TargetError(
            f"sm_{number} is older than any device known here",
            where=where,
            remedy=f"sm_{min(defaults)} is the oldest; {NAME_THE_DEVICE}",
        )
    nearest = max(lower)
    spec = load_device(defaults[nearest].name)
    if nearest != number:
        return _as_arch(spec, number, list(notes))
    alike = [f.name for f in shipped_files() if f.arch == spec.arch and f.name != spec.name]
    if alike and others:
        notes = (*notes, f"sm_{number} is taken to be {spec.name}; -model={alike[0]} names another")
    return replace(spec, notes=(*spec.notes, *notes)) if notes else spec


@functools.lru_cache(maxsize=1)
def _arch_limits() -> dict[int, dict[str, int]]:
    """Return the limits of every compute capability listed in `data/_cuda_arch.toml`."""
    out = {}
    for arch, rows in read_shipped("_cuda_arch").items():
        if arch == "documents":
            continue
        where = f"_cuda_arch.toml: {arch}"
        out[arch_number(arch)] = {
            key: int(read_quantity(rows[key], f"{where}.{key}", True).canonical(dimension, where, 1.0, 1))
            for key, dimension in _ARCH_LIMITS.items()
        }
    return out


def _as_arch(spec: DeviceSpec, number: int, notes: list[str]) -> DeviceSpec:
    """Return the nearest older device with the limits of the wanted architecture."""
    known = _arch_limits()
    rows = known[max(n for n in known if n <= number)] if number >= min(known) else None
    notes.append(
        f"no device is known for sm_{number}: speeds are those of {spec.name} ({spec.arch}), limits those of "
        + (f"sm_{max(n for n in known if n <= number)}" if rows else spec.arch)
    )
    name = f"{spec.name}-sm_{number}"
    if rows is None:
        return replace(spec, name=name, arch=f"sm_{number}", notes=(*spec.notes, *notes))
    optin = rows["shared_per_block_optin"]
    limits = replace(
        spec.limits,
        shared_per_block_bytes=min(spec.limits.shared_per_block_bytes or optin, optin),
        shared_per_block_optin_bytes=optin,
        shared_reserved_bytes=rows["shared_reserved"],
        max_threads_per_unit=rows["max_threads_per_unit"],
        max_blocks_per_unit=rows["max_blocks_per_unit"],
        registers_per_unit=rows["registers_per_unit"],
        max_registers_per_block=rows["max_registers_per_block"],
    )
    levels = tuple(
        replace(lv, capacity_bytes=rows["shared_per_unit"]) if lv.name == "shared" else lv
        for lv in spec.levels
    )
    return replace(
        spec, name=name, arch=f"sm_{number}", limits=limits, levels=levels, notes=(*spec.notes, *notes)
    )
