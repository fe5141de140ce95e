"""Inputs that lie anywhere in memory, as numpy's do; in a process of its own, which a wrong load would end."""

from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.relax
tvm = pytest.importorskip("tvm")

from tvm import relax  # noqa: E402
from tvm.script import tirx as T  # noqa: E402

from roller_tvm.relax import UnalignedInputs, build  # noqa: E402
from roller_tvm.relax.own_memory import OWN_MEMORY  # noqa: E402
from roller_tvm.relax.pipeline import prepare, schedule  # noqa: E402

from .. import forks  # noqa: E402
from .networks import LLVM, module  # noqa: E402

ELEMENT, TENSOR = 4, 64


def body(builder, x, other):
    """Both inputs read in vectors: as they are, through a view, and beside what a kernel computed."""
    mine = builder.emit(relax.op.nn.softmax(x))
    view = builder.emit(relax.op.permute_dims(builder.emit(relax.op.reshape(x, (8, 8, 64))), [1, 0, 2]))
    last = builder.emit(relax.op.nn.softmax(builder.emit(relax.op.add(mine, other))))
    return builder.emit(relax.op.add(last, builder.emit(relax.op.reshape(view, (64, 64)))))


SHAPES = ((64, 64), (64, 64))


def alignments():
    """How each scheduled function's parameters are declared."""
    scheduled, _ = schedule(prepare(module(body, *SHAPES), LLVM), LLVM)
    return {
        str(var.name_hint): [int(p.ty.data_alignment) for p in func.params]
        for var, func in scheduled.functions_items()
        if type(func).__name__ == "PrimFunc"
    }


def test_parameters_that_inputs_reach_and_no_others():
    found = alignments()
    assert all(a[-1] == TENSOR for a in found.values()), "results are the virtual machine's own"
    (moved,) = (a for name, a in found.items() if "transpose" in name)
    assert moved[0] == ELEMENT, "a view of an input lies where the input does"


@pytest.mark.optimised
def test_bare_numpy_arrays_at_any_address():
    """Offsets of 4, 16 and 32 bytes from where TVM would have them: untuned TVM ends the process too."""
    code = """
import numpy as np, tvm
from tvm import relax
from roller_tvm.relax import build
from tests.relax.networks import default, module, values
from tests.relax.test_alignment import SHAPES, body
mod = module(body, *SHAPES)
machine = relax.VirtualMachine(build(mod, {"kind": "llvm", "num-cores": 2}), tvm.cpu())
drawn = [values(*shape) for shape in SHAPES]
expected = default(mod, *drawn)[0]
for offset in (0, 4, 16, 32):
    given = []
    for shape, numbers in zip(SHAPES, drawn):
        memory = np.zeros(int(np.prod(shape)) + 32, "float32")
        first = ((offset - memory.ctypes.data) % 64) // 4
        given.append(memory[first : first + int(np.prod(shape))].reshape(shape))
        given[-1][:] = numbers
        assert given[-1].ctypes.data % 64 == offset
    np.testing.assert_allclose(machine["main"](*given).numpy(), expected, rtol=1e-4, atol=1e-5)
"""
    done = forks.run(["-c", code], cwd=Path(__file__).resolve().parents[2])
    assert done.returncode == 0, done.stderr[-800:]


def test_functions_of_intermediate_tensors_are_left_as_they_are_and_marked():
    def chain(builder, x):
        y = builder.emit(relax.op.nn.softmax(x))
        return builder.emit(relax.op.permute_dims(y, [1, 0]))

    prepared = prepare(module(chain, (64, 64)), LLVM)
    changed = dict((str(v.name_hint), f) for v, f in UnalignedInputs()(prepared).functions_items())
    before = dict((str(v.name_hint), f) for v, f in prepared.functions_items())
    moved = next(name for name in before if "transpose" in name)
    assert {name for name, func in changed.items() if func.body.same_as(before[name].body)} == {"main", moved}
    assert {name for name, func in changed.items() if OWN_MEMORY in (func.attrs or {})} == {moved}


def test_only_kernels_that_no_input_reaches_go_without_checks_of_their_arguments():
    """A caller's tensor may have strides, which the virtual machine does not look at."""
    executable = build(module(body, *SHAPES), LLVM)
    machine = relax.VirtualMachine(executable, tvm.cpu())
    with pytest.raises(ValueError, match="strides"):
        machine["main"](np.zeros((64, 128), "float32")[:, :64], np.zeros((64, 64), "float32"))


def test_checks_of_a_kernels_own_stay():
    """TVM's checks of arguments go, in the text of the code too."""

    @T.prim_func(private=True, s_tir=True)
    def kernel(a: T.Buffer((16,), "float32"), b: T.Buffer((16,), "float32")):
        T.evaluate(0)
        assert a[0] >= T.float32(0), "negative"
        for i in range(16):
            with T.sblock("b"):
                v = T.axis.spatial(16, i)
                b[v] = T.sqrt(a[v])

    texts = [tvm.tirx.build(tvm.IRModule({"f": func.with_attr("global_symbol", "f")}), LLVM).inspect_source("ll")
             for func in (kernel, kernel.with_attr(OWN_MEMORY, True))]  # fmt: skip
    assert ["negative" in text for text in texts] == [True, True]
    assert ["strides on argument" in text for text in texts] == [True, False]
