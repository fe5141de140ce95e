"""Kernels of a model for LLVM, compiled once and side by side: an object file a kernel, linked where one is needed.

TVM's own build compiles all kernels one after the other, and again when they are loaded or saved. Object files are kept
for the next build (`codegen/kernel_cache.py`).
"""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import tvm
from tvm import relax
from tvm.relax import vm_build
from tvm.support import cc
from tvm_ffi.serialization import from_json_graph_str

from ..codegen.flat import children, kind_of, number_of
from ..codegen.kernel_cache import kernel_cache, key_of
from ..codegen.object_symbols import renamed
from ..explore.dispatch import FFI
from ..folders import check_space, work_folder
from ..forks import may_fork, shared
from ..progress import counted
from ..te.numbering import UNROLLED
from ..tir.nodes import structural_hash, structurally_equal
from ..tvm_env.compiler import find_compiler, is_foreign, tell_of_no_compiler
from .contexts import context_like
from .marks import MATRIX, ORIGIN
from .modules import is_prim_func
from .rewrites import PART
from .structures import bare

Made = TypeVar("Made")

#: Passes without which kernels for CPUs are as fast: the simplifier runs again after this one, a fifth of lowering.
_NEEDLESS = ("s_tir.RenormalizeSplitPattern",)
#: A pass that makes buffers as small as what blocks write; a kernel of plain loops has them of that size, and it takes
#: a third of its lowering.
_OF_BLOCKS = ("s_tir.CompactBufferAllocation",)
#: Bytes of the length of a function in an entry of the cache.
_LENGTH = 4


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
        Receives the number and the name of each kernel before it is compiled.

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
    kernels = _Kernels(functions, code_attrs(told), target, progress or (lambda _: None))
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

    def __init__(self, functions: Mapping[Any, Any], attrs: Any, target: Any, told: Callable[[str], None]) -> None:
        self.loaded: list[Any] = []
        self.exported: list[Any] = []
        if not functions:
            return
        foreign = is_foreign(str(target.attrs.get("mtriple", "")))  # nothing of it can be loaded here
        if find_compiler() is None and not foreign:
            tell_of_no_compiler()
            self.loaded = on_all_cores(partial(_in_memory, attrs, target), list(functions.items()), told)
            self.exported = self.loaded
            return
        with work_folder() as folder:
            objects = of_each(partial(object_of, attrs, target), list(functions.items()), told)
            paths = [str(Path(folder, f"{number}.o")) for number in range(len(objects))]
            for path, content in zip(paths, objects, strict=True):
                Path(path).write_bytes(content)
            self.exported = [tvm.runtime.load_static_library(path, []) for path in paths]
            if not foreign:
                cc.create_shared(library := str(Path(folder, "kernels.so")), paths)
                self.loaded = [tvm.runtime.load_module(library)]


def of_each(
    made: Callable[[Any, Any], Made], kernels: Sequence[tuple[Any, Any]], told: Callable[[str], None]
) -> list[Made]:
    """Return the result of each kernel in order, made on all cores in this PassContext; it calls `object_of`.

    Forks are quicker than threads, which wait for each other in our rewrites.
    """
    cache = kernel_cache()
    if not may_fork(cache) or _settings() is None:
        return on_all_cores(made, kernels, told)

    tell = counted(told, "compile", len(kernels))

    def one(kernel: tuple[int, int]) -> Made:
        place, n = kernel
        var, func = kernels[n]
        tell(var.name_hint, place)
        return made(var, func)

    order = largest_early([_stores(func.body) for _, func in kernels])
    results = shared(one, list(enumerate(order)), cache)
    return [result for _, result in sorted(zip(order, results, strict=True), key=lambda pair: pair[0])]


def largest_early(sizes: Sequence[int]) -> list[int]:
    """Return the order in which cores share work: the smallest item, which tells whether forks pay, then the largest.

    A large item that comes last has the other cores wait for one.

    Examples
    --------
    >>> largest_early([3, 1, 5, 4])
    [1, 2, 3, 0]
    """
    falling = sorted(range(len(sizes)), key=lambda n: (-sizes[n], n))
    return [*falling[-1:], *falling[:-1]]


