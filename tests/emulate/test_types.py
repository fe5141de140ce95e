"""half, bfloat16, vectors, mathematics: as TVM's sources use them, against numpy."""

import numpy as np
import pytest

from roller_check import DeviceArray, compile
from roller_tvm.codegen.errors import NotEmulated


def run(body, args, head="", parameters="half* A, half* B, half* C", block=64):
    compile(head + 'extern "C" __global__ void f(' + parameters + ") {\n int i = threadIdx.x;\n" + body + "}").run(
        "f", 1, block, args
    )


FP16 = "#include <cuda_fp16.h>\n"
BF16 = "#include <cuda_bf16.h>\n"


def halves(seed=0):
    return np.random.default_rng(seed).standard_normal(64).astype("float16")


@pytest.mark.parametrize("operator", ["+", "-", "*", "/"])
def test_half_arithmetic_rounds_each_operation(operator):
    a, b, c = halves(1), halves(2), np.zeros(64, "float16")
    run(f"C[i] = A[i] {operator} B[i];", [a, b, c], FP16)
    assert (c == eval(f"a {operator} b")).all()


def test_half_functions_conversions_and_comparisons():
    a, b, c = halves(1), halves(2), np.zeros(64, "float16")
    body = """
      half x = __hgt(A[i], B[i]) ? hexp(A[i]) : __hfma(A[i], B[i], __float2half_rn(0.5f));
      if (A[i] < B[i] && (float)x > 0.25f) x = half(x) - half(1);
      C[i] = x;"""
    run(body, [a, b, c], FP16)
    fused = (a.astype("f8") * b + 0.5).astype("float16")
    x = np.where(a > b, np.exp(a.astype("f4")).astype("float16"), fused)
    x = np.where((a < b) & (x > 0.25), x - np.float16(1), x)
    assert (c == x).all()


def test_every_half_and_its_rounding():
    every = np.arange(65536, dtype="uint16").view("float16")
    values = np.concatenate([
        np.random.default_rng(0).standard_normal(2048) * 2.0 ** np.random.default_rng(1).integers(-30, 20, 2048),
        # Halfway between neighbours, and just beside.
        every[1:2048].astype("f8") / 2 + every[:2047] / 2,
        (every[1:2048].astype("f8") / 2 + every[:2047] / 2) * (1 + 1e-9),
    ])  # fmt: skip
    out, rounded = np.zeros(65536, "float32"), np.zeros(len(values), "float16")
    body = """
      for (int j = i; j < 65536; j += 64) B[j] = (float)A[j];
      for (int j = i; j < n; j += 64) D[j] = half(C[j]);"""
    run(body, [every, out, values, rounded, len(values)], FP16, "half* A, float* B, double* C, half* D, int n")
    np.testing.assert_array_equal(out, every.astype("float32"))
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(rounded, values.astype("float16"))


def test_vectors_of_halves_within_words():
    a, c = halves(3), np.zeros(64, "float16")
    body = """
      uint4 v = *(uint4*)(A + i * 8), w;
      half2 two = *(half2*)(&v.x);
      ((half2*)(&(w.x)))->x = two.y; ((half2*)(&(w.x)))->y = two.x;
      *(half2*)(&w.y) = make_half2(((half2*)(&v.y))->y, ((half2*)(&v.y))->x);
      *(half2*)(&w.z) = *(half2*)(&v.z) + *(half2*)(&v.z);
      w.w = v.w;
      *(uint4*)(C + i * 8) = w;"""
    run(body, [a, a, c], FP16, block=8)
    v = a.reshape(8, 8)
    expected = np.stack([v[:, 1], v[:, 0], v[:, 3], v[:, 2], v[:, 4] * 2, v[:, 5] * 2, v[:, 6], v[:, 7]], 1)
    assert (c.reshape(8, 8) == expected).all()


