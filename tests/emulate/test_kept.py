"""Kernels kept in packages, host code with open sizes, functions called on arrays that they change."""

import tarfile

import numpy as np
import pytest

from roller_check import Emulation, Function, KernelFault, compile
from roller_tvm.codegen.built_kernels import BuiltKernels
from roller_tvm.codegen.errors import NotEmulated
from roller_tvm.codegen.host_code import BufferSpec, HostCode, launch_of
from roller_tvm.errors import BadInput, UsageError
from roller_tvm.package_members import add_members

SOURCE = """
extern "C" __global__ void add(float* A, float* B, int n) {
  int i = blockIdx.x * 32 + threadIdx.x;
  if (i < n) B[i] = A[i] + 1.0f;
}
extern "C" __global__ void negate(float* A) { A[threadIdx.x] = -A[threadIdx.x]; }
"""
ROWS = ("FloorDiv", ("Add", "n", 31), 32)
ADD = HostCode(
    (BufferSpec("A", ("n",), "float32"), BufferSpec("B", ("n",), "float32")), (),
    (launch_of("add", ["A", "B", ("n",)], ["blockIdx.x", "threadIdx.x"], [ROWS, 32]),),
)  # fmt: skip
KERNELS = BuiltKernels(SOURCE, "sm_80", {"f": ADD}, {"g": "host code that sorts"})


@pytest.mark.parametrize("name", ["m.tar", "m.so"])
def test_packages(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(b"\x7fELF not really")
    with pytest.raises(BadInput, match="no source of kernels"):
        BuiltKernels.of_package(path)
    if name == "m.tar":
        (tmp_path / "mod.so").write_bytes(b"code")
        with tarfile.open(path, "w") as tar:
            tar.add(tmp_path / "mod.so", "mod.so")
    add_members(path, KERNELS.members())
    assert BuiltKernels.of_package(path) == KERNELS
    assert path.read_bytes().startswith(b"\x7fELF not") if name == "m.so" else tarfile.is_tarfile(path)


@pytest.mark.parametrize("n", [5, 70])
def test_open_sizes(n):
    steps = []
    emulation = Emulation(KERNELS, told=steps.append)
    a, b = np.arange(n, dtype="float32"), np.zeros(n, "float32")
    emulation.call("f", [a, b], fresh=[1])
    assert (b == np.arange(n) + 1).all() and (a == np.arange(n)).all()
    assert [(s.number, s.name, s.blocks) for s in steps] == [(1, "f", -(-n // 32))]
    with pytest.raises(NotEmulated, match="g: host code that sorts"):
        emulation.call("g", [a])
    with pytest.raises(UsageError, match="1 arguments for 2"):
        emulation.call("f", [a])
    emulation.close()
    emulation.call("f", [b, a])  # compiled already, or compiled now
    assert (a == np.arange(n) + 2).all()


def test_sizes_that_nobody_gave():
    with pytest.raises(NotEmulated, match="n.*\n.*sizes="):
        Function.of(compile(SOURCE), ADD)


def test_what_is_fresh_must_be_written_and_not_read():
    code = HostCode((BufferSpec("A", (4,), "float32"),), (), (launch_of("negate", ["A"], ["threadIdx.x"], [3]),))
    function = Function.of(compile(SOURCE), code)
    a = np.arange(4, dtype="float32")
    function.run_in_place([a])
    assert a.tolist() == [0, -1, -2, 3]
    with pytest.raises(KernelFault, match="'A'.*nobody wrote it"):
        function.run_in_place([a], fresh=[0])
    half = HostCode(ADD.parameters, (), (launch_of("add", ["A", "B", 3], ["threadIdx.x"], [32]),))
    with pytest.raises(KernelFault, match="1 of 4 elements were never written"):
        Function.of(compile(SOURCE), half, {"n": 4}).run_in_place([a, np.zeros(4, "float32")], fresh=[1])
