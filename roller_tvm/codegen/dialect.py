"""Differences between flattened functions of the two TVM lines: TVM 0.17's TensorIR and TVM 0.27's."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from .flat import in_order

#: Arguments of LLVM's prefetch: for reading, data; levels of cache that keep it.
_READ, _DATA = 0, 1
FIRST_LEVEL, SECOND_LEVEL = 3, 2
#: Function of a loop, a load, a call, ... -> the node in its place; None to keep it.
Rewritten = Callable[[Any], Any]


class Dialect:
    """The parts of TensorIR in which the lines differ; a subclass a line.

    loops, loads, calls, checks, selects, negations, stores, remainders, quotients
        Kinds of nodes, as `with_nodes` takes them.
    """

    tir: Any  # ``tvm.tir`` or ``tvm.tirx``
    truth: str  # dtype of conditions in vectors, without the number of lanes
    checks_first_trip: bool  # true if initial values of sums may stand behind a check in their loop
    loses_nan: bool  # true if it tells LLVM that there are no NaN
    ints_pointer: str  # type of pointers to int32 in LLVM's language
    loops: Any
    loads: Any
    calls: Any
    checks: Any
    selects: Any
    negations: Any
    stores: Any
    remainders: Any
    quotients: Any

    def analyzer(self) -> Any:
        """Return a new analyzer, TVM's simplifier."""
        raise NotImplementedError

    def call(self, dtype: str, op: Any, arguments: list[Any]) -> Any:
        raise NotImplementedError

    def text(self, text: str) -> Any:
        """Return a text as an expression."""
        raise NotImplementedError

    def extern(self, dtype: str, name: str, arguments: list[Any]) -> Any:
        """Return a call without effects of a function outside of TVM."""
        return self.tir.call_pure_extern(dtype, name, *arguments)

    def prefetch(self, address: Any, *flags: Any) -> Any:
        """Return a call of LLVM's prefetch."""
        raise NotImplementedError

    def asking(self, buffer: Any, index: Any, level: int) -> Any:
        """Return the statement that asks a level of cache for the line of an element."""
        return self.asking_at(self.tir.address_of(self.tir.BufferLoad(buffer, [index])), level)

    def asking_at(self, address: Any, level: int) -> Any:
        """Return the statement that asks a level of cache for the line at an address."""
        flags = (self.tir.const(flag, "int32") for flag in (_READ, level, _DATA))
        return self.tir.Evaluate(self.prefetch(address, *flags))

    def allocated(self, buffer: Any, body: Any) -> Any:
        """Return a statement with a buffer of its own."""
        raise NotImplementedError

    def named(self, var: Any, value: Any, body: Any) -> Any:
        """Return a statement that sees a value under a name."""
        raise NotImplementedError

    def seen_as(self, buffer: Any, dtype: str, body: Callable[[Any], Any]) -> Any:
        """Return a statement with a buffer of another dtype over the memory of this one (TVM 0.27)."""
        raise NotImplementedError

    def substituted(self, node: Any, var: Any, value: Any) -> Any:
        """Return a store or an expression with a value in place of a variable."""
        raise NotImplementedError

    def same(self, a: Any, b: Any) -> bool:
        """Return whether two expressions are alike, of the same variables."""
        raise NotImplementedError

    def with_nodes(self, statement: Any, rewritten: Rewritten, kinds: Any) -> Any:
        """Return a statement with nodes of some kinds rewritten, inner ones first."""
        raise NotImplementedError

    def with_loops(self, statement: Any, rewritten: Rewritten) -> Any:
        return self.with_nodes(statement, rewritten, self.loops)

    def with_loads(self, statement: Any, rewritten: Rewritten) -> Any:
        return self.with_nodes(statement, rewritten, self.loads)

    def with_calls(self, statement: Any, rewritten: Rewritten) -> Any:
        return self.with_nodes(statement, rewritten, self.calls)

    def with_checks(self, statement: Any, rewritten: Rewritten) -> Any:
        return self.with_nodes(statement, rewritten, self.checks)

    def with_body(self, func: Any, body: Any) -> Any:
        """Return a function with another body, in which every name is then bound once (TVM's ``ConvertSSA``)."""
        import tvm

        module = tvm.IRModule({"main": func.with_body(body)})
        return self.tir.transform.ConvertSSA()(module)["main"]


