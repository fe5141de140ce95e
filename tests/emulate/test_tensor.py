"""Tensor cores and asynchronous copies: values against numpy, and what goes wrong with them."""

import numpy as np
import pytest

from roller_check import DeviceArray, KernelFault, compile

from ..sampling import sampled

HEAD = "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n#include <mma.h>\n"

# The registers of a lane, as the PTX manual numbers them: group = lane / 4, t = lane % 4.
MMA = """
extern "C" __global__ void f({a_type}* A, {b_type}* B, {c_type}* C) {{
  int lane = threadIdx.x, group = lane >> 2, t = lane & 3;
  unsigned a[{a_regs}], b[{b_regs}];
  {c_reg} c[{c_regs}], d[{c_regs}];
  {a_type}* pa = ({a_type}*)a; {b_type}* pb = ({b_type}*)b; {c_type}* pc = ({c_type}*)c;
  const int pack = 4 / sizeof({a_type});
  for (int r = 0; r < {a_regs}; ++r) for (int i = 0; i < pack; ++i)
    pa[r * pack + i] = A[(group + 8 * (r % {rows})) * {k} + t * pack + i + r / {rows} * 4 * pack];
  for (int r = 0; r < {b_regs}; ++r) for (int i = 0; i < pack; ++i)
    pb[r * pack + i] = B[(t * pack + i + r * 4 * pack) * 8 + group];
  for (int e = 0; e < {rows} * 2; ++e) pc[e] = C[(group + 8 * (e / 2)) * 8 + t * 2 + e % 2];
  asm volatile("{name} {operands};\\n" : {outputs} : {inputs});
  pc = ({c_type}*)d;
  for (int e = 0; e < {rows} * 2; ++e) C[(group + 8 * (e / 2)) * 8 + t * 2 + e % 2] = pc[e];
}}
"""
C_TYPES = {"f16": "half", "bf16": "nv_bfloat16", "tf32": "float", "s8": "signed char", "u8": "unsigned char",
           "f32": "float", "s32": "int"}  # fmt: skip


def mma_source(m, k, a_type, c_type):
    width = {"f16": 2, "bf16": 2, "tf32": 4, "s8": 1, "u8": 1}
    a_regs, b_regs = m * k * width[a_type] // 128, 8 * k * width[a_type] // 128
    c_regs = m * 8 // 32 // (2 if c_type == "f16" else 1)
    letter = "f" if c_type == "f32" else "r"
    counts = [c_regs, a_regs, b_regs, c_regs]
    firsts = [sum(counts[:i]) for i in range(4)]
    operands = ", ".join(
        "{" + ", ".join(f"%{first + i}" for i in range(n)) + "}" for first, n in zip(firsts, counts, strict=True)
    )
    listed = [f'"r"({x}[{i}])' for x, n in (("a", a_regs), ("b", b_regs)) for i in range(n)]
    return HEAD + MMA.format(
        a_type=C_TYPES[a_type], b_type=C_TYPES[a_type], c_type=C_TYPES[c_type], a_regs=a_regs, b_regs=b_regs,
        c_regs=c_regs, c_reg={"f32": "float", "s32": "int", "f16": "unsigned"}[c_type], rows=m // 8, k=k,
        operands=operands,
        name=f"mma.sync.aligned.m{m}n8k{k}.row.col.{c_type}.{a_type}.{a_type}.{c_type}",
        outputs=", ".join(f'"={letter}"(d[{i}])' for i in range(c_regs)),
        inputs=", ".join(listed + [f'"{letter}"(c[{i}])' for i in range(c_regs)]),
    )  # fmt: skip


def bf16(x):
    return (x.astype("float32").view("uint32") >> 16).astype("uint16")


@pytest.mark.parametrize(
    ("m", "k", "a_type", "c_type"),
    sampled([(16, 8, "f16", "f32"), (16, 16, "f16", "f32"), (16, 16, "f16", "f16"), (16, 8, "bf16", "f32"),
     (16, 16, "bf16", "f32"), (16, 4, "tf32", "f32"), (16, 8, "tf32", "f32"), (8, 16, "s8", "s32"),
     (16, 16, "s8", "s32"), (16, 32, "s8", "s32"), (16, 32, "u8", "s32")], 4),
)  # fmt: skip
def test_mma(m, k, a_type, c_type):
    rng = np.random.default_rng(0)
    low = 0 if a_type == "u8" else -8
    a, b, c = (rng.integers(low, 9, s).astype("float64") for s in ((m, k), (k, 8), (m, 8)))
    kinds = {"f16": "float16", "tf32": "float32", "s8": "int8", "u8": "uint8", "f32": "float32", "s32": "int32"}
    if a_type == "bf16":
        given = [DeviceArray(x.shape, "bfloat16", n, bf16(x)) for x, n in ((a, "A"), (b, "B"))]
    else:
        given = [a.astype(kinds[a_type]), b.astype(kinds[a_type])]
    out = c.astype(kinds[c_type])
    compile(mma_source(m, k, a_type, c_type)).run("f", 1, 32, [*given, out])
    assert (out == a @ b + c).all()


