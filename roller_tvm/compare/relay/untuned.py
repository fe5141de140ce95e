"""TVM's kernel of an untuned operator."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roller_tvm.compare.keeping import build_seconds
from roller_tvm.compare.opened import DEFAULT
from roller_tvm.compare.relay.functions import relay_function
from roller_tvm.compare.relay.kernels import build_default, build_schedule
from roller_tvm.compare.relay.tasks import Opened
from roller_tvm.errors import UnsupportedOperator
from roller_tvm.relay.silence import silent_autotvm

#: Operators that compute nothing; ``relay.build`` puts them around a kernel if it changes the layout of its operands.
MOVES = frozenset({"layout_transform", "reshape", "transpose"})
BESIDE = "without the kernels that lay data out for it and back"
#: With ``auto_scheduler``, TVM computes dense layers and products in a form to be scheduled; its own schedules of that
#: form are plain loops, and nobody runs them without tuning.
OF_SEARCH = "as TVM builds it where auto_scheduler found nothing, not as relay.build does"


def tune(opened: Opened, trials: int) -> dict[str, Any]:
    """Build the kernel of a plain ``relay.build``; return the fields of ``results.Tuned``. The check is not counted."""
    if not opened.default:
        raise UnsupportedOperator("TVM has no single kernel for this operator", opened.case.id)
    if not opened.case.operator:  # a model's task, of which there is only what auto_scheduler was shown
        path, remark = build_default(opened.key, opened.dag, opened.target, opened.default, opened.kernels), OF_SEARCH
    else:
        path, remark = _built(opened)
    return opened.found(path, build_seconds(path), schedule=DEFAULT, remark=remark)


def _built(opened: Opened) -> tuple[Path, str]:
    kernels = relay_kernels(*relay_function(opened.case), opened.target)
    computing = [k for k in kernels if not k.moves] or kernels
    if len(computing) != 1:
        raise UnsupportedOperator(f"relay.build makes {len(computing)} kernels of it", opened.case.id)
    (kernel,) = computing
    key = f"untuned {opened.key} {kernel.name}"
    path = build_schedule(key, kernel.schedule, kernel.args, opened.target, key, opened.kernels)
    return path, BESIDE if len(kernels) > 1 else ""


@dataclass(frozen=True, eq=False)
class Kernel:
    """A kernel of a ``relay.build``, before it is lowered.

    Parameters
    ----------
    name : str
    schedule : te.Schedule
    args : list of te.Tensor
    moves : bool
        True if the kernel computes nothing.
    """

    name: str
    schedule: Any
    args: list[Any]
    moves: bool


def relay_kernels(mod: Any, params: dict[str, Any], target: Any) -> list[Kernel]:
    """Return the kernels that ``relay.build`` makes of a module without any record; they take weights in its layouts.

    Examples
    --------
    >>> case = Case("D", "dense", "m=4 n=32 k=16 bias=1")  # doctest: +SKIP
    >>> [k.name for k in relay_kernels(*relay_function(case), tvm.target.Target("llvm"))]  # doctest: +SKIP
    ['fused_nn_contrib_dense_pack_add']
    """
    import tvm
    from tvm import autotvm, relay
    from tvm.relay.backend import te_compiler

    compiler = te_compiler.get()
    compiler.clear()  # what was lowered for auto_scheduler is another thing of the same name
    with target, silent_autotvm(), autotvm.FallbackContext(), tvm.transform.PassContext(opt_level=3):
        optimized, _ = relay.optimize(mod, target, params=params)
        found: list[Kernel] = []

        def visit(node: Any) -> None:
            if isinstance(node, relay.Call) and isinstance(node.op, relay.Function):
                lowered = compiler.lower(node.op, target)
                names = _operators(node.op)
                found.append(Kernel("_".join(["fused", *(n.replace(".", "_") for n in names)]), lowered.schedule,
                                    [*lowered.inputs, *lowered.outputs], set(names) <= MOVES))  # fmt: skip

        relay.analysis.post_order_visit(optimized["main"].body, visit)
    return found


def _operators(function: Any) -> list[str]:
    from tvm import relay
    from tvm.ir import Op

    names: list[str] = []

    def visit(node: Any) -> None:
        if isinstance(node, relay.Call) and isinstance(node.op, Op):
            names.append(str(node.op.name))

    relay.analysis.post_order_visit(function.body, visit)
    return names
