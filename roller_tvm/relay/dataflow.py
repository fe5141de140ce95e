"""A Relay function's data flow: calls of fused functions, the tensors between them, views looked through.

FuseOps leaves this form: every operator is a call of a ``Primitive`` function. A tensor is (expression, number of its
output). A reshape makes no tensor: it is a view of another.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from roller_tvm.te.nodes import unique

#: Operators whose result has the elements of their operand, in its memory.
_RESHAPES = ("reshape", "contrib_reverse_reshape", "expand_dims", "squeeze", "nn.batch_flatten")
#: An expression, and which of its outputs.
Tensor = tuple[Any, int]


@dataclass(frozen=True)
class CallNode:
    """A call in the graph.

    Parameters
    ----------
    name : str
        Unique in the graph.
    call : relay.Call
    inputs : tuple of Tensor
        Its inputs: elements of tuples one by one, tensors instead of their views.
    outputs : tuple of Tensor
    outside : str
        Why it cannot be part of a plan; '' if it can.
    effect : bool
        Whether it has side effects.
    """

    name: str
    call: Any
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    outside: str = ""
    effect: bool = False


@dataclass
class DataFlow:
    """The calls of a function's body, in an order in which they may run.

    Parameters
    ----------
    body : relay.Expr
    calls : list of CallNode
    control : str
        The first node that is not data flow (an If, a Match, a reference); '' if there is none.
    """

    body: Any
    calls: list[CallNode] = field(default_factory=list)
    control: str = ""

    @classmethod
    def of(cls, body: Any, mod: Any = None) -> DataFlow:
        """Return the data flow of a body with inferred types; looks up the effects of called functions in `mod`."""
        from tvm import relay

        flow = cls(body)
        names: set[str] = set()
        for expr in ordered(body):
            if isinstance(expr, relay.Call):
                if is_view(expr):
                    continue
                flow.calls.append(_call_node(expr, names, mod))
            elif not isinstance(expr, relay.Tuple | relay.TupleGetItem | relay.Var | relay.Constant):
                flow.control = type(expr).__name__
                flow.calls = []
                break
        return flow

    @property
    def results(self) -> tuple[Tensor, ...]:
        """The tensors that the body returns."""
        return tuple(sources(self.body))


def ordered(body: Any) -> list[Any]:
    """Return the expressions of a graph, operands first; does not enter called functions."""
    done: dict[Any, None] = {}
    todo = [(body, False)]
    while todo:  # models are too deep for recursion
        expr, ready = todo.pop()
        if expr in done:
            continue
        if ready:
            done[expr] = None
            continue
        todo.append((expr, True))
        todo += [(child, False) for child in reversed(children(expr)) if child not in done]
    return list(done)


def children(expr: Any) -> list[Any]:
    """Return the operands of an expression of a data flow graph."""
    from tvm import relay

    if isinstance(expr, relay.Call):
        return list(expr.args)
    if isinstance(expr, relay.Tuple):
        return list(expr.fields)
    return [expr.tuple_value] if isinstance(expr, relay.TupleGetItem) else []


def control_of(body: Any) -> str:
    """Return the first construct that is not data flow (an If, a reference, a function as a value); '' if there is
    none.
    """
    from tvm import relay

    kinds = (relay.If, relay.Match, relay.RefCreate, relay.RefRead, relay.RefWrite)
    found: list[str] = []

    def visit(expr: Any) -> None:
        if isinstance(expr, kinds):
            found.append(type(expr).__name__)
        elif isinstance(expr, relay.Call) and isinstance(expr.op, relay.Var):
            found.append("a function as a value")

    relay.analysis.post_order_visit(body, visit)
    return found[0] if found else ""


def as_graph(mod: Any) -> Any:
    """Return a module whose main function is one graph, without bindings and functions inside of it.

    Returns `mod` itself if its main function has none of them, or if it has control flow or side effects: bindings keep
    calls with an effect in their order, and alive. TVM's graph executor and its layout rewriter do not support
    functions inside of a function (``relay.testing.lstm``).
    """
    import tvm
    from tvm import relay

    main = mod["main"]
    said: list[Any] = []

    def visit(expr: Any) -> None:
        if isinstance(expr, relay.Let) or (isinstance(expr, relay.Call) and _written_here(expr.op)):
            said.append(expr)

    relay.analysis.post_order_visit(main.body, visit)
    if not said or control_of(main.body) or effects(main.body, mod):
        return mod
    flat = relay.transform.ToGraphNormalForm()(relay.transform.InferType()(mod))
    main = flat["main"]
    main = relay.Function(main.params, inlined(main.body), main.ret_type, main.type_params, main.attrs)
    functions = {**dict(flat.functions.items()), flat.get_global_var("main"): main}
    return relay.transform.InferType()(tvm.IRModule(functions, flat.type_definitions))


def inlined(body: Any, values: Mapping[Any, Any] | None = None) -> Any:
    """Return a graph with each call of an anonymous function replaced by the function's body.

    Parameters
    ----------
    body : relay.Expr
    values : mapping, optional
        Variable -> the expression that replaces it.
    """
    from tvm import relay

    values = values or {}
    made: dict[Any, Any] = {}
    for expr in ordered(body):
        new = values.get(expr, expr)
        before = children(expr)
        after = [made[e] for e in before]
        if isinstance(expr, relay.Call) and _written_here(expr.op):
            new = inlined(expr.op.body, {**values, **dict(zip(expr.op.params, after, strict=True))})
        elif isinstance(expr, relay.TupleGetItem) and isinstance(after[0], relay.Tuple):
            new = after[0].fields[expr.index]
        elif before:
            new = again(expr, before, after)
        made[expr] = new
    return made[body]


def without_copies(body: Any) -> Any:
    """Return a graph without copies (ONNX's Identity), except copies of an input or constant that are results.

    Relay's tensors are values, so a copy equals its operand.
    """
    from tvm import relay

    made: dict[Any, Any] = {}
    results = set(_results(body))
    for expr in ordered(body):
        before = children(expr)
        after = [made[e] for e in before]
        if not _is_copy(expr) or (expr in results and isinstance(_memory(after[0]), relay.Var | relay.Constant)):
            made[expr] = again(expr, before, after)
        else:
            made[expr] = after[0]
    return made[body]


def _results(body: Any) -> Iterator[Any]:
    """Yield the results of a body, elements of tuples one by one."""
    from tvm import relay

    if isinstance(body, relay.Tuple):
        for part in body.fields:
            yield from _results(part)
    else:
        yield body


def _memory(expr: Any) -> Any:
    """Return the expression that owns the memory of `expr`: skips reshapes."""
    while getattr(getattr(expr, "op", None), "name", "") in _RESHAPES:
        expr = expr.args[0]
    return expr


def _is_copy(expr: Any) -> bool:
    from tvm import relay

    return isinstance(expr, relay.Call) and getattr(expr.op, "name", "") == "copy"


def again(expr: Any, before: list[Any], after: list[Any]) -> Any:
    """Return an expression with the operands `after` instead of `before`; itself if they are the same."""
    from tvm import relay

    if all(a.same_as(b) for a, b in zip(after, before, strict=True)):
        return expr
    if isinstance(expr, relay.Call):
        return relay.Call(expr.op, after, expr.attrs, expr.type_args, expr.span)
    return relay.Tuple(after) if isinstance(expr, relay.Tuple) else relay.TupleGetItem(after[0], expr.index)


def _written_here(function: Any) -> bool:
    """Return whether a callee is an anonymous function without attributes (not fused, not for another compiler)."""
    from tvm import relay

    return isinstance(function, relay.Function) and not (function.attrs and function.attrs.keys())


def is_view(expr: Any) -> bool:
    """Return whether a call only reshapes a tensor, as marked by FuseOps."""
    from tvm import relay

    if not isinstance(expr, relay.Call) or not isinstance(expr.op, relay.Function):
        return False
    attrs = expr.op.attrs
    return bool(attrs and "relay.reshape_only" in attrs) and len(expr.args) == 1


def sources(expr: Any) -> Iterator[Tensor]:
    """Yield the tensors of an expression, without views and tuples."""
    from tvm import relay

    while True:
        if is_view(expr):
            expr = expr.args[0]
        elif isinstance(expr, relay.TupleGetItem) and isinstance(expr.tuple_value, relay.Tuple):
            expr = expr.tuple_value.fields[expr.index]
        else:
            break
    if isinstance(expr, relay.Tuple):
        for part in expr.fields:
            yield from sources(part)
    elif isinstance(expr, relay.TupleGetItem) and isinstance(expr.tuple_value, relay.Call):
        yield expr.tuple_value, int(expr.index)
    else:
        yield from ((expr, n) for n in range(_outputs(expr)))


def _outputs(expr: Any) -> int:
    from tvm import relay

    kind = expr.checked_type
    return len(kind.fields) if isinstance(kind, relay.TupleType) else 1


def _call_node(call: Any, names: set[str], mod: Any) -> CallNode:
    inputs = tuple(t for argument in call.args for t in sources(argument))
    outputs = tuple((call, n) for n in range(_outputs(call)))
    effect = next(iter(effects(call.op, mod)), "")
    why = f"'{effect}' has side effects" if effect else _outside(call)
    return CallNode(unique(_name(call), names), call, inputs, outputs, why, bool(effect))


def effects(expr: Any, mod: Any = None) -> list[str]:
    """Return the names of the operators with side effects in an expression and in the functions it calls."""
    import tvm
    from tvm import relay

    found: dict[str, None] = {}
    todo, seen = [expr], set()

    def visit(one: Any) -> None:
        if isinstance(one, tvm.ir.Op) and one.get_attr("TOpIsStateful"):
            found[str(one.name)] = None
        elif isinstance(one, relay.GlobalVar) and mod is not None and one not in seen:
            seen.add(one)
            function = mod.functions.get(one)
            todo.extend([function] if isinstance(function, relay.Function) else [])

    while todo:
        relay.analysis.post_order_visit(todo.pop(), visit)
    return list(found)


def _name(call: Any) -> str:
    """Return a name for a call: its operators' names in order, at most 80 characters."""
    from tvm import relay

    if isinstance(call.op, relay.GlobalVar):
        return str(call.op.name_hint)
    words: list[str] = []
    if isinstance(call.op, relay.Function):
        def visit(expr: Any) -> None:
            if isinstance(expr, relay.Call) and hasattr(expr.op, "name"):
                words.append(expr.op.name)

        relay.analysis.post_order_visit(call.op.body, visit)
    else:
        words.append(getattr(call.op, "name", type(call.op).__name__))
    return re.sub(r"\W", "_", "_".join(words))[:80] or "call"


def _outside(call: Any) -> str:
    """Return why the form of a call rules out a plan; '' if it does not."""
    from tvm import relay, tir

    function = call.op
    if isinstance(function, relay.GlobalVar):
        return "it calls a function of the module"
    attrs = getattr(function, "attrs", None)
    if not isinstance(function, relay.Function) or not attrs or "Primitive" not in attrs:
        return "no operator that Relay fuses"
    if "Compiler" in attrs:
        return f"it is compiled by {attrs['Compiler']}"
    for expr in (call, *call.args):
        kinds = [expr.checked_type]
        while kinds:
            kind = kinds.pop()
            if isinstance(kind, relay.TupleType):
                kinds += list(kind.fields)
            elif not isinstance(kind, relay.TensorType):
                return f"it deals with a {type(kind).__name__}"
            elif any(not isinstance(e, tir.IntImm) for e in kind.shape):
                shape = ", ".join(str(int(e)) if isinstance(e, tir.IntImm) else "?" for e in kind.shape)
                return f"a dynamic shape ({shape})"
    return ""
