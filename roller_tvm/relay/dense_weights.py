"""Dense layers made so that ``relay.build`` can pack their constant weights.

On CPUs TVM packs constant weights in the order of the State's loops, but not those of ``dense``: its rewriter
rejects axis names with digits, and TOPI calls the axes i0 and i1. (TOPI's code for packed weights, which expects i, j
and k, does not run either.) Here the axes are called i, j and k if the weight is constant; other weights would be
packed in every run. The renamed computation is another workload with its own records; a plain TVM looks for its own
names.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from roller_tvm import foreign
from roller_tvm.relay.dataflow import again, as_graph, children, ordered
from roller_tvm.tuning.model_report import KernelPlan

#: Function of a target, a workload and a name: a State and its plan, or None and the reason.
Plan = Callable[[Any, str, str], tuple[Any, KernelPlan]]
#: TOPI's names of the two axes, and those that the layout rewriter takes.
THEIRS, OURS = ("i0", "i1"), ("i", "j")
#: Types of the layers that are meant.
FLOATS = ("float", "bfloat")
#: Where TOPI's `dense` finds `matmul`.
MODULE = "tvm.topi.nn.dense"


def packs_dense(mod: Any, target: Any) -> bool:
    """Return whether dense weights are packed: TVM packs for the target, and `constant_dense` sees all layers.

    Parameters
    ----------
    mod : tvm.IRModule
        A result of ``as_graph``.
    target : tvm.target.Target
    """
    from tvm.auto_scheduler import LayoutRewriteOption

    if LayoutRewriteOption.get_target_default(target, True) == LayoutRewriteOption.NO_REWRITE:
        return False
    return not any(_hides_dense(expr, mod) for expr in ordered(mod["main"].body))


def _hides_dense(expr: Any, mod: Any) -> bool:
    """Return whether an expression hides a dense layer in control flow or in a called function."""
    import tvm
    from tvm import relay

    inner = expr
    if isinstance(expr, relay.Call):
        inner = mod[expr.op] if isinstance(expr.op, relay.GlobalVar) else expr.op
    elif isinstance(expr, (relay.Tuple, relay.TupleGetItem, relay.Var, relay.Constant)):
        return False
    attrs = getattr(inner, "attrs", None)
    if attrs is not None and isinstance(inner, relay.Function) and "Compiler" in attrs:
        return False
    found: list[Any] = []

    def visit(one: Any) -> None:
        if isinstance(one, relay.Call) and getattr(one.op, "name", "") == "nn.dense":
            found.append(one)

    if not isinstance(inner, tvm.ir.Op):
        relay.analysis.post_order_visit(inner, visit)
    return bool(found)


def constant_dense(mod: Any, params: Collection[str] | None) -> Any:
    """Return a module in which every ``dense`` has a constant weight; others become the equivalent ``matmul``.

    Code that sees only the operator can then tell that the weight is constant.

    Parameters
    ----------
    mod : tvm.IRModule
    params : collection of str, or None
        Names of the main function's parameters that count as constant.

    Examples
    --------
    >>> main = constant_dense(mod, params)["main"]
    """
    import tvm
    from tvm import relay

    mod = relay.transform.InferType()(mod)
    main = mod["main"]
    constant: dict[Any, bool] = {}
    made: dict[Any, Any] = {}
    for expr in ordered(main.body):
        before = children(expr)
        after = [made[e] for e in before]
        held = isinstance(expr, relay.Var) and expr.name_hint in (params or ())
        constant[expr] = isinstance(expr, relay.Constant) or held or bool(before and all(constant[e] for e in before))
        made[expr] = again(expr, before, after)
        name = getattr(expr.op, "name", "") if isinstance(expr, relay.Call) else ""
        if name == "nn.dense" and not constant[before[1]] and _floats(expr):
            # relay.nn.matmul would give a dense again.
            made[expr] = relay.op.nn._make.matmul(*after, expr.attrs.units, expr.attrs.out_dtype, False, True)
    if made[main.body].same_as(main.body):
        return mod
    body = relay.Function(main.params, made[main.body], main.ret_type, main.type_params, main.attrs)
    functions = {**dict(mod.functions.items()), mod.get_global_var("main"): body}
    return relay.transform.InferType()(tvm.IRModule(functions, mod.type_definitions))


def packable(mod: Any, params: Collection[str] | None, target: Any) -> tuple[Any, NamedAxes]:
    """Return a model as one graph with packable dense layers, and the `NamedAxes` to open while it is built."""
    graph = as_graph(mod)
    packs = packs_dense(graph, target)
    return (constant_dense(graph, params) if packs else graph), NamedAxes(packs)


class NamedAxes:
    """A context in which two-dimensional ``dense`` of floats is computed over axes i, j and k.

    Examples
    --------
    >>> with NamedAxes():
    ...     lib = relay.build(constant_dense(mod, params), target, params=params)
    """

    _lock = threading.Lock()
    _open = 0  # of any thread: TOPI's is put back when the last is left
    _theirs: Any = None

    def __init__(self, enabled: bool = True) -> None:
        self.enabled = enabled

    def __enter__(self) -> NamedAxes:
        if self.enabled:
            import tvm.topi

            module: Any = sys.modules[MODULE]
            with self._lock:
                if not NamedAxes._open:
                    NamedAxes._theirs = module.dense
                    module.dense = tvm.topi.nn.dense = _dense_over(module.dense)
                NamedAxes._open += 1
        return self

    def __exit__(self, *_: object) -> None:
        if self.enabled:
            import tvm.topi

            module: Any = sys.modules[MODULE]
            with self._lock:
                NamedAxes._open -= 1
                if not NamedAxes._open:
                    module.dense = tvm.topi.nn.dense = NamedAxes._theirs


def _dense_over(theirs: Any) -> Any:
    """Return TOPI's `dense`, with our axis names if its output is a matrix."""

    def dense(
        data: Any, weight: Any, bias: Any = None, out_dtype: Any = None, auto_scheduler_rewritten_layout: str = "",
        meta_schedule_original_shape: Any = None,
    ) -> Any:  # fmt: skip
        layout = auto_scheduler_rewritten_layout
        floats = str(data.dtype).startswith(FLOATS)  # TVM has kernels of its own for integers
        if bias is not None or meta_schedule_original_shape or len(data.shape) != 2 or not floats:
            return theirs(data, weight, bias, out_dtype, layout, meta_schedule_original_shape)
        return named_dense(data, weight, out_dtype or data.dtype, layout)

    return dense


