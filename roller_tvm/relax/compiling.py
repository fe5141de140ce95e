"""Kernels of a model for LLVM, compiled once and side by side: an object file a kernel, linked where one is needed.

TVM's own build compiles all kernels one after the other, and again when they are loaded or saved.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import tvm
from tvm import relax
from tvm.relax import vm_build
from tvm.support import cc

from ..folders import work_folder
from ..tvm_env.compiler import find_compiler
from .modules import is_prim_func
from .rewrites import PART


def compile_model(mod: Any, target: Any, pipeline: Any, progress: Callable[[str], None] | None = None) -> Any:
    """Build a Relax module for a CPU, as ``tvm.compile`` does.

    Parameters
    ----------
    mod : tvm.IRModule
    target : tvm.target.Target
        Of kind llvm.
    pipeline : tvm.transform.Pass
        From a Relax module to what the virtual machine is built from.
    progress : function of str, optional
        Receives a word before kernels are compiled.

    Returns
    -------
    tvm.relax.VMExecutable
        It can be executed and exported; without a C++ compiler it can be executed.

    Examples
    --------
    >>> executable = compile_model(mod, target, roller_pipeline(target))
    """
    with target:
        lowered = pipeline(mod)
    functions = {var: func for var, func in lowered.functions_items() if is_prim_func(func)}
    told = dict(lowered.attrs) if lowered.attrs else {}
    if progress is not None:
        progress("compile")
    kernels = _Kernels(functions, lowered.attrs, target)
    builders = relax.ExecBuilder(), relax.ExecBuilder()  # a virtual machine changes the executable that it runs
    for builder in builders:
        vm_build._vmcodegen(builder, lowered)
    others, constants = list(told.get("external_mods", [])), dict(told.get("const_name_to_constant", {}))
    exported, run = (
        vm_build._vmlink(builder, target, None, ext_libs=[*libraries, *others], params=dict(constants)).mod
        for builder, libraries in zip(builders, (kernels.exported, kernels.loaded), strict=True)
    )
    return Compiled(exported, run)


class Compiled(relax.VMExecutable):
    """An executable whose kernels are linked and loaded already.

    Parameters
    ----------
    mod : tvm.runtime.Module
        For ``export_library``.
    run : tvm.runtime.Module
        The same for a virtual machine.
    """

    def __init__(self, mod: Any, run: Any) -> None:
        super().__init__(mod)
        self._jitted_mod = run


class _Kernels:
    """Compiled PrimFuncs: modules to execute, and modules to export."""

    def __init__(self, functions: Mapping[Any, Any], attrs: Any, target: Any) -> None:
        self.loaded: list[Any] = []
        self.exported: list[Any] = []
        if not functions:
            return
        with work_folder() as folder:
            linked = find_compiler() is not None

            def made(number: int, var: Any, func: Any) -> Any:
                module = tvm.IRModule({var: func.with_attr(PART, True)}, attrs=attrs)
                kernel = tvm.tirx.build(module, target=target)
                if not linked:
                    kernel[str(var.name_hint)]  # its code is generated at the first look-up
                    return kernel
                kernel.write_to_file(path := str(Path(folder, f"{number}.o")), "o")
                return path

            parts = _side_by_side(made, [(number, *one) for number, one in enumerate(functions.items())])
            if not linked:
                self.loaded = self.exported = parts
                return
            cc.create_shared(library := str(Path(folder, "kernels.so")), parts)
            self.loaded = [tvm.runtime.load_module(library)]
            self.exported = [tvm.runtime.load_static_library(path, []) for path in parts]


def _side_by_side(made: Callable[..., Any], jobs: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Do jobs on all cores, in the PassContext of this thread; return the results in order."""
    outer = tvm.transform.PassContext.current()
    if outer.instruments:  # they are told of one pass at a time
        return [made(*job) for job in jobs]

    def one(job: tuple[Any, ...]) -> Any:
        with _like(outer):  # a thread has contexts of its own
            return made(*job)

    with ThreadPoolExecutor(min(len(jobs), len(os.sched_getaffinity(0)))) as pool:
        return list(pool.map(one, jobs))


def _like(context: Any) -> Any:
    """Return a PassContext with the settings of another."""
    return tvm.transform.PassContext(
        opt_level=context.opt_level, config=dict(context.config),
        required_pass=[str(name) for name in context.required_pass],
        disabled_pass=[str(name) for name in context.disabled_pass],
    )  # fmt: skip
