"""TVM's tensor intrinsics, registered one by one: its module of them for CUDA takes 14 s to import."""

from __future__ import annotations

import ast
import sys
from functools import cache
from pathlib import Path
from typing import Any

#: The module of TVM that registers them all when it is imported, and its file.
MODULE = "tvm.s_tir.tensor_intrin.cuda"


def register(name: str) -> None:
    """Make an intrinsic known to schedules of this process, by the statement of TVM's module that does so.

    A trace that names intrinsics replays where they are registered: after this, or after an import of ``MODULE``.

    Examples
    --------
    >>> register("mma_fill_16x16_f32")
    >>> from tvm.s_tir import TensorIntrin
    >>> TensorIntrin.get("mma_fill_16x16_f32") is not None
    True
    """
    from tvm.s_tir import TensorIntrin

    if MODULE in sys.modules or TensorIntrin.get(name, allow_missing=True) is not None:
        return
    statements, names = _module()
    if name in statements:
        exec(statements[name], names)
    else:  # it is not laid out as it was
        __import__(MODULE)


@cache
def _module() -> tuple[dict[str, Any], dict[str, Any]]:
    """(name -> the statement that registers it, the module's names); TVM's file, without those statements, executed."""
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
    return found, names


def _registers(statement: ast.stmt) -> bool:
    call = getattr(statement, "value", None)
    called = getattr(call, "func", None)
    return isinstance(statement, ast.Expr) and isinstance(called, ast.Attribute) and called.attr == "register"