def named_dense(data: Any, weight: Any, out_dtype: str, layout: str = "") -> Any:
    """Return ``data @ weight.T`` over axes i, j and k; the weight is plain, or packed by the layout rewriter.

    Parameters
    ----------
    data, weight : te.Tensor
        M x K and N x K elements.
    out_dtype : str
    layout : str
        The layout rewriter's form of ``jk``; '' if the weight is plain.
    """
    from tvm import auto_scheduler, te

    rows, depth = data.shape
    if layout:
        columns, _ = auto_scheduler.get_shape_from_rewritten_layout(layout, ["j", "k"])
        auto_scheduler.remove_index_check(weight)
    else:
        columns = weight.shape[0]
    k = te.reduce_axis((0, depth), name="k")
    product = te.compute(
        (rows, columns),
        lambda i, j: te.sum(data[i, k].astype(out_dtype) * weight[j, k].astype(out_dtype), axis=k),
        name="T_matmul_NT", tag="dense", attrs={"layout_free_placeholders": [weight]},
    )  # fmt: skip
    return auto_scheduler.rewrite_compute_body(product, layout) if layout else product


class Asked(NamedTuple):
    """The schedule that a function was given: its workload and computation before weights are packed, and how.

    Parameters
    ----------
    dag : auto_scheduler.ComputeDAG
    state : auto_scheduler.State or None
    """

    workload: str
    dag: Any
    state: Any
    how: str

    @property
    def key(self) -> str:
        """Name of the computation: Ansor's key, and a digest of all that it leaves out."""
        return f"{self.workload} {computation_of(self.dag)}"


