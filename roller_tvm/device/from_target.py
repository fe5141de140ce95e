"""Find the device that a TVM target names, without TVM and without looking at card number 0."""

from __future__ import annotations

import json
import platform
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from roller_tvm.device.arch import NAME_THE_DEVICE, arch_number, device_of_arch, file_of_model
from roller_tvm.device.cpu_detect import machine_named
from roller_tvm.device.cpu_profile import cpu_report, cpu_spec
from roller_tvm.device.cuda_profile import profiled_card
from roller_tvm.device.files import shipped, shipped_files
from roller_tvm.device.known import Simd, simd_of_mcpu, simd_table
from roller_tvm.device.matrix_unit import with_matrix_unit
from roller_tvm.device.spec import DeviceSpec, FrozenMap
from roller_tvm.errors import TargetError


@dataclass(frozen=True)
class ParsedTarget:
    """Kind and attributes of a target, without its host.

    Examples
    --------
    >>> parse_target("cuda -arch=sm_90 -model=h200").attrs["model"]
    'h200'
    """

    kind: str
    attrs: FrozenMap[str]

    def __str__(self) -> str:
        return " ".join([self.kind, *(f"-{k}={v}" for k, v in self.attrs.items())])


def parse_target(target: str | Mapping[str, Any] | Any) -> ParsedTarget:
    """Parse a target: TVM's words ("cuda -arch=sm_90"), JSON, a mapping, a tag, or a `tvm.target.Target`."""
    if not isinstance(target, (str, Mapping)):
        target = str(target)
    if isinstance(target, str):
        text = target.strip()
        if text.startswith("{"):
            try:
                target = json.loads(text)
            except json.JSONDecodeError as err:
                told = f"target is not JSON: {err}"
                raise TargetError(told, "target", 'write {"kind": "cuda", "arch": "sm_90"}') from err
    if isinstance(target, Mapping):
        kind = target.get("kind", target.get("tag", ""))
        if isinstance(kind, Mapping):  # some versions export {"kind": {"name": ...}}
            kind = kind.get("name", "")
        attrs = {}
        for key, value in target.items():
            if key in ("kind", "host"):
                continue
            attrs[str(key)] = ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
        if not kind:
            raise TargetError(
                f"target {dict(target)!r} has no kind", where="target", remedy='give "kind": "cuda"'
            )
        return ParsedTarget(str(kind), FrozenMap(attrs))
    # "cuda -arch=sm_90, llvm": what follows the comma is the host.
    first = re.split(r",\s+", str(target).strip(), maxsplit=1)[0]
    try:
        words = shlex.split(first)
    except ValueError as err:
        raise TargetError(f"target {first!r}: {err}", where="target", remedy="close the quotes") from err
    if not words or words[0].startswith("-"):
        raise TargetError(f"target {target!r} names no kind", "target", 'begin with it, e.g. "cuda -arch=sm_90"')
    attrs = {}
    position = 1
    while position < len(words):
        key, equals, value = words[position].lstrip("-").partition("=")
        position += 1
        if not equals:
            following = words[position : position + 1]
            if following and not following[0].startswith("-"):
                value = following[0]
                position += 1
            else:
                value = "1"
        attrs[key] = value
    attrs.pop("host", None)
    return ParsedTarget(words[0], FrozenMap(attrs))


def device_for_target(target: str | Mapping[str, Any] | Any) -> DeviceSpec:
    """Return the device of a target.

    Parameters
    ----------
    target : str, mapping or tvm.target.Target
        "cuda -arch=sm_90", "cuda -arch=sm_90 -model=h200", "llvm -mcpu=skylake-avx512 -num-cores=2",
        "rocm -mcpu=gfx906", {"kind": "cuda", "arch": "sm_80"}, "nvidia/nvidia-a100".

    Raises
    ------
    TargetError
        The target is incomplete (cuda without -arch), contradicts itself, or is of a kind without a device.

    Examples
    --------
    >>> device_for_target("cuda -arch=sm_90 -model=h200").name
    'h200'
    >>> device_for_target("cuda -arch=sm_86").limits.shared_per_block_optin_bytes // 1024
    99
    """
    parsed = parse_target(target)
    if parsed.kind in ("cuda", "nvptx"):
        return _cuda(parsed)
    if parsed.kind in ("rocm", "hip"):
        return _rocm(parsed)
    if parsed.kind in ("llvm", "c", "cpu"):
        return _cpu(parsed)
    tagged = file_of_model(parsed.kind)
    if tagged is not None:
        return shipped(tagged.name)
    told = f"no device follows from a target of kind {parsed.kind!r}"
    raise TargetError(told, f"target {parsed}", f"give cuda with -arch, rocm with -mcpu, or llvm; {NAME_THE_DEVICE}")


def _asked(parsed: ParsedTarget, option: str, value: str | None, example: str) -> str:
    """Return the value of an option that a target must have."""
    if not value:
        told = f"{parsed.kind} target without -{option}: the device follows from the target, not from card 0"
        raise TargetError(told, f"target {parsed}", f"add it, e.g. {example}; {NAME_THE_DEVICE}")
    return value


