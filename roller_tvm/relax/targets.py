"""Targets of the Relax line: TVM wants dicts and takes what they leave out from card 0, or from the least CPU.

Whoever writes ``llvm`` or ``cuda -arch=sm_90`` gets the dict that says all that TVM and MetaSchedule ask for.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from typing import Any

from .. import foreign
from ..device import DeviceSpec
from ..device.arch import arch_number
from ..device.from_target import device_for_target, parse_target
from ..device.known import tuned_name
from ..device.matrix_unit import matrix_features, matrix_words
from ..errors import RollerError, TargetError
from ..tvm_env import import_relax_tvm
from ..tvm_env.compiler import is_foreign
from ..tvm_env.llvm_features import check_features

_SHOWN = 5
#: What of a target does not tell kernels apart.
_NOT_KERNELS = ("tag", "keys", "host", "model")


def target_dict(target: Any = None, device: DeviceSpec | None = None) -> dict[str, Any]:
    """A target in full, as the dict that TVM 0.25 and later take.

    Parameters
    ----------
    target : str, mapping or tvm.target.Target, optional
        "llvm", "cuda -arch=sm_90", {"kind": "cuda", "arch": "sm_80"}, "nvidia/nvidia-a100"; by default this CPU.
        What it says stays; what it leaves out is filled in.
    device : DeviceSpec, optional
        A CPU of another architecture, if the target is for that; else the device follows from the target.

    Raises
    ------
    TargetError
        No architecture, a CPU or an option that TVM does not know, a kind that no device answers to.

    Examples
    --------
    >>> full = target_dict("cuda -arch=sm_90")
    >>> full["max_shared_memory_per_block"], full["thread_warp_size"], full["host"]["kind"]
    (232448, 32, 'llvm')
    """
    tvm = import_relax_tvm("a target")
    given = _as_mapping(tvm, "llvm" if target is None else target)
    kind, elsewhere = str(given["kind"]), is_foreign(str(given.get("mtriple", "")))
    # Nothing is known of another machine but by its file; of this one, and of a GPU, the target says enough.
    told = device if elsewhere and device is not None and device.kind == "cpu" else None
    known = told or device_for_target({k: v for k, v in given.items() if k != "host"})
    if kind == "c":
        remedy = "give llvm; for another machine with its mtriple and mcpu"
        raise TargetError("C code as TVM writes it has no vectors, and plans for a CPU do", "target c", remedy)
    if kind == "llvm":
        check_features(tvm, list(given.get("mattr") or ()), str(given.get("mtriple", "")), "target llvm")
        full = {**given, "num-cores": given.get("num-cores", known.units)}
        if mcpu := _mcpu(tvm, given):
            full["mcpu"] = mcpu
            # LLVM guesses a CPU from its family and model, which a virtual machine may hide.
            if str(given.get("mcpu", "native")) == "native" and "mattr" not in given and (own := matrix_features()):
                full["mattr"] = own
        return full
    host = given.get("host")
    full = {**{k: v for k, v in _limits(known).items() if k in _options(tvm, kind)}, **given}
    full["host"] = target_dict("llvm" if host is None else host)
    return full


def make_target(target: Any = None, device: DeviceSpec | None = None) -> Any:
    """The ``tvm.target.Target`` of `target_dict`.

    Examples
    --------
    >>> int(make_target("cuda -arch=sm_80").attrs["max_shared_memory_per_block"]) // 1024
    163
    """
    return tvm_target(target_dict(target, device))


def as_target(target: Any) -> Any:
    """The ``tvm.target.Target`` of what a user gives, nothing added, except to words, which TVM no longer reads.

    A dict or a name stays what TVM makes of it: who plans for a target also builds for it.

    Examples
    --------
    >>> "mcpu" in as_target({"kind": "llvm"}).attrs, str(as_target("cuda -arch=sm_80").attrs["arch"])
    (False, 'sm_80')
    """
    tvm = import_relax_tvm("a target")
    if isinstance(target, tvm.target.Target):
        return target
    return make_target(target) if isinstance(target, str) and " " in target.strip() else tvm_target(target)


def tvm_target(full: Any) -> Any:
    """Return the ``tvm.target.Target`` of a dict or a name."""
    tvm = import_relax_tvm("a target")
    try:
        return tvm.target.Target(full)
    except (ValueError, TypeError, RuntimeError) as error:
        raise TargetError(
            f"TVM does not take it: {str(error).strip().splitlines()[-1]}",
            f"target {full}",
            'give for example {"kind": "llvm"} or {"kind": "cuda", "arch": "sm_90"}',
        ) from error


def local_target() -> dict[str, Any]:
    """Return this machine's CPU: LLVM's name for it (see `tuned_name`), and the threads that it scales to.

    Examples
    --------
    >>> local_target()["kind"]
    'llvm'
    """
    return target_dict("llvm")


def _as_mapping(tvm: Any, target: Any) -> dict[str, Any]:
    """Return the given target as a mapping, with values of the types in TVM's schema."""
    if isinstance(target, str) and re.fullmatch(r"[\w.-]+/[\w.-]+", target.strip()):  # a tag, which TVM knows
        target = _from_tag(tvm, target.strip())
    if isinstance(target, tvm.target.Target):
        target = exported(target)
    parsed = parse_target(target)
    if parsed.kind == "cuda" and (arch := parsed.attrs.get("arch")):
        arch_number(arch)
    options = _options(tvm, parsed.kind)
    result: dict[str, Any] = {"kind": parsed.kind}
    for key, value in parsed.attrs.items():
        if key == "tag" and not value:
            continue
        result[key] = _typed(key, value, options, parsed.kind)
    if isinstance(target, Mapping) and target.get("host") is not None:
        result["host"] = target["host"]
    return result


