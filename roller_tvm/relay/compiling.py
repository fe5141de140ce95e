"""Kernels of a Relay model for CPUs, compiled side by side: an object file a kernel, kept for the next build.

``relay.build`` compiles all kernels as one module, one after the other, and again when they are first executed. Here it
gets an empty module instead; what it returns is given the kernels afterwards, linked.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import tvm
from tvm.contrib import cc
from tvm.relay.backend.executor_factory import GraphExecutorFactoryModule

from ..codegen.flat import kind_of
from ..codegen.kernel_cache import kernel_cache, key_of
from ..folders import check_space, work_folder
from ..progress import counted
from ..tvm_env.compiler import find_compiler, is_foreign, tell_of_no_compiler
from .folding import folds_constants
from .rewrites import GENERATE, code_of, rewrites_on

_FACTORY = "tvm.graph_executor_factory.create"


class Kernels:
    """Object files of the kernels of one model.

    Parameters
    ----------
    progress : function of str
        Receives the number and the name of each kernel before it is compiled.

    Attributes
    ----------
    objects : list of bytes
    flattened : tuple
        What they were made of: module, target, names of the rewrites.
    """

    def __init__(self, progress: Callable[[str], None]) -> None:
        self.progress = progress
        self.objects: list[bytes] = []
        self.flattened: tuple[Any, Any, frozenset[str]] = None, None, frozenset()

    def compile(self, mod: Any, target: Any) -> Any:
        """Compile a module's functions; return a module of none. None: they cannot be compiled one by one."""
        functions = list(mod.functions.items())
        if self.objects or not functions or not all(_stands_alone(func) for _, func in functions):
            return None
        rewrites = rewrites_on()

        tell = counted(self.progress, "compile", len(functions))

        def one(function: tuple[Any, Any]) -> bytes:
            tell(function[0].name_hint)
            return _object(*function, target, rewrites)

        with ThreadPoolExecutor(min(len(functions), len(os.sched_getaffinity(0)))) as pool:
            self.objects = list(pool.map(one, functions))
        self.flattened = mod, target, rewrites
        return code_of(tvm.IRModule({}, attrs=mod.attrs), target, frozenset())

    def linked(self, built: Any) -> Any:
        """Return what ``relay.build`` returned, with the kernels."""
        return Compiled(built, self) if self.objects else built


class Compiled(GraphExecutorFactoryModule):
    """A built model whose kernels are linked and loaded already.

    Parameters
    ----------
    built : GraphExecutorFactoryModule
        Without them.
    kernels : Kernels
    """

    def __init__(self, built: Any, kernels: Kernels) -> None:
        self.__dict__.update(built.__dict__)
        self.kernels = kernels
        run = self.empty = built.lib
        if not is_foreign(str(kernels.flattened[1].attrs.get("mtriple", ""))):  # else nothing can be loaded here
            with work_folder() as folder:
                cc.create_shared(path := str(Path(folder, "kernels.so")), written(kernels.objects, folder))
                run = tvm.runtime.load_module(path)
            for other in built.lib.imported_modules:
                run.import_module(other)
        self.lib = Library(run, self)
        self.module = self._factory(run)

    def _factory(self, library: Any) -> Any:
        weights = [word for name, value in self.params.items() for word in (name, value)]
        return tvm.get_global_func(_FACTORY)(self.graph_json, library, self.libmod_name, *weights)

    def export_library(self, file_name: Any, fcompile: Any = None, addons: Any = None, **options: Any) -> Any:
        """Write the model to a file."""
        return self._export(self._factory(self.empty), file_name, fcompile, addons, options)

    def _export(self, module: Any, file_name: Any, fcompile: Any, addons: Any, options: dict[str, Any]) -> Any:
        """Write a module with the kernels to a file."""
        with work_folder() as folder:
            addons = [*(addons or []), *written(self.kernels.objects, folder)]
            return module.export_library(file_name, fcompile=fcompile, addons=addons, **options)