def _stores(statement: Any) -> int:
    """Return how many stores and calls LLVM gets of a statement, about: how long it takes."""
    if kind_of(statement) == "For":
        times = number_of(statement.extent) if int(statement.kind) == UNROLLED else None
        return (times or 1) * _stores(statement.body)
    if kind_of(statement) == "SBlockRealize":
        return _stores(statement.block.body)
    inside = children(statement)
    return sum(map(_stores, inside)) if inside else 1


def _built(attrs: Any, target: Any, var: Any, func: Any) -> Any:
    """Return a kernel as LLVM's module; its code is not generated yet."""
    part, outer = tvm.IRModule({var: func.with_attr(PART, True)}, attrs=attrs), tvm.transform.PassContext.current()
    needless = (*_NEEDLESS, *(_OF_BLOCKS if func.attrs and MATRIX in func.attrs else ()))
    with contextlib.nullcontext() if outer.instruments else context_like(outer, (), needless):
        return tvm.tirx.build(part, target=target)


def _in_memory(attrs: Any, target: Any, var: Any, func: Any) -> Any:
    """Return a kernel with its code."""
    kernel = _built(attrs, target, var, func)
    kernel[str(var.name_hint)]  # its code is generated at the first look-up
    return kernel


def code_attrs(attrs: Any) -> dict[str, Any]:
    """Return what code generation asks for of a module's attributes, which may hold large constants."""
    return {name: value for name, value in dict(attrs or {}).items() if name == "system_lib_prefix"}


def object_of(attrs: Any, target: Any, var: Any, func: Any) -> bytes:
    """Return the object file of a kernel, from the cache if it is there, under whatever name."""
    cache, key, name = kernel_cache(), "", str(var.name_hint)
    own = bare(func.without_attr(ORIGIN) if func.attrs and ORIGIN in func.attrs else func)
    if cache is not None and (settings := _settings()) is not None:
        key = key_of("object", structural_hash(own), tvm.ir.save_json(attrs), target, settings)
        if (kept := cache.get(key)) is not None and (found := _kept(kept, own, name)) is not None:
            return found
    check_space()
    with work_folder() as folder:
        _built(attrs, target, var, func).write_to_file(path := str(Path(folder, "kernel.o")), "o")
        content = Path(path).read_bytes()
    if cache is not None and key:
        text = zlib.compress(tvm.ir.save_json(own).encode(), 1)
        cache.put(key, len(text).to_bytes(_LENGTH, "big") + text + name.encode() + b"\0" + content)
    return content


def _kept(entry: bytes, func: Any, name: str) -> bytes | None:
    """Return an entry's object file with its kernel called `name`; None if it cannot be, or is another function's.

    The key is TVM's hash of 64 bits, names left out: the function tells whether it is this one.
    """
    size = int.from_bytes(entry[:_LENGTH], "big")
    text, rest = entry[_LENGTH : _LENGTH + size], entry[_LENGTH + size :]
    if not structurally_equal(from_json_graph_str(zlib.decompress(text).decode()), func):
        return None
    own, _, content = rest.partition(b"\0")
    old, new = (f"{FFI.prefix}{one}" for one in (own.decode(), name))
    return content if old == new else renamed(content, old, new)


def _settings() -> str | None:
    """Return what the PassContext of this thread says about code; None if that cannot be said in words."""
    context = tvm.transform.PassContext.current()
    config = sorted((str(name), value) for name, value in dict(context.config).items())
    if context.instruments or not all(isinstance(value, (bool, int, float, str)) for _, value in config):
        return None  # passes of somebody, which are to run
    lists = [[str(name) for name in names] for names in (context.required_pass, context.disabled_pass)]
    return str((context.opt_level, config, *lists))


def on_all_cores(
    made: Callable[[Any, Any], Made], kernels: Sequence[tuple[Any, Any]], told: Callable[[str], None]
) -> list[Made]:
    """Make something of kernels on all cores, in the PassContext of this thread; return the results in order."""
    outer, tell = tvm.transform.PassContext.current(), counted(told, "compile", len(kernels))

    def one(kernel: tuple[Any, Any]) -> Made:
        tell(kernel[0].name_hint)
        if outer.instruments:
            return made(*kernel)
        with context_like(outer):  # a thread has contexts of its own
            return made(*kernel)

    if outer.instruments:  # they are told of one pass at a time
        return list(map(one, kernels))
    with ThreadPoolExecutor(min(len(kernels), len(os.sched_getaffinity(0)))) as pool:
        return list(pool.map(one, kernels))