def _from_tag(tvm: Any, tag: str) -> dict[str, Any]:
    try:
        found = exported(tvm.target.Target(tag))
    except (ValueError, TypeError, RuntimeError) as error:
        raise TargetError(f"TVM has no tag '{tag}'", "target", 'give {"kind": "cuda", "arch": "sm_90"}') from error
    # TVM's tags give what a block gets without asking for more.
    return {k: v for k, v in found.items() if k not in ("tag", "max_shared_memory_per_block")}


def exported(target: Any) -> dict[str, Any]:
    """Return a Target as plain values."""

    def plain(value: Any) -> Any:
        if isinstance(value, (str, int, bool, float)):
            return value
        return {str(k): plain(v) for k, v in value.items()} if hasattr(value, "items") else [plain(v) for v in value]

    # Features follow from the other words, and are no options.
    return {str(k): plain(v) for k, v in target.export().items() if not str(k).startswith("feature.")}


def _options(tvm: Any, kind: str) -> dict[str, str]:
    """Options of a kind and their types, as TVM says them."""
    kinds = [str(k) for k in tvm.get_global_func("target.ListTargetKinds")()]
    if kind not in kinds:
        remedy = f"give llvm, or cuda with arch; TVM has {', '.join(sorted(kinds))}"
        raise TargetError(f"TVM has no target kind '{kind}'", f"target {kind}", remedy)
    found = tvm.get_global_func("target.ListTargetKindOptionsFromName")(kind)
    return {str(k): str(v) for k, v in found.items()}


def _typed(key: str, text: str, options: dict[str, str], kind: str) -> Any:
    """An option's value in the type that TVM wants."""
    if key not in options:
        near = difflib.get_close_matches(key, options, 1)
        remedy = f"did you mean '{near[0]}'?" if near else f"it has {', '.join(options)}"
        raise TargetError(f"'{kind}' has no option '{key}'", f"target {kind}", remedy)
    wanted = options[key]
    if wanted == "int":
        if not text.lstrip("-").isdigit():
            raise TargetError(f"{key}={text} is not a whole number", f"target {kind}", f"write {key}=4")
        return int(text)
    if wanted == "bool":
        return text.lower() in ("1", "true")
    return [word for word in text.split(",") if word] if wanted.startswith("Array") else text


