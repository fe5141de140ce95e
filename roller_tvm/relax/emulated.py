"""Plans for a GPU of the Relax line, executed on the CPU and compared."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod, sqrt
from typing import Any

import numpy as np

from ..emulate import Checked, check
from ..lower import lower
from ..measure.numerics import make_inputs, usable
from ..plan.program import Plan
from ..tir.apply import apply_steps_tir
from ..tir.emulated import emulated_function
from ..tir.read import read_prim_func
from .reference import reference_module


def check_plan(plan: Plan, tensors: Sequence[Any], arch: str = "sm_80", budget_s: float = 20.0) -> Checked:
    """Execute a plan's kernels on the CPU and compare them with the loops as they were.

    Parameters
    ----------
    plan : Plan
        For a GPU.
    tensors : sequence of te.Tensor
        What the plan was made for: inputs, outputs.
    arch : str
    budget_s : float
        A single kernel that takes longer is run in part.

    Raises
    ------
    KernelFault, WrongAnswer
        What is wrong with the kernels.

    Examples
    --------
    >>> print(check_plan(plan, te_operator("matmul", m=64, n=64, k=64)))  # doctest: +SKIP
    executed on the CPU: 1 kernel, all blocks, all elements agree with the reference (0.1 s)
    """
    import tvm
    from tvm import te

    tensors = list(tensors)
    func = te.create_prim_func(tensors)
    reading = read_prim_func(func)
    ahead = any(p.choice("stages", 1) > 1 for p in plan.programs)
    with tvm.transform.PassContext(config={"tirx.use_async_copy": True} if ahead else {}):
        function = emulated_function(apply_steps_tir(func, reading, lower(plan)), arch)
    given = [isinstance(t.op, te.PlaceholderOp) for t in tensors]
    cpu = tvm.get_global_func("target.llvm_get_system_cpu")()
    plain = reference_module(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}))
    kernel = tvm.compile(plain, target=tvm.target.Target({"kind": "llvm", "mcpu": str(cpu)}))
    for positive in (False, True):  # roots and logarithms need it
        feeds = iter(make_inputs([t for t, is_given in zip(tensors, given, strict=True) if is_given], positive))
        arrays = [next(feeds) if is_given else None for is_given in given]
        shapes = [[int(e) for e in t.shape] for t in tensors]
        memory = [
            tvm.runtime.tensor(np.zeros(shape, str(t.dtype)) if a is None else a)
            for a, t, shape in zip(arrays, tensors, shapes, strict=True)
        ]
        kernel(*memory)
        expected = [m.numpy() for m, is_given in zip(memory, given, strict=True) if not is_given]
        if usable(expected):
            break
    sums = [prod(a.extent for a in s.reduce) for s in reading.expression.stages if s.reduce]
    terms = max(1, round(sum(sqrt(n) for n in sums) ** 2))
    return check(function, arrays, expected, terms, float(plan.expression.flops), budget_s)
