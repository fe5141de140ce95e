"""Check a kit without a card: every cubin is present, for its architecture, and has the kernels that are launched."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path
from typing import Any

from roller_bench.kit.archive import KitPlan, read_member, read_operator
from roller_bench.kit.run import kit_archs
from roller_bench.kit.support import ARCHIVE, own_sources
from roller_tvm.codegen import Cubin, KernelResources, kernel_resources
from roller_tvm.device import load_device
from roller_tvm.device.arch import arch_number
from roller_tvm.errors import BadInput, RollerError

_FLAGS, _ABI, _NEW_ABI = 0x30, 8, 8
_POINTER = 8
#: Own module of the kit -> its kernels that are launched by name.
OWN = {
    **dict.fromkeys(("float32", "float16", "bfloat16"),
                    ("fill", "conv2d", "matmul", "pool2d", "relu", "sum_last", "compare", "hold")),
    "bench": ("tensor_float16", "tensor_bfloat16", "tensor_tfloat32", "tensor_int8", "barrier", "empty"),
    "profile": ("fma32", "fma16", "fma64", "int32", "latency32", "clock_cycles", "read", "shared_read",
                "shared_chase", "make_cycle", "chase", "nothing"),
}  # fmt: skip


def image_arch(image: bytes) -> str:
    """Return the architecture that a cubin's header names.

    Raises
    ------
    BadInput
        The bytes are no cubin.

    Examples
    --------
    >>> image_arch(b"\\x7fELF" + bytes(4) + bytes([7]) + bytes(39) + (0x5A055A).to_bytes(4, "little") + bytes(12))
    'sm_90'
    """
    if not image.startswith(b"\x7fELF") or len(image) < 64:
        raise BadInput(f"not an ELF file ({len(image)} bytes)")
    (flags,) = struct.unpack_from("<I", image, _FLAGS)
    # Since CUDA 13 the number stands a byte higher.
    return f"sm_{flags >> 8 & 0xFF if image[_ABI] >= _NEW_ABI else flags & 0xFF}"


def verify(kit: Path) -> tuple[int, list[str]]:
    """Return (number of cubins read, list of problems)."""
    count, wrong = 0, []
    for arch in kit_archs(kit):
        for name in own_sources():
            count += 1
            wrong += [f"{arch}/{ARCHIVE}: {w}" for w in _own(kit / arch / ARCHIVE, name, arch)]
        for path in sorted((kit / arch).glob("*.zip")):
            if path.name == ARCHIVE:
                continue
            try:
                operator = read_operator(path)
            except BadInput as error:
                wrong.append(str(error))
                continue
            limits = load_device(operator.device).limits
            most = limits.shared_per_block_optin_bytes or limits.shared_per_block_bytes or 0
            count += len(operator.plans)
            for plan in operator.plans:
                wrong += [f"{arch}/{path.name}#{plan.rank}: {w}" for w in _plan(path, plan, arch, most)]
    return count, wrong


def _own(path: Path, name: str, arch: str) -> Iterator[str]:
    try:
        yield from _image(read_member(path, f"{name}.cubin"), arch, OWN[name])[1]
    except RollerError as error:
        yield error.what


def _plan(path: Path, plan: KitPlan, arch: str, most_shared: int) -> Iterator[str]:
    found: dict[str, dict[str, KernelResources]] = {}
    try:
        for image in plan.images:
            names = [launch.kernel for launch in plan.launches if (launch.image or plan.image) == image]
            found[image], wrong = _image(read_member(path, image), arch, names)
            yield from wrong
        if plan.source:
            read_member(path, plan.source)
    except RollerError as error:
        yield error.what
        return
    for launch in plan.launches:
        kernel = found[launch.image or plan.image].get(launch.kernel)
        if kernel is None:
            continue
        threads, shared = prod(launch.block), kernel.shared_bytes + launch.dynamic_shared
        if kernel.max_threads and threads > kernel.max_threads:
            yield f"{launch.kernel} is launched with {threads} threads and made for {kernel.max_threads}"
        if kernel.parameter_bytes != _POINTER * len(launch.arguments):
            yield (f"{launch.kernel} takes {kernel.parameter_bytes} B of arguments, and is given "
                   f"{len(launch.arguments)} buffers")  # fmt: skip
        if shared > most_shared:
            yield f"{launch.kernel} needs {shared} B of shared memory, a block has {most_shared}"



def _image(image: bytes, arch: str, launched: Sequence[str]) -> tuple[dict[str, KernelResources], list[str]]:
    """Return a cubin's kernels, and a list of its problems."""
    found: list[Any] = []
    own = image_arch(image)
    if arch_number(own) != arch_number(arch):
        found.append(f"a cubin for {own}")
    kernels = kernel_resources(Cubin(image, "", own, "the kit"))
    found += [f"no kernel {name}" for name in launched if name not in kernels]
    return kernels, found
