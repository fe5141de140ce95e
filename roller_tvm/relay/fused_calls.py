"""Rewrites a data flow graph: each group of calls becomes one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from roller_tvm.relay.dataflow import Tensor, children, is_view


@dataclass(frozen=True)
class Group:
    """Calls that become one call of a function of the module.

    Parameters
    ----------
    symbol : str
        Name of the function; TVM inlines it at its only call.
    calls : tuple of relay.Call
        In an order in which they may run.
    inputs, outputs : tuple of Tensor
        Parameters and results of the function.
    """

    symbol: str
    calls: tuple[Any, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


def rewritten(body: Any, groups: Sequence[Group]) -> tuple[Any, dict[Any, Any]]:
    """Return the graph with one call per group, and the called functions by their global variables.

    Parameters
    ----------
    body : relay.Expr
        Types inferred.
    groups : sequence of Group
        Convex groups.
    """
    from tvm import relay

    functions: dict[Any, Any] = {}
    variables: dict[str, Any] = {}
    for group in groups:
        variable = variables[group.symbol] = relay.GlobalVar(group.symbol)
        functions[variable] = function_of(group)
    return _Rewriter(groups, variables).run(body), functions


def function_of(group: Group) -> Any:
    """Return a function that computes a group."""
    from tvm import relay

    parameters = {
        tensor: relay.Var(f"p{number}", _type(tensor)) for number, tensor in enumerate(group.inputs)
    }
    done: dict[Any, Any] = {}

    def inside(expr: Any) -> Any:
        if expr in done:
            return done[expr]
        if (expr, 0) in parameters and not isinstance(expr.checked_type, relay.TupleType):
            return parameters[expr, 0]
        if is_view(expr):
            return called(expr.op, [inside(expr.args[0])])
        if isinstance(expr, relay.Tuple):
            return relay.Tuple([inside(f) for f in expr.fields])
        if isinstance(expr, relay.TupleGetItem):
            of, number = expr.tuple_value, int(expr.index)
            if isinstance(of, relay.Tuple):
                return inside(of.fields[number])
            return parameters[of, number] if (of, number) in parameters else relay.TupleGetItem(inside(of), number)
        return relay.Tuple([parameters[expr, n] for n in range(len(expr.checked_type.fields))])

    for call in group.calls:
        done[call] = called(call.op, [inside(a) for a in call.args])
    results = [
        relay.TupleGetItem(done[call], n) if isinstance(call.checked_type, relay.TupleType) else done[call]
        for call, n in group.outputs
    ]
    result = results[0] if len(results) == 1 else relay.Tuple(results)
    kinds = [_type(t) for t in group.outputs]
    kind = kinds[0] if len(kinds) == 1 else relay.TupleType(kinds)
    return relay.Function(list(parameters.values()), result, kind)


def called(function: Any, arguments: Sequence[Any]) -> Any:
    """Return the body of a function with the arguments substituted."""
    from tvm import relay

    return relay.bind(function.body, dict(zip(function.params, arguments, strict=True)))


def _type(tensor: Tensor) -> Any:
    from tvm import relay

    expr, number = tensor
    kind = expr.checked_type
    return kind.fields[number] if isinstance(kind, relay.TupleType) else kind


class _Rewriter:
    """Rebuilds the expressions of a graph; iterative, since graphs are deep."""

    def __init__(self, groups: Sequence[Group], variables: Mapping[str, Any]) -> None:
        self.variables = variables
        self.group_of = {call: group for group in groups for call in group.calls}
        self.place = {tensor: n for group in groups for n, tensor in enumerate(group.outputs)}
        self.made: dict[Any, Any] = {}
        self.calls: dict[int, Any] = {}  # of each group

    def run(self, body: Any) -> Any:
        todo, begun = [(body, False)], set()
        while todo:
            expr, ready = todo.pop()
            if expr in self.made:
                continue
            if ready:
                self.made[expr] = self._made(expr)
                continue
            if expr in begun:
                raise AssertionError("groups of rTasks need one another's results")
            begun.add(expr)
            todo.append((expr, True))
            todo += [(e, False) for e in self._before(expr) if e not in self.made]
        return self.made[body]

    def _before(self, expr: Any) -> list[Any]:
        group = self.group_of.get(expr)
        return children(expr) if group is None else [e for e, _ in group.inputs]

    def _made(self, expr: Any) -> Any:
        from tvm import relay

        if expr in self.group_of:
            if not isinstance(expr.checked_type, relay.TupleType):
                return self._tensor((expr, 0)) if (expr, 0) in self.place else None  # None: nobody outside reads it
            tensors = [(expr, n) for n in range(len(expr.checked_type.fields))]
            return relay.Tuple([self._tensor(t) for t in tensors]) if all(t in self.place for t in tensors) else None
        if isinstance(expr, relay.Call):
            return relay.Call(expr.op, [self.made[a] for a in expr.args], expr.attrs, expr.type_args, expr.span)
        if isinstance(expr, relay.Tuple):
            return relay.Tuple([self.made[f] for f in expr.fields])
        if isinstance(expr, relay.TupleGetItem):
            of, number = expr.tuple_value, int(expr.index)
            if of in self.group_of:
                return self._tensor((of, number)) if (of, number) in self.place else None
            return relay.TupleGetItem(self.made[of], number)
        return expr

    def _tensor(self, tensor: Tensor) -> Any:
        """Return a tensor's expression in the new graph."""
        from tvm import relay

        expr, number = tensor
        group = self.group_of.get(expr)
        if group is None:
            made = self.made[expr]
            return relay.TupleGetItem(made, number) if isinstance(expr.checked_type, relay.TupleType) else made
        if id(group) not in self.calls:
            arguments = [self._tensor(t) for t in group.inputs]
            self.calls[id(group)] = relay.Call(self.variables[group.symbol], arguments)
        call = self.calls[id(group)]
        return call if len(group.outputs) == 1 else relay.TupleGetItem(call, self.place[tensor])
