"""Models for another architecture: linked by its compiler, never loaded here, and executed by QEMU where it is."""

import shutil
import subprocess

import numpy as np
import pytest

pytestmark = pytest.mark.te
pytest.importorskip("tvm")

import onnx  # noqa: E402
from onnx import TensorProto, helper  # noqa: E402

import roller_tvm  # noqa: E402
from roller_tvm.cli import main  # noqa: E402
from roller_tvm.device import spec_text  # noqa: E402
from roller_tvm.device.cpu_detect import detect_cpu  # noqa: E402
from roller_tvm.device.cpu_measure import estimated_profile  # noqa: E402
from roller_tvm.device.cpu_profile import cpu_spec  # noqa: E402
from roller_tvm.errors import UsageError  # noqa: E402
from roller_tvm.tvm_env import compiler as compilers  # noqa: E402

TARGET = "llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a72"
COMPILER, QEMU = shutil.which("aarch64-linux-gnu-g++"), shutil.which("qemu-aarch64-static")
#: Calls a kernel of three float32 matrices as TVM FFI does, with one thread in place of TVM's pool.
DRIVER = r"""
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
typedef struct { void* data; int32_t kind, id, ndim; uint8_t code, bits; uint16_t lanes; int64_t *shape, *strides;
                 uint64_t offset; } Tensor;
typedef struct { int32_t type; uint32_t zero; void* value; } Value;
typedef struct { void* sync; int32_t tasks; } Group;
typedef int (*Task)(int, Group*, void*);
static int launch(Task task, void* data, int tasks) { Group one = {0, 1}; return task(0, &one, data); }
void TVMFFIErrorSetRaisedFromCStrParts(const char* kind, const char** parts, int32_t count) {
  for (int n = 0; n < count; ++n) fputs(parts[n], stderr);
}
int main(int argc, char** argv) {
  void* library = dlopen(argv[1], RTLD_NOW);
  if (!library) { fprintf(stderr, "%s\n", dlerror()); return 2; }
  void** pool = dlsym(library, "__TVMBackendParallelLaunch");
  if (pool) *pool = launch;
  int (*kernel)(void*, Value*, int32_t, Value*) = dlsym(library, argv[2]);
  static int64_t shapes[3][2]; static Tensor tensors[3]; static Value given[3]; Value result = {0};
  for (int n = 0; n < 3; ++n) {
    for (int d = 0; d < 2; ++d) shapes[n][d] = atoi(argv[3 + 2 * n + d]);
    void* data = aligned_alloc(64, (shapes[n][0] * shapes[n][1] * 4 + 63) / 64 * 64);
    if (n < 2 && fread(data, 4, shapes[n][0] * shapes[n][1], stdin) != (size_t)(shapes[n][0] * shapes[n][1])) return 3;
    tensors[n] = (Tensor){data, 1, 0, 2, 2, 32, 1, shapes[n], 0, 0};
    given[n] = (Value){7, 0, &tensors[n]};
  }
  int code = kernel(0, given, 3, &result);
  fwrite(tensors[2].data, 4, shapes[2][0] * shapes[2][1], stdout);
  return code;
}
"""


@pytest.fixture
def board(tmp_path):
    facts = detect_cpu(machine="aarch64")
    path = tmp_path / "board.toml"
    path.write_text(spec_text(cpu_spec(facts, estimated_profile(facts), "estimated")), encoding="utf-8")
    return path


@pytest.fixture
def product(tmp_path):
    x, w, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s)
               for n, s in (("x", (24, 40)), ("w", (40, 56)), ("y", (24, 56))))  # fmt: skip
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "product", [x, w], [y])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path := tmp_path / "product.onnx")
    return path


@pytest.mark.skipif(COMPILER is None, reason="there is no compiler for aarch64: apt install g++-aarch64-linux-gnu")
def test_a_model_for_another_machine_is_saved_and_computes_there(board, product, tmp_path, capsys):
    path = tmp_path / "model.so"
    assert main(["compile", str(product), "--target", TARGET, "--device", str(board), "--output", str(path)]) == 0
    assert path.read_bytes()[18:20] == b"\xb7\x00"  # the machine in ELF's head: AArch64
    assert "copy it to" in capsys.readouterr().err
    if QEMU is None:
        pytest.skip("QEMU is not here: apt install qemu-user-static")
    pytest.importorskip("tvm_ffi", reason="the driver calls kernels as TVM FFI does")
    source, program = tmp_path / "driver.c", tmp_path / "driver"
    source.write_text(DRIVER, encoding="utf-8")
    compiler = COMPILER.replace("g++", "gcc")
    subprocess.run([compiler, "-w", "-rdynamic", str(source), "-o", str(program), "-ldl"], check=True)
    x, w = (np.random.default_rng(0).standard_normal(s, "float32") for s in ((24, 40), (40, 56)))
    done = subprocess.run(
        [QEMU, "-L", "/usr/aarch64-linux-gnu", str(program), str(path), "__tvm_ffi_matmul", "24", "40", "40", "56",
         "24", "56"], input=x.tobytes() + w.tobytes(), capture_output=True, check=True, timeout=60,
    )  # fmt: skip
    np.testing.assert_allclose(np.frombuffer(done.stdout, "float32").reshape(24, 56), x @ w, rtol=1e-4, atol=1e-4)


def test_it_is_not_loaded_here(board, product):
    with pytest.raises(UsageError, match="cannot run here"):
        roller_tvm.compile(product, TARGET, device=str(board))


def test_without_its_compiler_the_package_is_named(board, product, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(compilers.shutil, "which", lambda name: None if "aarch64" in name else "/usr/bin/g++")
    words = ["compile", str(product), "--target", TARGET, "--device", str(board), "--output", str(tmp_path / "a.so")]
    assert main(words) == 1 and "g++-aarch64-linux-gnu" in capsys.readouterr().err