def test_bfloat16_rounds_to_nearest_even():
    a = np.random.default_rng(0).standard_normal(64).astype("float32")
    a[:3] = 1 + 2**-8, 1 + 3 * 2**-8, np.nan
    out = DeviceArray((64,), "bfloat16", "B")
    run("B[i] = __float2bfloat16(A[i]) * nv_bfloat16(1.0f);", [a, out], BF16, "float* A, nv_bfloat16* B")
    bits = a.view("uint32").astype("uint64")
    expected = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("uint16")
    assert (out.numpy()[:2] == [0x3F80, 0x3F82]).all() and (out.numpy()[3:] == expected[3:]).all()
    assert out.numpy()[2] & 0x7FFF > 0x7F80


def test_bfloat16_arrays_go_in_as_their_bits():
    a = (np.arange(1, 65, dtype="float32").view("uint32") >> 16).astype("uint16")
    out = np.zeros(64, "float32")
    run("B[i] = (float)(A[i] + A[i]);", [DeviceArray((64,), "bfloat16", "A", a), out], BF16, "nv_bfloat16* A, float* B")
    assert (out == 2 * np.arange(1, 65)).all()


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("__expf(x)", np.exp), ("rsqrtf(x + 4.0f)", lambda x: 1 / np.sqrt(x + 4)), ("tanhf(x)", np.tanh),
        ("__fdividef(x, 3.0f)", lambda x: x / 3), ("powf(2.0f, x)", lambda x: 2**x),
        ("fmaxf(x, 0.0f)", lambda x: np.maximum(x, 0)),
        ("max(x, 0.5f)", lambda x: np.maximum(x, 0.5)), ("min(x, 0.5f)", lambda x: np.minimum(x, 0.5)),
        ("__logf(x + 9.0f)", lambda x: np.log(x + 9)), ("floorf(x)", np.floor), ("fabsf(x)", np.abs),
        ("__saturatef(x)", lambda x: np.clip(x, 0, 1)), ("exp(x)", np.exp),
        ("__powf(x + 9.0f, 1.5f)", lambda x: (x + 9) ** 1.5),
        ("__int_as_float(__float_as_int(x))", lambda x: x),
        ("(float)max((int)x, 0)", lambda x: np.maximum(np.trunc(x), 0)),
        ("__ldg(A + i)", lambda x: x), ("erff(x)", None),
    ],
)  # fmt: skip
def test_mathematics(call, expected):
    import math

    a, b = np.random.default_rng(0).standard_normal(64).astype("float32"), np.zeros(64, "float32")
    run(f"float x = A[i]; B[i] = {call};", [a, b], parameters="float* A, float* B")
    wanted = expected(a) if expected else np.array([math.erf(x) for x in a])
    np.testing.assert_allclose(b, wanted, rtol=1e-6, atol=1e-6)


def test_bytes_and_their_vectors():
    a, b = np.arange(-32, 32, dtype="int8"), np.zeros(64, "int8")
    body = """
      char4 v = *(char4*)(A + i * 4);
      *(char4*)(B + i * 4) = make_char4(v.w, v.z, v.y, (signed char)(v.x >> 1));"""
    run(body, [a, b], parameters="signed char* A, signed char* B", block=16)
    v = a.reshape(16, 4)
    assert (b.reshape(16, 4) == np.stack([v[:, 3], v[:, 2], v[:, 1], v[:, 0] >> 1], 1)).all()


def test_bits():
    b = np.zeros(8, "uint32")
    body = """
      B[0] = __popc(0xf0f0u); B[1] = __clz(1 << 20); B[2] = __ffs(8); B[3] = __brev(1u);
      B[4] = __byte_perm(0x33221100u, 0x77665544u, 0x6240u); B[5] = __umulhi(0x80000000u, 6u);
      B[6] = __funnelshift_l(0x80000000u, 1u, 1u); B[7] = (unsigned)__mulhi(-4, 1 << 30);"""
    run(body, [b], parameters="unsigned* B", block=1)
    assert b.tolist() == [8, 11, 4, 0x80000000, 0x66224400, 3, 3, 0xFFFFFFFF]


def test_types_that_are_not_emulated_are_named():
    with pytest.raises(NotEmulated, match="cuda_fp8.h"):
        compile('#include <cuda_fp8.h>\nextern "C" __global__ void f(float* A) {}')
    with pytest.raises(NotEmulated, match="__nv_fancy"):
        compile('extern "C" __global__ void f(float* A) { A[0] = __nv_fancy(A[1]); }')
