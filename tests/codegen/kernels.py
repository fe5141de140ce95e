"""Kernels for a CPU from TE tensors and schedule steps, built with some rewrites on the TVM line at hand."""

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from roller_tvm.planner.construct import construct
from roller_tvm.planner.lower import lower
from roller_tvm.te import read_te
from roller_tvm.tvm_env import line

from ..plan.devices import device

#: Vectors that every machine of these tests has; cores that do not follow streams alone, built for and not run.
WIDE, ASKING = "core-avx2", "skylake-avx512"
#: Threads for which kernels are built.
THREADS = 2
#: A line that a kernel asks the nearest cache for, in LLVM's language.
ASKED = r"@llvm\.prefetch[^\n]*i32 0, i32 3, i32 1\)"


@dataclass(frozen=True)
class Kernel:
    """A built kernel."""

    module: Any
    text: str  # in LLVM's language, without addresses of this process

    def __call__(self, shape, *given):
        """Return the output of this shape; elements that are not written are 77."""
        import tvm

        array = tvm.nd.array if line() == "relay" else tvm.runtime.tensor
        out = array(np.full(shape, 77, given[0].dtype))
        (self.module if line() == "relay" else self.module["main"])(*map(array, given), out)
        return out.numpy()

    def count(self, pattern):
        return len(re.findall(pattern, self.text))


def built(tensors, steps, names=(), mcpu=WIDE):
    """Return the kernel of a schedule, built with the rewrites of these names."""
    return (_relay if line() == "relay" else _relax)(list(tensors), steps, names, mcpu)


def planned(tensors, names=("edge_vectors", "prefetch", "stack_tiles"), mcpu=WIDE):
    """Return the kernel of the best plan for AVX-512, and the plan."""
    plan = construct(read_te(tensors).expression, device("avx512"), top=1).plans[0].plan
    return built(tensors, lower(plan), names, mcpu), plan


def _relay(tensors, steps, names, mcpu):
    import tvm

    from roller_tvm.codegen.apply_te import TeProgram, apply_steps_te
    from roller_tvm.relay.rewrites import CpuRewrites

    schedule, args = apply_steps_te(TeProgram.of_reading(read_te(tensors), tensors), steps)
    with CpuRewrites(**dict.fromkeys(names, True)):
        module = tvm.build(schedule, args, f"llvm -mcpu={mcpu} -num-cores {THREADS}")
    return Kernel(module, _plain(module.get_source("ll")))


def _relax(tensors, steps, names, mcpu):
    import tvm
    from tvm import te

    from roller_tvm.codegen.apply_tensorir import apply_steps_tir
    from roller_tvm.relax import rewrites
    from roller_tvm.tir import read_prim_func

    passes = {
        "edge_vectors": rewrites.EdgeVectors, "prefetch": rewrites.PrefetchPanels, "stack_tiles": rewrites.StackTiles,
        "vector_math": rewrites.VectorMath,
        "fast_math": rewrites.FastMath,
    }  # fmt: skip
    func = te.create_prim_func(tensors).with_attr("global_symbol", "main")
    mod = apply_steps_tir(func, read_prim_func(func, name="main", constants=()), steps).mod
    mod = tvm.transform.Sequential([passes[name]() for name in names])(mod)
    made = tvm.compile(mod, {"kind": "llvm", "mcpu": mcpu, "num-cores": THREADS})
    return Kernel(made, _plain(made.mod.inspect_source("ll")))


def _plain(text):
    return re.sub("0x[0-9a-f]+", "", text)


def recording(rewrite, monkeypatch):
    """Statements before and after a rewrite; after it None where it made none."""
    from roller_tvm.codegen.rewrites import whole_vectors

    seen = []

    def recorded(body, dialect):
        seen.append((body, rewrite(body, dialect)))
        return seen[-1][1]

    changed = tuple(recorded if one is rewrite else one for one in whole_vectors.REWRITINGS)
    monkeypatch.setattr(whole_vectors, "REWRITINGS", changed)
    return seen