def _cuda(parsed: ParsedTarget) -> DeviceSpec:
    told = parsed.attrs.get("arch") or (parsed.attrs.get("mcpu") if parsed.kind == "nvptx" else None)
    examples = '"cuda -arch=sm_90" (H100, H200), sm_80 (A100), sm_89 (RTX 4090), sm_75 (T4), sm_70 (V100)'
    arch = _asked(parsed, "arch", told, examples)
    number, model, where = arch_number(arch), parsed.attrs.get("model", "unknown"), f"target {parsed}"
    profiled = profiled_card(number, "" if model == "unknown" else model)
    if profiled is not None:
        return profiled
    if model == "unknown":
        return device_of_arch(number, where)
    named = file_of_model(model)
    if named is None or named.kind != "gpu":
        note = f"model {model!r} is not known; the device follows from {arch}"
        return device_of_arch(number, where, (note,), others=False)
    if not named.arch.startswith("sm_") or arch_number(named.arch) != number:
        told = f"-model={model} is {named.arch}, -arch says {arch}"
        raise TargetError(told, where, f"write -arch={named.arch}, or leave -model out")
    return shipped(named.name)


def _gfx(arch: str) -> tuple[int, int, int] | None:
    """Return the version of an AMD architecture, or None: 'gfx90a' gives (9, 0, 10).

    The last two digits are minor version and stepping, in hexadecimal.
    """
    match = re.fullmatch(r"gfx(\d+)(\d)([0-9a-f])(?::.*)?", arch)
    return (int(match[1]), int(match[2]), int(match[3], 16)) if match else None


def _rocm(parsed: ParsedTarget) -> DeviceSpec:
    where = f"target {parsed}"
    told = parsed.attrs.get("mcpu") or parsed.attrs.get("arch")
    arch = _asked(parsed, "mcpu", told, '"rocm -mcpu=gfx906" (MI50)')
    version = _gfx(arch)
    candidates = [(v, f, a) for f in shipped_files() for a in f.default_for if (v := _gfx(a)) is not None]
    for v, file, _ in candidates:
        if v == version:
            return shipped(file.name)
    # Within one major version all wavefronts have one width.
    lower = [(v, f) for v, f, _ in candidates if version and v[0] == version[0] and v <= version]
    if not lower:
        told = f"no device is known for {arch}"
        raise TargetError(told, where, f"known: {', '.join(a for _, _, a in candidates)}; {NAME_THE_DEVICE}")
    spec = shipped(max(lower, key=lambda item: item[0])[1].name)
    note = f"no device is known for {arch}: planned as {spec.name} ({spec.arch})"
    return replace(spec, name=f"{spec.name}-{arch}", arch=arch, notes=(*spec.notes, note))


def _cpu(parsed: ParsedTarget) -> DeviceSpec:
    where = f"target {parsed}"
    report = cpu_report()
    facts = report.facts
    triple = parsed.attrs.get("mtriple") or parsed.attrs.get("target") or ""
    if triple and machine_named(triple.split("-")[0]) != facts.machine:
        told = f"-mtriple={triple} is not this machine ({platform.machine()}), and only its CPU is profiled"
        raise TargetError(told, where, 'give --device a spec file of that machine (base = "cpu" and its numbers)')
    notes: list[str] = []
    threads = None
    if "num-cores" in parsed.attrs:
        text = parsed.attrs["num-cores"]
        if not text.isdigit() or int(text) < 1:
            raise TargetError(f"-num-cores={text} is not a number of cores", where, "give a whole number from 1")
        threads = int(text)
        if threads > report.profile.units:
            notes.append(f"-num-cores={threads}, but threads scale to {report.profile.units} here")
    simd = _simd(parsed, facts.simd, notes)
    if not notes and threads in (None, report.spec.units) and simd == facts.simd:
        return with_matrix_unit(report.spec, facts, parsed.attrs, report.profile)
    spec = cpu_spec(
        facts, report.profile, report.spec.source, (*report.spec.notes, *notes), threads=threads, simd=simd
    )
    return with_matrix_unit(spec, facts, parsed.attrs, report.profile) if simd == facts.simd else spec


def _simd(parsed: ParsedTarget, full: Simd, notes: list[str]) -> Simd:
    """Return the SIMD that the code generator will use: from -mcpu and -mattr, else the machine's least."""
    mattr = parsed.attrs.get("mattr", "")
    asked = {word[1:] for word in mattr.split(",") if word.startswith("+")}
    by_attr = next((s for s in simd_table() if s.machine == full.machine and s.mattr in asked), None)
    mcpu = parsed.attrs.get("mcpu", "")
    if mcpu == "native":
        by_cpu: Simd | None = full
    elif mcpu:
        by_cpu = simd_of_mcpu(mcpu)
        if by_cpu is None or by_cpu.machine != full.machine:
            if full.machine == "x86-64":
                notes.append(f"-mcpu={mcpu} is not listed; its vectors are taken to be those of this machine")
            by_cpu = full
    else:
        # LLVM without -mcpu generates for the least CPU of the architecture.
        by_cpu = next(reversed([s for s in simd_table() if s.machine == full.machine]), full)
    simd = max(filter(None, (by_attr, by_cpu)), key=lambda s: s.vector_bytes)
    if simd.vector_bytes < full.vector_bytes:
        notes.append(
            f"the target uses {8 * simd.vector_bytes}-bit vectors ({simd.name}), this machine has "
            f"{8 * full.vector_bytes}-bit ones: -mcpu={full.mcpu}"
        )
    elif simd.vector_bytes > full.vector_bytes:
        notes.append(f"the target's {simd.name} is more than this machine has ({full.name})")
        return full
    return simd


__all__ = ["ParsedTarget", "arch_number", "device_for_target", "parse_target"]
