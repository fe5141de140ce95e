"""Kernels for CUDA that compile: TVM's code generator with our mend before it, on either line, once a process."""

from __future__ import annotations

from functools import cache
from typing import Any

from .dialect import Tvm027, dialect_here
from .rewrites.half_remainders import with_half_remainders
from .rewrites.vector_conditions import with_vector_conditions

#: Pipeline that ``tvm.compile`` asks for by default (TVM 0.27), and the code generator (TVM 0.17).
PIPELINE, GENERATE = "s_tir", "target.build.cuda"


@cache
def mend_cuda() -> None:
    """Have every kernel for CUDA that this process builds pass through these rewrites."""
    if isinstance(dialect_here(), Tvm027):
        extend_pipeline(before_device=_pass())
    else:
        _stand_before_generator()


def extend_pipeline(before_host: Any = None, before_device: Any = None) -> None:
    """Add a pass before those that TVM 0.27 makes once a function is flattened, of host code or of a device's."""
    import tvm
    from tvm.tirx import compilation_pipeline as pipelines

    made = pipelines.PIPELINE_MAP[PIPELINE]

    def before(rewrite: Any, then: Any) -> Any:
        return then if rewrite is None else lambda: tvm.transform.Sequential([rewrite, then()])

    def extended(**options: Any) -> Any:
        passes, on_host, on_device = made(**options)
        return passes, before(before_host, on_host), before(before_device, on_device)

    pipelines.register_tir_pipeline(PIPELINE, extended)


def _pass() -> Any:
    import tvm

    return tvm.transform.module_pass(lambda mod, _context: _mended(mod), opt_level=0, name="RollerBeforeCuda")


def _stand_before_generator() -> None:
    import tvm

    generate = tvm.get_global_func(GENERATE, allow_missing=True)
    if generate is not None:
        tvm.register_func(GENERATE, lambda mod, target: generate(_mended(mod), target), override=True)


def _mended(mod: Any) -> Any:
    import tvm

    return tvm.IRModule({var: _for_cuda(func) for var, func in mod.functions.items()}, attrs=mod.attrs)


def _for_cuda(func: Any) -> Any:
    target = func.attrs.get("target") if func.attrs else None
    if not target or target.kind.name != "cuda":
        return func
    return with_half_remainders(with_vector_conditions(func, dialect_here()), dialect_here())