def test_tf32_reads_ten_bits_of_the_fraction():
    a, b, c = np.zeros((16, 4), "float32"), np.zeros((4, 8), "float32"), np.zeros((16, 8), "float32")
    a[3, 2], b[2, 5] = 1 + 2**-10 + 2**-11, 1
    compile(mma_source(16, 4, "tf32", "f32")).run("f", 1, 32, [a, b, c])
    assert c[3, 5] == 1 + 2**-10


LDMATRIX = """
extern "C" __global__ void f(half* A, unsigned* B) {
  __shared__ alignas(16) half S[4 * 64];
  for (int i = 0; i < 8; ++i) S[threadIdx.x * 8 + i] = A[threadIdx.x * 8 + i];
  __syncthreads();
  unsigned at = __cvta_generic_to_shared(S + threadIdx.x % (8 * COUNT) * 8 + OFFSET), r[4];
  asm volatile("ldmatrix.sync.aligned.m8n8.xCOUNT.TRANSshared.b16 {REGS}, [%COUNT];" : OUT : "r"(at));
  for (int i = 0; i < COUNT; ++i) B[i * 32 + threadIdx.x] = r[i];
}
"""


def ldmatrix_source(count, transpose=False, offset="0"):
    text = HEAD + LDMATRIX.replace("COUNT", str(count)).replace("TRANS", "trans." if transpose else "")
    text = text.replace("REGS", ", ".join(f"%{i}" for i in range(count))).replace("OFFSET", offset)
    return text.replace("OUT", ", ".join(f'"=r"(r[{i}])' for i in range(count)))


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("transpose", sampled([False, True], always=(True,)))
def test_ldmatrix(count, transpose):
    a = np.arange(256).astype("float16").reshape(4, 8, 8)
    out = np.zeros((count, 32), "uint32")
    compile(ldmatrix_source(count, transpose)).run("f", 1, 32, [a, out])
    # Lane l has two neighbours of row l / 4.
    expected = (a.transpose(0, 2, 1) if transpose else a)[:count].reshape(count, 32, 2)
    assert (out.view("float16").reshape(count, 32, 2) == expected).all()


def test_a_row_of_ldmatrix_that_is_not_aligned_or_not_there():
    a, out = np.zeros(256, "float16"), np.zeros((4, 32), "uint32")
    with pytest.raises(KernelFault, match="not aligned to 16 bytes") as found:
        compile(ldmatrix_source(4, offset="threadIdx.x")).run("f", 1, 32, [a, out])
    assert found.value.kind == "misaligned" and found.value.line == 10
    with pytest.raises(KernelFault, match="'S' at byte 512 of 512: out of bounds"):
        compile(ldmatrix_source(4, offset="8")).run("f", 1, 32, [a, out])


def test_a_warp_that_is_not_full_cannot_multiply():
    with pytest.raises(KernelFault, match="a warp of 16 threads") as found:
        compile(ldmatrix_source(1)).run("f", 1, 16, [np.zeros(256, "float16"), np.zeros((1, 32), "uint32")])
    assert found.value.kind == "divergent warp"


WMMA = """
using namespace nvcuda;
extern "C" __global__ void f({a}* A, {a}* B, {c}* C) {{
  wmma::fragment<wmma::matrix_a, {m}, {n}, {k}, {p}, wmma::{la}> a;
  wmma::fragment<wmma::matrix_b, {m}, {n}, {k}, {p}, wmma::{lb}> b;
  wmma::fragment<wmma::accumulator, {m}, {n}, {k}, {c}> c;
  wmma::fill_fragment(c, ({c})3);
  wmma::load_matrix_sync(a, A, {lda});
  wmma::load_matrix_sync(b, B, {ldb});
  wmma::mma_sync(c, a, b, c);
  wmma::store_matrix_sync(C, c, {n}, wmma::mem_row_major);
}}
"""


