"""Sources of the kit's own kernels: `support.cu` for each type, `bench.cu`, and the kernels of the device's profile."""

from __future__ import annotations

from pathlib import Path

from roller_bench.kit.inputs import TYPES
from roller_tvm.device.cuda_bench import SOURCE as PROFILE

_HERE = Path(__file__).parent
THREADS = 256
ARCHIVE = "support.zip"


def support_source(dtype: str) -> str:
    """Return the CUDA C++ of the reference kernels for one element type.

    Examples
    --------
    >>> support_source("float16").splitlines()[:2]
    ['#include <cuda_fp16.h>', 'typedef __half T;']
    """
    *_, name, header = TYPES[dtype]
    include = f"#include <{header}>\n" if header else ""
    return f"{include}typedef {name} T;\n" + (_HERE / "support.cu").read_text(encoding="utf-8")


def own_sources() -> dict[str, str]:
    """Return name -> CUDA C++ of all the kit's own kernels.

    Examples
    --------
    >>> sorted(own_sources())
    ['bench', 'bfloat16', 'float16', 'float32', 'profile']
    """
    bench = (_HERE / "bench.cu").read_text(encoding="utf-8")
    return {dtype: support_source(dtype) for dtype in TYPES} | {
        "bench": bench, "profile": PROFILE.read_text(encoding="utf-8")
    }  # fmt: skip
