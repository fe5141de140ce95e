"""TVM's tensor intrinsics, registered one by one: its module of them for CUDA takes 14 s to import."""

from __future__ import annotations

import ast
import importlib.abc
import importlib.machinery
import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

#: The module of TVM that registers all of them when it is imported.
MODULE = "tvm.s_tir.tensor_intrin.cuda"
#: Our module of those that TVM lacks, and the words in their names.
_OWN, _WORDS = ".tensor_intrinsics", ("bf16", "tf32", "swapped")


def register(name: str) -> None:
    """Make an intrinsic known to schedules of this process, by the statement of TVM's module that registers it.

    A trace that names intrinsics replays only if they are registered: after this, or after an import of ``MODULE``.

    Examples
    --------
    >>> register("mma_fill_16x16_f32")
    >>> from tvm.s_tir import TensorIntrin
    >>> TensorIntrin.get("mma_fill_16x16_f32") is not None
    True
    """
    from tvm.s_tir import TensorIntrin

    if TensorIntrin.get(name, allow_missing=True) is not None:
        return
    if any(word in name for word in _WORDS):
        make, arguments = import_module(_OWN, __package__).INTRINSICS[name]
        TensorIntrin.register(name, *make(*arguments))
        return
    if MODULE in sys.modules:
        return
    statements, names = _module()
    if name in statements:
        exec(statements.pop(name), names)
    else:  # it is not laid out as it was
        __import__(MODULE)


class _Rest(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports the rest of ``MODULE``: MetaSchedule imports it for every task, and nothing may register twice."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        return importlib.machinery.ModuleSpec(fullname, self) if fullname == MODULE else None

    def exec_module(self, module: ModuleType) -> None:
        statements, names = _module()
        while statements:
            exec(statements.pop(next(iter(statements))), names)
        module.__dict__.update({k: v for k, v in names.items() if not k.startswith("__")})


@cache
def _module() -> tuple[dict[str, Any], dict[str, Any]]:
    """Execute TVM's file without its registrations; return (name -> registering statement, the module's names)."""
    import tvm

    path = Path(tvm.__file__).parent.joinpath(*MODULE.split(".")[1:]).with_suffix(".py")
    if not path.is_file():
        return {}, {}
    tree = ast.parse(path.read_text(), str(path))
    registering = [s for s in tree.body if _registers(s)]
    tree.body = [s for s in tree.body if not _registers(s)]
    names: dict[str, Any] = {"__name__": f"{__name__}.of_tvm", "__file__": str(path)}
    exec(compile(tree, str(path), "exec"), names)
    found = {}
    for statement in registering:
        first = statement.value.args[0]  # type: ignore[attr-defined]
        name = eval(compile(ast.Expression(first), str(path), "eval"), names)
        found[str(name)] = compile(ast.Module([statement], []), str(path), "exec")
    sys.meta_path.insert(0, _Rest())
    return found, names


def _registers(statement: ast.stmt) -> bool:
    call = getattr(statement, "value", None)
    called = getattr(call, "func", None)
    return isinstance(statement, ast.Expr) and isinstance(called, ast.Attribute) and called.attr == "register"
