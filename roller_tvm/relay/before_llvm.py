"""BeforeLlvm: rewrites lowered functions right before TVM hands them to LLVM, later than any pass a user can add."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .switch import Switch

_BUILD = "target.build.llvm"
#: Ways that stand before TVM's code generator, once a process.
_STANDING: set[Any] = set()


class BeforeLlvm(Switch):
    """A context that rewrites every PrimFunc right before it is built for LLVM."""

    @staticmethod
    def rewritten(func: Any) -> Any:
        """Return the rewritten lowered function."""
        raise NotImplementedError

    @classmethod
    def install(cls) -> None:
        """Hook this rewrite into TVM's code generator, once per process."""
        if cls not in _STANDING:
            _STANDING.add(cls)
            _stand_before(cls)


def with_loops(statement: Any, rewritten: Callable[[Any], Any]) -> Any:
    """Return a statement with its loops rewritten, inner loops first; a loop stays if `rewritten` returns None for it.
    """
    return _with("tir.For", statement, rewritten)


def with_loads(statement: Any, rewritten: Callable[[Any], Any]) -> Any:
    """Return a statement with its loads rewritten; a load stays if `rewritten` returns None for it."""
    return _with("tir.BufferLoad", statement, rewritten)


def with_calls(statement: Any, rewritten: Callable[[Any], Any]) -> Any:
    """Return a statement with its calls rewritten; a call stays if `rewritten` returns None for it."""
    return _with("tir.Call", statement, rewritten)


def _with(kind: str, statement: Any, rewritten: Callable[[Any], Any]) -> Any:
    from tvm import tir

    return tir.stmt_functor.ir_transform(statement, None, rewritten, [kind])


def _stand_before(way: type[BeforeLlvm]) -> None:
    """Put a rewrite before TVM's LLVM code generator; it does nothing outside of its context."""
    import tvm

    generate = tvm.get_global_func(_BUILD)

    def build(mod: Any, target: Any) -> Any:
        if not way.active():
            return generate(mod, target)
        made = {var: way.rewritten(f) if isinstance(f, tvm.tir.PrimFunc) else f for var, f in mod.functions.items()}
        return generate(tvm.IRModule(made, attrs=mod.attrs), target)

    tvm.register_func(_BUILD, build, override=True)
