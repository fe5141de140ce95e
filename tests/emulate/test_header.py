"""The emulator's header, compiled once for all kernels of the same flags."""

from pathlib import Path

import numpy as np
import pytest

from roller_check import build, compile

ARCH = 'extern "C" __global__ void arch(int* A) { A[0] = __CUDA_ARCH__; }'


@pytest.mark.parametrize(("arch", "number"), [("sm_80", 800), ("sm_90a", 900), ("native", 900)])
def test_it_serves_every_architecture(arch, number):
    a = np.zeros(1, "int32")
    compile(ARCH, arch=arch).run("arch", 1, 1, [a])
    assert a[0] == number


def test_it_is_made_once_and_the_plain_one_serves_where_it_cannot_be_made(tmp_path):
    if build._identity()[1]:
        pytest.skip("the compiler is clang: it includes the plain header")
    flags = ("-std=c++17", "-w")
    made = build._compiled_header(tmp_path, flags)
    compiled = Path(f"{made}.gch")
    before = compiled.stat().st_mtime_ns
    build._compiled_header.cache_clear()
    assert build._compiled_header(tmp_path, flags) == made and compiled.stat().st_mtime_ns == before
    assert build._compiled_header(tmp_path, ("-fno-such-flag",)) == build.HEADER