def history_of(records: Any, settled: Mapping[str, Mapping[str, Any]], planner: Plan | None = None) -> Any:
    """Return an ``ApplyHistoryBest`` that also finds records under TVM's axis names, and plans workloads without a
    record.

    Parameters
    ----------
    records : as ``ApplyHistoryBest`` takes them
    settled : mapping
        Workloads with a record of exactly this target, and those left to TVM -> computation (`computation_of`) -> State
        of its best record, of those known.
    planner : function of (target, workload, name), optional
        A ``planned.Planner``: makes the schedules of workloads without a record; by default those are TVM's own.

    Returns
    -------
    ApplyHistoryBest
        Its `asked` says what was found per workload; `kernels`, `functions` and `states` hold the schedule of each
        function by name.
    """
    from tvm import auto_scheduler

    class History(auto_scheduler.ApplyHistoryBest):
        """Looks for a workload under both names, first for one that is settled."""

        #: Workload that was asked for -> whether it has a record, of just this target or of another.
        asked: dict[str, str]
        #: Workloads that TVM made of these for packed weights.
        rewritten: set[str]
        #: Those -> workload and computation before.
        original: dict[str, tuple[str, Any]]
        #: Function -> its schedule.
        kernels: dict[str, KernelPlan]
        functions: dict[str, Asked]
        #: Workload and computation -> State and plan, of those planned here; and the last that TVM asked for. TVM's
        #: names of workloads with packed weights stand for one computation, ''.
        planned: dict[tuple[str, str], tuple[Any, KernelPlan]]
        last: tuple[Any, KernelPlan]
        workload: tuple[str, Any]
        #: Function -> computation and State, of those that have one.
        states: dict[str, tuple[Any, Any]]

        def query(self, target: Any, workload_key: str, has_complex_op: bool, dag: Any, func_name: str) -> Any:
            self.workload = workload_key, dag
            computation = "" if (workload_key, "") in self.planned else computation_of(dag)
            computed = workload_key, computation
            if computed not in self.planned:
                known = settled.get(workload_key, {})
                other = bool(known) and computation not in known
                state = None if other else self._query_inside(target, workload_key, func_name)
                if len(known) > 1:  # the best record of the key may be another computation's
                    state = known.get(computation)
                if state is not None:
                    self.last = state, KernelPlan(func_name, "record")
                elif workload_key in settled and not other:
                    self.last = None, KernelPlan(func_name, "tvm", reason="it measured faster")
                elif planner is not None:
                    self.planned[computed] = planner(target, workload_key, func_name)
                else:
                    self.last = None, KernelPlan(func_name, "tvm", reason="it has no record")
            if computed in self.planned:
                self.last = self.planned[computed]
            state, plan = self.last
            self.kernels[func_name] = replace(plan, kernel=func_name)
            self.functions[func_name] = Asked(*self.original.get(workload_key, self.workload), state, plan.how)
            if state is not None:
                self.states[func_name] = dag, state
            return state

        def _query_inside(self, target: Any, workload_key: str, func_name: str) -> Any:
            theirs = None if workload_key in settled else theirs_of(workload_key)
            keys = [workload_key, theirs] if theirs not in settled else [theirs, workload_key]
            for key in keys:
                state = None if key is None else super()._query_inside(target, key, func_name)
                if state is not None:
                    if workload_key not in self.rewritten:
                        self.asked[workload_key] = "own" if key in settled else "another target's"
                    return state
            self.asked.setdefault(workload_key, "none" if workload_key not in settled else "own")
            return None

        def update(self, target: Any, workload_key: str, state: Any) -> None:
            self.rewritten.add(workload_key)
            self.original[workload_key] = self.workload
            if self.last[1].how == "planned":
                self.planned[workload_key, ""] = state, self.last[1]
            else:
                super().update(target, workload_key, state)

    history = History(records)
    history.asked, history.rewritten, history.kernels, history.planned = {}, set(), {}, {}
    history.original, history.functions = {}, {}
    history.states = {}
    return history


def computation_of(dag: Any) -> str:
    """Return a digest of all that a ComputeDAG computes.

    Ansor's workload key leaves out the arguments of calls and the extents of reductions: pooling by 5x5 and by 9x9 to
    the same size share a key.
    """
    reductions = [str(axis.dom.extent) for op in dag.ops for axis in getattr(op, "reduce_axis", ())]
    return foreign.checksum(f"{dag} {reductions}")


def theirs_of(key: str) -> str | None:
    """Return the key of the same workload under TVM's axis names; None if it has none of our names.

    Parameters
    ----------
    key : str
        A registered workload.
    """
    import tvm
    from tvm import auto_scheduler
    from tvm.auto_scheduler.workload_registry import register_workload_tensors, workload_key_to_tensors

    graph = json.loads(tvm.ir.save_json(workload_key_to_tensors(key)))
    nodes, found = graph["nodes"], False
    for node in [n for n in nodes if n["type_key"] == "ComputeOp" and _layout_free(nodes, n)]:
        variables = [_named(nodes, axis) for axis in _at(nodes, node["attrs"]["axis"]).get("data", ())]
        if tuple(name for _, name in variables) == OURS:
            found = True
            for (variable, _), name in zip(variables, THEIRS, strict=True):
                variable["attrs"]["name"] = str(len(nodes))
                nodes.append({"type_key": "runtime.String", "repr_str": name})
    if not found:
        return None
    tensors = list(tvm.ir.load_json(json.dumps(graph)))
    return str(register_workload_tensors(auto_scheduler.ComputeDAG(tensors).workload_key(), tensors))


def _floats(call: Any) -> bool:
    return all(str(argument.checked_type.dtype).startswith(FLOATS) for argument in call.args)


def _at(nodes: list[dict[str, Any]], number: Any) -> dict[str, Any]:
    return nodes[int(number)]


def _layout_free(nodes: list[dict[str, Any]], op: dict[str, Any]) -> bool:
    return "layout_free_placeholders" in _at(nodes, op["attrs"]["attrs"]).get("keys", ())


def _named(nodes: list[dict[str, Any]], axis: Any) -> tuple[dict[str, Any], str]:
    """Return the variable of an IterVar and its name."""
    variable = _at(nodes, _at(nodes, axis)["attrs"]["var"])
    return variable, _at(nodes, variable["attrs"]["name"]).get("repr_str", "")
