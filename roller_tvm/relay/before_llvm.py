"""BeforeLlvm: ways to rewrite lowered functions right before TVM hands them to LLVM, where no pass of a user is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .switch import Switch

_BUILD = "target.build.llvm"
#: Ways that stand before TVM's code generator, once a process.
_STANDING: set[Any] = set()


class BeforeLlvm(Switch):
    """A context in which every PrimFunc that is built for LLVM is rewritten before."""

    @staticmethod
    def rewritten(func: Any) -> Any:
        """The lowered function in this way."""
        raise NotImplementedError

    @classmethod
    def install(cls) -> None:
        """Have TVM's code generator ask."""
        if cls not in _STANDING:
            _STANDING.add(cls)
            _stand_before(cls)


def with_loops(statement: Any, rewritten: Callable[[Any], Any]) -> Any:
    """A statement with every loop rewritten but those of which `rewritten` says None; those inside of others first."""
    return _with("tir.For", statement, rewritten)


def with_loads(statement: Any, rewritten: Callable[[Any], Any]) -> Any:
    """A statement with every load rewritten but those of which `rewritten` says None."""
    return _with("tir.BufferLoad", statement, rewritten)


def with_calls(statement: Any, rewritten: Callable[[Any], Any]) -> Any:
    """A statement with every call rewritten but those of which `rewritten` says None."""
    return _with("tir.Call", statement, rewritten)


def _with(kind: str, statement: Any, rewritten: Callable[[Any], Any]) -> Any:
    from tvm import tir

    return tir.stmt_functor.ir_transform(statement, None, rewritten, [kind])


def _stand_before(way: type[BeforeLlvm]) -> None:
    """Outside of the context, TVM's code generator gets what it would have got."""
    import tvm

    generate = tvm.get_global_func(_BUILD)

    def build(mod: Any, target: Any) -> Any:
        if not way.active():
            return generate(mod, target)
        made = {var: way.rewritten(f) if isinstance(f, tvm.tir.PrimFunc) else f for var, f in mod.functions.items()}
        return generate(tvm.IRModule(made, attrs=mod.attrs), target)

    tvm.register_func(_BUILD, build, override=True)