class Library(tvm.runtime.Module):
    """The kernels of a built model, to execute and to export.

    Parameters
    ----------
    run : tvm.runtime.Module
    model : Compiled
    """

    def __init__(self, run: Any, model: Compiled) -> None:
        super().__init__(run.handle)
        self._run, self._model = run, model  # the handle is the other's

    def __del__(self) -> None:
        pass

    def export_library(self, file_name: Any, *, fcompile: Any = None, addons: Any = None, **options: Any) -> Any:
        """Write the kernels to a file."""
        return self._model._export(self._model.empty, file_name, fcompile, addons, options)

    def get_source(self, fmt: str = "") -> str:
        """Return the code of all kernels as text, generated anew: 'll' or 'asm'."""
        return str(code_of(*self._model.kernels.flattened).get_source(fmt))

    def save(self, file_name: str, fmt: str = "") -> None:
        """Write the code of all kernels, generated anew, to a file."""
        code_of(*self._model.kernels.flattened).save(file_name, fmt)


@contextlib.contextmanager
def compiled_apart(progress: Callable[[str], None] | None) -> Iterator[Kernels]:
    """Compile the kernels of the model that is built while this is open one by one; those of constants are not.

    Examples
    --------
    >>> with compiled_apart(None) as kernels:
    ...     built = kernels.linked(tvm.relay.build(mod, target, params=params))
    """
    kernels = Kernels(progress or (lambda _: None))
    if find_compiler() is None:
        tell_of_no_compiler()
        yield kernels
        return
    with _generating(lambda mod, target: None if folds_constants() else kernels.compile(mod, target)):
        yield kernels


@contextlib.contextmanager
def _generating(build: Callable[[Any, Any], Any]) -> Iterator[None]:
    """Have `build` make code for LLVM of a module and a target while this is open; of what it returns None, TVM does.
    """
    original = tvm.get_global_func(GENERATE)

    def made(mod: Any, target: Any) -> Any:
        found = build(mod, target)
        return original(mod, target) if found is None else found

    tvm.register_func(GENERATE, made, override=True)
    try:
        yield
    finally:
        tvm.register_func(GENERATE, original, override=True)


def object_of(schedule: Any, args: Sequence[Any], target: Any, name: str) -> bytes:
    """Return the object file of a TE schedule as a kernel of a model, called `name`, from the cache if it is there."""
    found: list[tuple[Any, Any]] = []

    def keep(mod: Any, target: Any) -> Any:
        found.extend(mod.functions.items())
        return code_of(tvm.IRModule({}, attrs=mod.attrs), target, frozenset())

    with _generating(keep), tvm.transform.PassContext(opt_level=3):
        tvm.build(schedule, list(args), target, name=name)
    ((var, func),) = found
    return _object(var, func.without_attr("tir.is_entry_func"), target, rewrites_on())


def _object(var: Any, func: Any, target: Any, rewrites: frozenset[str]) -> bytes:
    """Return the object file of a kernel, from the cache if it is there."""
    cache = kernel_cache()
    key = "" if cache is None else key_of("object", var.name_hint, tvm.ir.save_json(func), target, sorted(rewrites))
    if cache is not None and (kept := cache.get(key)) is not None:
        return kept
    check_space()
    with work_folder() as folder:
        module = code_of(tvm.IRModule({var: func}), target, rewrites)
        module.save(path := str(Path(folder, "kernel.o")))
        content = Path(path).read_bytes()
    if cache is not None:
        cache.put(key, content)
    return content


def _stands_alone(func: Any) -> bool:
    """Return whether a function is a kernel that calls no other function of its module."""
    if kind_of(func) != "PrimFunc":
        return False
    called: list[Any] = []
    tvm.tir.stmt_functor.post_order_visit(func.body, lambda node: _note(node, called))
    return not called


def _note(node: Any, called: list[Any]) -> None:
    if isinstance(node, tvm.tir.Call) and isinstance(node.op, tvm.ir.GlobalVar):
        called.append(node)


def written(objects: list[bytes], folder: str) -> list[str]:
    """Write object files; return their paths."""
    paths = [str(Path(folder, f"kernel{number}.o")) for number in range(len(objects))]
    for path, content in zip(paths, objects, strict=True):
        Path(path).write_bytes(content)
    return paths
