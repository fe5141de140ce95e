"""Inputs of ONNX models whose names no C++ compiler takes."""

import pytest

tvm = pytest.importorskip("tvm")
pytestmark = pytest.mark.relax

from tvm import relax  # noqa: E402

from roller_tvm.codegen import compile_cuda, find_compilers  # noqa: E402
from roller_tvm.relax import build  # noqa: E402
from roller_tvm.relax.names import plain_names  # noqa: E402

from . import networks  # noqa: E402


def named(*names):
    builder = relax.BlockBuilder()
    params = [relax.Var(name, relax.TensorType((4, 8), "float32")) for name in names]
    with builder.function("main", params):
        with builder.dataflow():
            total = params[0]
            for other in params[1:]:
                total = builder.emit(relax.op.subtract(total, other))
            result = builder.emit_output(relax.op.exp(total))
        builder.emit_func_output(result)
    return builder.get()


def test_names_become_identifiers_and_differ():
    mod = plain_names(named("gpu_0/data_0", "gpu_0.data_0", "3"))
    assert [str(p.name) for p in mod["main"].params] == ["gpu_0_data_0", "gpu_0_data_0_", "p3"]
    assert relax.analysis.well_formed(mod) is not False


def test_what_it_computes_stays():
    a, b = networks.values(4, 8), networks.values(4, 8)
    (got,), (expected,) = (networks.default(m, a, b) for m in (plain_names(named("a/1", "b/1")), named("a/1", "b/1")))
    assert (got == expected).all()


def test_plain_names_are_left():
    mod = named("x", "y")
    assert plain_names(mod).same_as(mod)


@pytest.mark.parametrize("names", [("Decoded", "Constant_12"), ("x", "w")])
def test_matrix_instructions_whatever_the_tensors_are_called(names):
    """TVM replaces A to D in the text of an instruction, within names too."""
    types = [relax.TensorType((64, 64), "float16")] * 2
    builder, params = relax.BlockBuilder(), [relax.Var(n, t) for n, t in zip(names, types, strict=True)]
    with builder.function("main", params):
        with builder.dataflow():
            out = builder.emit_output(builder.emit(relax.op.matmul(*params)))
        builder.emit_func_output(out)
    built = build(builder.get(), {"kind": "cuda", "arch": "sm_80"})
    text = built.roller_tvm_kernels.source
    assert "mma" in text and "Constant" not in text
    if find_compilers():
        assert compile_cuda(text, "sm_80")
