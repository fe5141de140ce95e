"""Compilers against hand-written kernels whose resources are known, and against ptxas' own words."""

import re

import pytest

from roller_tvm.codegen import Cubin, KernelResources, compile_cuda, find_compilers, kernel_resources
from roller_tvm.codegen import compile as compile_module
from roller_tvm.errors import TargetError, ToolchainError

NAMES = [c.name for c in find_compilers()]
needs_compiler = pytest.mark.skipif(not NAMES, reason="neither NVRTC nor nvcc here")
each_compiler = pytest.mark.parametrize(
    "compiler",
    [
        pytest.param(n, marks=pytest.mark.skipif(n not in NAMES, reason=f"no {n} here"))
        for n in ("nvrtc", "nvcc")
    ],
)

SHARED = """
extern "C" __global__ void __launch_bounds__(64) turn(float* a, const float* b) {
  __shared__ float s[100];
  s[threadIdx.x] = b[threadIdx.x];
  __syncthreads();
  a[threadIdx.x] = s[63 - threadIdx.x];
}
"""
# 80 live values and 1024 threads: 64 registers at most, so some must spill.
SPILLING = """
extern "C" __global__ void __launch_bounds__(1024) spill(float* a, const float* b, int n) {
  float x[80];
#pragma unroll
  for (int i = 0; i < 80; i++) x[i] = b[i * n + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 80; i++) a[i * n + threadIdx.x] = x[i] * x[(i * 7) % 80];
}
"""
# What TVM writes above half kernels: newer cuda_fp16.h has htanh of its own.
HALF = """
#include <cuda_fp16.h>
static inline __device__ __host__ half htanh(half x) { return __float2half_rn(tanhf(__half2float(x))); }
extern "C" __global__ void h(half* a) { a[threadIdx.x] = htanh(a[threadIdx.x] * a[0]); }
"""


@each_compiler
def test_options_of_either_compiler(compiler):
    """Those with which TVM compiles on the Relax line: a quotient is fewer instructions, ptxas takes the level."""
    source = 'extern "C" __global__ void q(float* a, const float* b) { a[threadIdx.x] /= b[threadIdx.x]; }'
    options = ("--use_fast_math", "--ptxas-options=--register-usage-level=10")
    plain, fast = (kernel_resources(compile_cuda(source, "sm_80", compiler, "", o))["q"] for o in ((), options))
    assert fast.code_bytes < plain.code_bytes
    with pytest.raises(ToolchainError, match="no-such-option"):
        compile_cuda(source, "sm_80", compiler, "", ("--ptxas-options=--no-such-option",))


@each_compiler
@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90"])
def test_shared_memory_is_what_was_declared(compiler, arch):
    kernels = kernel_resources(compile_cuda(SHARED, arch, compiler))
    assert list(kernels) == ["turn"]
    turn = kernels["turn"]
    assert turn.shared_bytes == 400  # 100 floats: nothing of the driver's share on sm_90
    assert turn.max_threads == 64 and turn.parameter_bytes == 16
    assert turn.local_bytes == 0 and turn.spill_bytes == 0 and not turn.spills
    assert turn.code_bytes > 0 and turn.constant_bytes > 0


@each_compiler
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_elf_agrees_with_ptxas(compiler, arch):
    cubin = compile_cuda(SHARED + SPILLING, arch, compiler)
    kernels = kernel_resources(cubin)
    assert set(kernels) == {"turn", "spill"}
    for name, kernel in kernels.items():
        said = cubin.log.split(f"entry function '{name}'")[1].split("Compile time")[0]
        assert kernel.registers == int(re.search(r"Used (\d+) registers", said)[1])
        assert kernel.local_bytes == int(re.search(r"(\d+) bytes stack frame", said)[1])
        smem = re.search(r"(\d+) bytes smem", said)
        assert kernel.shared_bytes == (int(smem[1]) if smem else 0)
    assert kernels["spill"].registers == 64
    assert kernels["spill"].spills and kernels["spill"].local_bytes > 0


@each_compiler
def test_half_source_of_tvm_compiles(compiler):
    assert kernel_resources(compile_cuda(HALF, "sm_80", compiler))["h"].registers > 0


@each_compiler
def test_refused_source_quotes_the_compiler(compiler):
    with pytest.raises(ToolchainError, match='identifier "oops" is undefined') as caught:
        compile_cuda("__global__ void f(int* x) { *x = oops; }", "sm_80", compiler, where="conv1")
    assert str(caught.value).startswith("conv1: ")
    assert "remedy" in str(caught.value)


@each_compiler
def test_too_much_shared_memory_names_the_remedy(compiler):
    source = SHARED.replace("s[100]", "s[13000]")
    with pytest.raises(ToolchainError, match="48 KiB"):
        compile_cuda(source, "sm_80", compiler)


@needs_compiler
def test_unknown_architecture_lists_the_known_ones():
    with pytest.raises(ToolchainError, match="sm_10 .*sm_80"):
        compile_cuda(SHARED, "sm_10")


def test_arch_must_be_real():
    with pytest.raises(TargetError, match="compute_80"):
        compile_cuda(SHARED, "compute_80")


@needs_compiler
@pytest.mark.parametrize(("arch", "error"), [("compute_80", TargetError), ("sm_999", ToolchainError)])
def test_an_unknown_architecture_names_those_that_are_known_by_number(arch, error):
    with pytest.raises(error, match="sm_80.*sm_90") as found:
        compile_cuda(SHARED, arch)
    listed = max((part.split(", ") for part in re.split(r"[:;]| know ", str(found.value))), key=len)
    numbers = [int(re.sub(r"\D", "", name)) for name in listed]
    assert len(numbers) > 2 and numbers == sorted(numbers)


def test_no_compiler_says_how_to_get_one(monkeypatch):
    monkeypatch.setattr(compile_module, "find_compilers", lambda: ())
    with pytest.raises(ToolchainError, match="pip install nvidia-cuda-nvrtc-cu12"):
        compile_cuda(SHARED, "sm_80")


def test_not_a_cubin():
    with pytest.raises(ToolchainError, match="not an ELF file"):
        Cubin(b"// ptx", "", "sm_80", "nvrtc")


def test_damaged_cubin_is_a_typed_error():
    with pytest.raises(ToolchainError, match="could not be read"):
        kernel_resources(Cubin(b"\x7fELF" + bytes(60), "", "sm_80", "nvrtc"))


def test_resources_round_trip_and_refuse_nonsense():
    r = KernelResources(registers=64, local_bytes=8, shared_bytes=512, spill_bytes=16, max_threads=256)
    assert KernelResources.from_json(r.to_json()) == r
    assert str(r) == "64 registers, 8 B local (16 B of spill traffic), 512 B shared"
    with pytest.raises(ValueError, match="registers"):
        KernelResources(registers=-1, local_bytes=0, shared_bytes=0)
