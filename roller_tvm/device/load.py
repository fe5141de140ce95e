"""Devices by name or spec file: shipped ones, this machine's CPU and cards, a user's own."""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path

import roller_tvm.device.cpu_profile as cpu_profile
import roller_tvm.device.cuda_profile as cuda_profile
from roller_tvm.device.files import known_devices, read_file, shipped
from roller_tvm.device.spec import DeviceSpec
from roller_tvm.errors import UnknownDevice, must_be


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
        return cpu_profile.cpu_device()
    if name in known_devices():
        return shipped(name)
    if card := re.fullmatch(r"cuda(?::(\d+))?", name):
        return cuda_profile.cuda_report(int(card[1] or 0)).spec
    path = Path(text)
    if path.suffix == ".toml" or path.is_file():
        return load_file(path)
    close = difflib.get_close_matches(name, known_devices(), n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    remedy = f"{hint}known: {', '.join(known_devices())}; or give the path of a spec file (.toml)"
    raise UnknownDevice(f"no device is called {text!r}", "device", remedy)


def load_file(path: str | os.PathLike[str]) -> DeviceSpec:
    """Read a user's spec file: complete, or `base = "h200"` and the numbers that differ.

    With a base only the named numbers change: a smaller `units` leaves the peak as it is.
    """
    return read_file(Path(path), load_device)
