"""Names of inputs that no C++ compiler takes, and of functions that TVM numbers anew."""

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
pytestmark = pytest.mark.relax

from tvm import relax  # noqa: E402

from roller_tvm.codegen import compile_cuda, find_compilers  # noqa: E402
from roller_tvm.relax import build  # noqa: E402
from roller_tvm.relax.kernels import LayoutFreeBuffers  # noqa: E402
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


def test_calls_go_where_they_went_whatever_the_names_are():
    """Of twelve functions TVM's pass calls the first ``mean11``, which could be the second and a digit."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((12, 3), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            parts = []
            for n in range(12):
                y = builder.emit(relax.op.strided_slice(x, [0], [0], [n + 1]))
                parts.append(builder.emit(relax.op.mean(y, 0)))
            out = builder.emit_output(relax.op.concat(parts))
        builder.emit_func_output(out)
    before = relax.transform.LegalizeOps()(builder.get())
    after = LayoutFreeBuffers()(before)
    assert [name(var) for var in before.get_global_vars()] == [name(var) for var in after.get_global_vars()]
    assert rows(after) == rows(before) and len(rows(after)) == 12
    data = networks.values(12, 3)
    got = networks.default(after, data)[0]
    assert np.allclose(got, np.concatenate([data[: n + 1].mean(0) for n in range(12)]), rtol=1e-5)


def name(var):
    return str(var.name_hint)


def rows(mod):
    """(name, rows that the function takes, rows that it is given) of each mean."""
    calls = [b.value for block in mod["main"].body.blocks for b in block.bindings if hasattr(b.value, "args")]
    means = [c for c in calls if str(getattr(c.args[0], "name_hint", "")).startswith("mean")]
    return [
        (name(c.args[0]), int(mod[c.args[0]].params[0].shape[0]), int(c.args[1].fields[0].ty.shape[0])) for c in means
    ]