class Tvm017(Dialect):
    """TensorIR of TVM 0.13 to 0.19; kinds of nodes are lists of names."""

    truth, checks_first_trip, loses_nan = "uint1", False, True
    ints_pointer = "i32*"
    loops, loads, calls, checks = ["tir.For"], ["tir.BufferLoad"], ["tir.Call"], ["tir.IfThenElse"]
    selects, negations, stores = ["tir.Select"], ["tir.Not"], ["tir.BufferStore"]
    remainders, quotients = ["tir.Mod"], ["tir.Div"]

    def __init__(self) -> None:
        from tvm import tir

        self.tir = tir

    def analyzer(self) -> Any:
        from tvm import arith

        return arith.Analyzer()

    def call(self, dtype: str, op: Any, arguments: list[Any]) -> Any:
        return self.tir.Call(dtype, op, arguments)

    def text(self, text: str) -> Any:
        return self.tir.StringImm(text)

    def prefetch(self, address: Any, *flags: Any) -> Any:
        count = self.tir.const(1 + len(flags), "uint32")
        return self.tir.call_llvm_intrin("int32", "llvm.prefetch", count, address, *flags)

    def allocated(self, buffer: Any, body: Any) -> Any:
        inner = self.tir.DeclBuffer(buffer, body)
        return self.tir.Allocate(buffer.data, buffer.dtype, buffer.shape, self.tir.const(True), inner)

    def named(self, var: Any, value: Any, body: Any) -> Any:
        return self.tir.LetStmt(var, value, body)

    def substituted(self, node: Any, var: Any, value: Any) -> Any:
        return self.tir.stmt_functor.substitute(node, {var: value})

    def same(self, a: Any, b: Any) -> bool:
        import tvm

        return bool(tvm.ir.structural_equal(a, b))

    def with_nodes(self, statement: Any, rewritten: Rewritten, kinds: Any) -> Any:
        return self.tir.stmt_functor.ir_transform(statement, None, rewritten, kinds)


class Tvm027(Dialect):
    """TensorIR of TVM 0.25 and later; a kind of nodes is a class."""

    truth, checks_first_trip, loses_nan = "bool", True, False
    ints_pointer = "ptr"

    def __init__(self) -> None:
        import tvm
        from tvm import tirx

        self.tir, self.loops, self.loads, self.calls = tirx, tirx.For, tvm.ir.TensorLoad, tvm.ir.Call
        self.checks, self.selects, self.negations = tirx.IfThenElse, tirx.Select, tirx.Not
        self.stores, self.remainders, self.quotients = tirx.BufferStore, tirx.Mod, tirx.Div

    def analyzer(self) -> Any:
        import tvm

        return (tvm.sym if hasattr(tvm, "sym") else tvm.arith).Analyzer()

    def call(self, dtype: str, op: Any, arguments: list[Any]) -> Any:
        return self.calls(op, arguments, ret_ty=dtype)

    def text(self, text: str) -> Any:
        import tvm

        return tvm.ir.StringImm(text)

    def prefetch(self, address: Any, *flags: Any) -> Any:
        return self.tir.call_llvm_intrin("void", "llvm.prefetch", address, *flags)

    def allocated(self, buffer: Any, body: Any) -> Any:
        return self.tir.SeqStmt([self.tir.AllocBuffer(buffer), body])

    def named(self, var: Any, value: Any, body: Any) -> Any:
        return in_order([self.tir.Bind(var, value), body], self.tir)

    def seen_as(self, buffer: Any, dtype: str, body: Callable[[Any], Any]) -> Any:
        view = self.tir.decl_buffer(buffer.shape, dtype, buffer.name)
        return self.tir.SeqStmt([self.tir.DeclBuffer(view, data=buffer.data), body(view)])

    def substituted(self, node: Any, var: Any, value: Any) -> Any:
        return self.with_nodes(node, lambda one: value if hash(one) == hash(var) else None, self.tir.Var)

    def same(self, a: Any, b: Any) -> bool:
        import tvm_ffi

        return bool(tvm_ffi.structural_equal(a, b))

    def with_nodes(self, statement: Any, rewritten: Rewritten, kinds: Any) -> Any:
        import tvm_ffi

        def one(node: Any) -> Any:
            made = rewritten(node)
            return node if made is None else made

        return tvm_ffi.structural_map(statement, (kinds, one), order="post")


@cache
def dialect_here() -> Dialect:
    """Return the dialect of the TVM at hand."""
    import tvm

    return Tvm027() if hasattr(tvm, "tirx") else Tvm017()
