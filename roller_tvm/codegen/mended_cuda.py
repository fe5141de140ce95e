"""Kernels for CUDA that compile: TVM's code generator with our mend before it, on either line, once a process."""

from __future__ import annotations

from functools import cache
from typing import Any

from .dialect import Tvm027, dialect_here
from .rewrites.vector_conditions import with_vector_conditions

#: Pipeline that ``tvm.compile`` asks for by default (TVM 0.27), and the code generator (TVM 0.17).
PIPELINE, GENERATE = "s_tir", "target.build.cuda"


@cache
def mend_cuda() -> None:
    """Have every kernel for CUDA that this process builds pass through ``rewrites.vector_conditions``."""
    if isinstance(dialect_here(), Tvm027):
        _extend_pipeline()
    else:
        _stand_before_generator()


def _extend_pipeline() -> None:
    import tvm
    from tvm.tirx import compilation_pipeline as pipelines

    made = pipelines.PIPELINE_MAP[PIPELINE]

    @tvm.transform.module_pass(opt_level=0, name="RollerBeforeCuda")
    class Mend:
        def transform_module(self, mod: Any, _context: Any) -> Any:
            return _mended(mod)

    def extended(**options: Any) -> Any:
        passes, on_host, on_device = made(**options)
        return passes, on_host, lambda: tvm.transform.Sequential([Mend(), on_device()])

    pipelines.register_tir_pipeline(PIPELINE, extended)


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
    return with_vector_conditions(func, dialect_here()) if target and target.kind.name == "cuda" else func