@pytest.mark.parametrize(
    ("shape", "kind", "result", "precision"),
    sampled([((16, 16, 16), "half", "float", ""), ((32, 8, 16), "half", "half", ""), ((8, 32, 16), "half", "float", ""),
     ((16, 16, 16), "nv_bfloat16", "float", ""), ((16, 16, 16), "signed char", "int", ""),
     ((16, 16, 8), "float", "float", "wmma::precision::tf32")], 4),
)  # fmt: skip
@pytest.mark.parametrize("columns", [False, True])
def test_wmma(shape, kind, result, precision, columns):
    m, n, k = shape
    rng = np.random.default_rng(0)
    a, b = rng.integers(-8, 9, (m, k)), rng.integers(-8, 9, (k, n))
    layout = "col_major" if columns else "row_major"
    source = HEAD + WMMA.format(
        a=kind, c=result, m=m, n=n, k=k, p=precision or kind, la=layout, lb=layout,
        lda=m if columns else k, ldb=k if columns else n,
    )  # fmt: skip
    kinds = {"half": "float16", "float": "float32", "signed char": "int8", "int": "int32"}
    stored = [x.T if columns else x for x in (a, b)]
    if kind == "nv_bfloat16":
        given = [DeviceArray(x.shape, "bfloat16", "", bf16(np.ascontiguousarray(x))) for x in stored]
    else:
        given = [np.ascontiguousarray(x.astype(kinds[kind])) for x in stored]
    out = np.zeros((m, n), kinds[result])
    compile(source).run("f", 1, 32, [*given, out])
    assert (out == a @ b + 3).all()


def test_a_fragment_with_a_stride_the_hardware_does_not_take():
    options = dict(a="half", c="float", m=16, n=16, k=16, p="half", la="row_major", lb="row_major", lda=20, ldb=16)
    source = HEAD + WMMA.format(**options)
    with pytest.raises(KernelFault, match="multiple of 16 bytes"):
        compile(source).run("f", 1, 32, [np.zeros((16, 20), "f2"), np.zeros((16, 16), "f2"), np.zeros((16, 16), "f4")])


# Two copies in flight; PLACEHOLDERs are what the tests leave out.
PIPELINE = """
__device__ inline void copy(void* to, const void* from, int bytes) {
  unsigned at = __cvta_generic_to_shared(to);
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], %2, %3;" :: "r"(at), "l"(from), "n"(16), "r"(bytes));
}
extern "C" __global__ void f(float* A, float* B) {
  __shared__ alignas(16) float S[2][128];
  int i = threadIdx.x;
  copy(&S[0][i * 4], A + i * 4, 16);
  asm volatile("cp.async.commit_group;\\n" ::);
  for (int k = 0; k < 8; ++k) {
    if (k < 7) copy(&S[(k + 1) % 2][i * 4], A + (k + 1) * 128 + i * 4, k == 6 ? 8 : 16);
    asm volatile("cp.async.commit_group;\\n" ::);
    asm volatile("cp.async.wait_group 1;\\n" ::);
    __syncthreads();
    for (int j = 0; j < 4; ++j) B[k * 128 + i * 4 + j] = S[k % 2][127 - i * 4 - j];
    __syncthreads();
  }
}
"""


def pipeline(*changes):
    text = PIPELINE
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    a = np.arange(1024, dtype="float32")
    b = np.zeros(1024, "float32")
    compile(text).run("f", 1, 32, [a, b])
    return a.reshape(8, 128), b.reshape(8, 128)


def test_copies_arrive_when_they_are_waited_for():
    a, b = pipeline()
    assert (b[:7] == a[:7, ::-1]).all()
    # The last copies half of its 16 bytes; the rest is zero.
    a[7].reshape(32, 4)[:, 2:] = 0
    assert (b[7] == a[7, ::-1]).all()


def test_a_wait_forgotten():
    with pytest.raises(KernelFault, match="'S'.* a cp.async brings it") as found:
        pipeline(('    asm volatile("cp.async.wait_group 1;\\n" ::);\n', ""))
    assert found.value.kind == "in flight" and found.value.line == 15


def test_a_wait_for_one_group_too_few():
    with pytest.raises(KernelFault, match="a cp.async brings it"):
        pipeline(("wait_group 1", "wait_group 2"))


def test_a_commit_forgotten():
    with pytest.raises(KernelFault, match="a cp.async brings it"):
        pipeline(('    asm volatile("cp.async.commit_group;\\n" ::);\n', ""))


def test_a_barrier_forgotten_after_the_wait():
    with pytest.raises(KernelFault) as found:
        pipeline(("    __syncthreads();\n    for", "    for"))
    assert found.value.kind == "uninitialised" and "barrier is missing" in str(found.value)


def test_a_copy_over_what_others_still_read():
    with pytest.raises(KernelFault) as found:
        pipeline(("    __syncthreads();\n  }", "  }"))
    assert found.value.kind in ("race", "in flight")


def test_a_copy_from_beyond_the_array_and_to_an_odd_place():
    with pytest.raises(KernelFault, match="'A' at element 1024 of 1024: out of bounds"):
        pipeline(("if (k < 7) copy", "copy"))
    with pytest.raises(KernelFault, match="a write of 16 bytes.*not aligned to 16 bytes"):
        pipeline(("copy(&S[0][i * 4]", "copy(&S[0][i * 4 + 1]"))
