"""Copies are read in the coordinates of their tiles: few quotients are left for isl, and nothing wrong is proven."""

import pytest

tvm = pytest.importorskip("tvm")
pytest.importorskip("islpy")
pytestmark = pytest.mark.relax

from roller_tvm.roller.features import Features  # noqa: E402
from roller_tvm.schedules.proofs import library, prove_lowered  # noqa: E402
from roller_tvm.schedules.proofs.read import read_kernel  # noqa: E402

from ..plan.devices import device  # noqa: E402
from .mutants import answer, is_wrong, mutants  # noqa: E402
from .test_mutants import lowered  # noqa: E402

STAGED = "conv2d_nchw n=1 c=32 h=28 w=28 f=64 kh=3 kw=3 padding=1"
PLAIN = "depthwise_conv2d_nchw n=1 c=8 h=14 w=14 k=3 padding=1"


def quotients(kernel):
    isl = library()
    maps = [a.homes for s in kernel.statements for a in s.accesses]
    return max(basic.dim(isl.dim_type.div) for one in maps for basic in one.get_basic_maps())


def test_a_convolution_with_copies_ahead_is_proven():
    func, reference = lowered(STAGED, "a100", Features.of_tensor_ir(device("a100")))
    kernel = read_kernel(func)
    assert sum(bool(s.folds) for s in kernel.statements) == 10  # five of each input: ahead, in the loop, at waits
    assert quotients(kernel) == 1 < quotients(read_kernel(func, folds=False))  # which half of the buffer it is
    assert prove_lowered(func, reference).answer == "proven"


def test_blocks_and_threads_that_go_along_an_output_are_one_number():
    func, reference = lowered(PLAIN, "v100")
    kernel = read_kernel(func)
    assert {d.name for s in kernel.statements for d in s.dims if d.kind == "block"} == {"blockIdx.x * 32 + threadIdx.x"}
    assert quotients(kernel) == 0 and kernel.threads == 32
    assert prove_lowered(func, reference).answer == "proven"


def test_a_wrong_convolution_is_refuted_by_its_own_loops():
    func, reference = lowered("conv2d_nchw n=1 c=2 h=6 w=6 f=4 kh=3 kw=3 padding=1", "v100")
    right = answer(reference)
    for kind in ("barrier dropped 0", "store shifted 1", "load elsewhere 0", "guard off by one 0"):
        wrong = [m for name, m in mutants(func) if name == kind and is_wrong(m, right)]
        for mutant in wrong:
            proof = prove_lowered(mutant, reference)
            assert proof.answer == "refuted", (kind, proof)
            assert "tile=" not in str(proof)
    dropped = next(m for name, m in mutants(func) if name == "barrier dropped 0")
    assert "threadIdx.x=" in str(prove_lowered(dropped, reference))


def test_threads_of_each_kernel_are_counted_alone():
    func, reference = lowered("reduce_sum shape=8x10000 axis=1", "v100")  # a kernel of parts, and one along the output
    proof = prove_lowered(func, reference, device("v100"))
    assert proof.answer == "proven", proof
