"""Inline PTX turned into calls: what is understood, and what is refused by name."""

import numpy as np
import pytest

from roller_check import compile
from roller_check.translate import translate_asm
from roller_tvm.codegen.errors import NotEmulated


@pytest.mark.parametrize(
    "instruction",
    [
        "mbarrier.init.shared.b64 [%0], 1;",
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];",
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0}, %1, %2, 1, 1, 1, 0, 0;",
        "mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 {%0}, {%1}, {%2}, {%3};",
        "mma.sync.aligned.m16n8k16.row.row.f32.f16.f16.f32 {%0}, {%1}, {%2}, {%3};",
    ],
)
def test_an_unknown_instruction_is_refused_by_name_and_line(instruction):
    with pytest.raises(NotEmulated, match=r"line 3: .*" + instruction.split()[0].replace(".", r"\.")):
        translate_asm(f'\n\n  asm volatile("{instruction}" :: "r"(a), "l"(b), "n"(16), "r"(c));\n')


def test_a_label_is_refused():
    with pytest.raises(NotEmulated, match="WAIT"):
        translate_asm('asm("{ .reg .pred P; WAIT: mov.b32 %0, %1; }" : "=r"(a) : "r"(b));')


def test_registers_must_be_as_many_as_the_instruction_has():
    with pytest.raises(NotEmulated, match="1 registers for a where 4 are due"):
        translate_asm(
            'asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4}, {%5,%6}, {%7,%8,%9,%10};" : );'
        )


def test_macros_and_comments_are_left_alone():
    text = '#define __asm__ asm\n// asm("nonsense");\nconst char* s = "asm(x)";\n'
    assert translate_asm(text) == text


PREDICATES = r"""
extern "C" __global__ void pick(unsigned* A, unsigned* B, int n) {
  unsigned i = threadIdx.x, v = 7;
  asm volatile(
    "{\n"
    "  .reg .pred p;\n"
    "  .reg .b32 t;\n"
    "  setp.lt.s32 p, %1, %2;\n"
    "  mov.u32 t, 5;\n"
    "  @p ld.global.nc.u32 %0, [%3];\n"
    "  @!p mov.u32 %0, t;\n"
    "}\n"
    : "+r"(v) : "r"((int)i - 2), "r"(n), "l"(A + i));
  B[i] = v;
}
"""


def test_predicates_choose_lane_by_lane():
    a = np.arange(10, 18, dtype="uint32")
    b = np.zeros(8, "uint32")
    compile(PREDICATES).run("pick", 1, 8, [a, b, 3])
    assert b.tolist() == [10, 11, 12, 13, 14, 5, 5, 5]


VECTORS = r"""
extern "C" __global__ void move(float* A, float* B) {
  __shared__ float S[128];
  unsigned at = __cvta_generic_to_shared(S + threadIdx.x * 4);
  float x, y, z, w;
  asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4 + 16];"
    : "=f"(x), "=f"(y), "=f"(z), "=f"(w) : "l"(A + threadIdx.x * 4));
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" :: "r"(at), "f"(w), "f"(z), "f"(y), "f"(x));
  for (int i = 0; i < 4; ++i) B[threadIdx.x * 4 + i] = S[threadIdx.x * 4 + i];
}
"""


def test_vector_loads_and_stores():
    a, b = np.arange(136, dtype="float32"), np.zeros(128, "float32")
    compile(VECTORS).run("move", 1, 32, [a, b])
    assert (b == a[4:132].reshape(32, 4)[:, ::-1].reshape(-1)).all()


def test_dp4a_reads_signs_from_the_instruction():
    program = compile(
        'extern "C" __global__ void f(int* A, int* B) { int r; '
        'asm volatile("dp4a.s32.u32 %0, %1, %2, %3;" : "=r"(r) : "r"(A[0]), "r"(A[1]), "r"(A[2])); B[0] = r; '
        "B[1] = __dp4a(A[0], A[1], A[2]); }"
    )
    a = np.array([255, 2, 254, 3], "uint8")
    c = np.array([200, 1, 1, 1], "uint8")
    words = np.concatenate([a, c]).view("int32")
    b = np.zeros(2, "int32")
    program.run("f", 1, 1, [np.append(words, np.int32(10)), b])
    signed = a.view("int8").astype(int)
    assert b.tolist() == [10 + int(signed @ c.astype(int)), 10 + int(signed @ c.view("int8").astype(int))]