def _mcpu(tvm: Any, given: Mapping[str, Any]) -> str:
    """LLVM's name of the CPU, this one's as `tuned_name` has it; "" where neither the target nor LLVM has one.

    Left out, or called 'native', TVM would silently make code for the least CPU of the architecture.
    """
    asked = str(given.get("mcpu", ""))
    here = str(tvm.get_global_func("target.llvm_get_system_cpu")())
    if asked in ("", "native"):
        foreign = "mtriple" in given and str(given["mtriple"]) != system_triple()
        return "" if foreign or here in ("", "generic") else tuned_name(here)
    triple = str(given.get("mtriple", "")) or system_triple()
    if not tvm.get_global_func("target.llvm_is_valid_cpu")(asked, triple):
        known = [str(n) for n in tvm.get_global_func("target.llvm_get_cpu_archlist")(tvm.target.Target("llvm"))]
        near = difflib.get_close_matches(asked, known, _SHOWN, 0.3)
        raise TargetError(
            f"this TVM's LLVM does not know mcpu={asked}: it would generate code for the baseline CPU",
            "target llvm",
            f"for this machine: mcpu={here}" + (f"; near: {', '.join(near)}" if near else ""),
        )
    return asked


def system_triple() -> str:
    """LLVM's name of this machine, which TVM gives to targets that say none."""
    tvm = import_relax_tvm("a target")
    return str(tvm.get_global_func("target.llvm_get_system_triple")())


def _limits(device: DeviceSpec) -> dict[str, int]:
    """Return the limits of a GPU block under TVM's names; shared memory is the opt-in limit."""
    limits = device.limits
    found = {
        "max_threads_per_block": limits.max_threads_per_block,
        "max_num_threads": limits.max_threads_per_block,
        "max_shared_memory_per_block": limits.shared_per_block_optin_bytes or limits.shared_per_block_bytes,
        "registers_per_block": limits.max_registers_per_block or limits.registers_per_unit,
        "thread_warp_size": device.vector_width,
        "l2_cache_size_bytes": next((v.capacity_bytes for v in device.levels if v.name == "l2"), None),
    }
    return {key: int(value) for key, value in found.items() if value}


def target_text(value: Any) -> str:
    """Return the text of a target in a note; raise ``ValueError`` if it is none."""
    if not isinstance(value, str):
        raise ValueError(f"'target' must be a text (got a {type(value).__name__})")
    if value.lstrip().startswith("{") and not isinstance(foreign.loads(value), dict):
        raise ValueError("'target' is no target")
    return value


def kernels_of(target: str) -> dict[str, Any]:
    """Return the attributes of a target that decide if a kernel is right for it.

    A matrix unit is none: `MatrixProducts` takes the products that it computes, and these have no records.

    Examples
    --------
    >>> kernels_of('{"kind": "llvm", "tag": "", "keys": ["cpu"], "num-cores": 2, "mattr": ["+amx-tile", "+amx-bf16"]}')
    {'kind': 'llvm', 'num-cores': 2}
    """
    if not target.lstrip().startswith("{"):
        return {"kind": target}
    found = {k: v for k, v in json.loads(target).items() if k not in _NOT_KERNELS}
    if "mtriple" in found and found["mtriple"] == system_triple():  # which TVM writes where none is given
        del found["mtriple"]
    if others := [word for word in found.pop("mattr", ()) if word[1:] not in matrix_words()]:
        found["mattr"] = others
    return found


def in_full(target: Any) -> dict[str, Any] | None:
    """Return `kernels_of` a target with its defaults filled in; None if the target is unknown."""
    try:
        return kernels_of(str(make_target(target)))
    except RollerError:
        return None


def for_other_kernels(one: str, other: str) -> bool:
    """Return whether two targets contradict each other; TVM fills in an attribute that only one has.

    Examples
    --------
    >>> for_other_kernels("cuda", '{"kind": "llvm"}'), for_other_kernels("llvm", '{"kind": "llvm", "num-cores": 2}')
    (True, False)
    """
    left, right = kernels_of(one), kernels_of(other)
    return any(left[key] != right[key] for key in left.keys() & right.keys())
