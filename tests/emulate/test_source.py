"""Reading a CUDA source: kernels, parameters, what is rewritten for a C++ compiler."""

import pytest

from roller_check.translate import translated
from roller_tvm.codegen.cuda_text import CudaSource, blanked, matching, split_top
from roller_tvm.codegen.errors import NotEmulated

TWO = """
extern "C" __global__ void __launch_bounds__(64) first(float* __restrict__ A, const half* __restrict__ B, int n);
extern "C" __global__ void __launch_bounds__(64) first(float* __restrict__ A, const half* __restrict__ B, int n) {
  // __global__ void not_one(int* A) {}
}
__global__ void second(unsigned char* A, long long n) { }
"""


def test_kernels_are_those_with_a_body():
    kernels = CudaSource(TWO).kernels
    assert [str(k) for k in kernels] == ["first(float* A, half* B, int n)", "second(unsigned char* A, long long n)"]
    assert [k.most_threads for k in kernels] == [64, 0]
    assert kernels[0].line == 3
    assert [p.dtype for k in kernels for p in k.parameters] == ["float32", "float16", "int32", "uint8", "int64"]


def test_a_kernel_that_is_not_there_names_those_that_are():
    with pytest.raises(NotEmulated, match="first, second"):
        CudaSource(TWO).kernel("third")


def test_a_parameter_that_is_no_name_is_told():
    with pytest.raises(NotEmulated, match="a CUDA compiler would refuse this source too"):
        _ = CudaSource('extern "C" __global__ void f(float* __restrict__ gpu_0/data_0) {}').kernels


def test_rewriting_keeps_line_numbers():
    text = 'void f() {\n  __shared__ float\n    A[4];\n'
    text += '  asm volatile("cp.async.commit_group;\\n"\n    ::);\n  g();\n}\n'
    found = translated(text)
    assert found.splitlines()[5].strip() == "g();"
    assert "__shared__" not in found and "asm" not in found


def test_dynamic_shared_memory_must_be_an_open_array():
    with pytest.raises(NotEmulated, match="line 2"):
        translated("\nextern __shared__ float A[4];")


def test_text_that_is_no_code():
    text = 'f("a;b{", \'}\', /* ( */ g); // )'
    plain = blanked(text)
    assert len(plain) == len(text) and "{" not in plain and "}" not in plain
    assert plain[matching(plain, 1)] == ")" and matching(plain, 1) == text.index(");")
    assert split_top("a<b, (c, d), e", ",") == ["a<b", " (c, d)", " e"]
