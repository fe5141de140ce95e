"""GPU schedules of the Relax line executed on the CPU: TVM's CUDA source, launched as its host code would."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

from roller_tvm.emulate import BufferSpec, Function, Launch, NotEmulated, compile_source
from roller_tvm.emulate.function import launch_of
from roller_tvm.errors import RollerError
from roller_tvm.tir.nodes import key, parameters


def emulated_function(
    scheduled: Any, target: Any = "sm_80", name: str = "", sizes: Mapping[str, int] | None = None, checked: bool = True
) -> Function:
    """The kernels of a scheduled function, compiled for this CPU, and their launches.

    Parameters
    ----------
    scheduled : IRModule, PrimFunc or s_tir.Schedule
        Scheduled for a GPU. PassContext options (``tirx.use_async_copy``) hold as in a build.
    target : tvm.target.Target or str
        For cuda; or the architecture alone, such as 'sm_90'.
    name : str
        Of the function, where the module has several.
    sizes : mapping of str to int, optional
        Of symbolic shapes, by the names of their variables.
    checked : bool
        Whether accesses to memory are checked.

    Raises
    ------
    NotEmulated
        Host code that does more than launch kernels, or a source the emulator does not know.

    Examples
    --------
    >>> function = emulated_function(schedule, "sm_90")  # doctest: +SKIP
    >>> (out,) = function.run([a, b])  # doctest: +SKIP
    """
    source, walk = generated(scheduled, target, name, sizes)
    compiled = compile_source(source, checked, str(_target(target).attrs["arch"]))
    return Function(compiled, walk.parameters, tuple(walk.between), tuple(walk.launches))


def generated(
    scheduled: Any, target: Any = "sm_80", name: str = "", sizes: Mapping[str, int] | None = None
) -> tuple[str, _Host]:
    """CUDA source of a scheduled function, and what its host code does: buffers between kernels, launches."""
    import tvm

    module = _module(scheduled, name)
    target = _target(target)
    taken: list[Any] = []

    @tvm.ir.instrument.pass_instrument
    class Take:
        """Keeps the module in which host and device are apart and the host still has its plain parameters."""

        def run_before_pass(self, module: Any, info: Any) -> None:
            if info.name == "tirx.MakePackedAPI" and not taken:
                taken.append(module)

    current = tvm.transform.PassContext.current()
    config = {str(k): v for k, v in current.config.items()}
    with tvm.transform.PassContext(current.opt_level, config=config, instruments=[Take()]):
        built = tvm.compile(module, target=target)
    if not taken:
        raise RollerError("TVM's build has no pass tirx.MakePackedAPI", remedy="report this with TVM's version")
    kernels, hosts = {}, []
    for var, function in taken[0].functions.items():
        if function.attrs.get("tirx.is_global_func", False):
            kernels[str(function.attrs["global_symbol"])] = function
        else:
            hosts.append((var.name_hint, function))
    if len(hosts) != 1:
        names = ", ".join(n for n, _ in hosts)
        raise NotEmulated(f"{len(hosts)} functions on the host: {names}", remedy="say which by name=")
    walk = _Host(hosts[0][1], kernels, dict(sizes or {}))
    walk.visit(hosts[0][1].body)
    source = built.mod.imports[0].inspect_source() if hasattr(built, "mod") else built.imports[0].inspect_source()
    return source, walk


def _module(scheduled: Any, name: str) -> Any:
    import tvm

    module = getattr(scheduled, "mod", scheduled)
    if isinstance(module, tvm.tirx.PrimFunc):
        return tvm.IRModule({"main": module.with_attr("global_symbol", "main")})
    if name:
        return tvm.IRModule({name: module[name].with_attr("global_symbol", name)})
    return module


def _target(given: Any) -> Any:
    import tvm

    if isinstance(given, str) and given.startswith("sm_"):
        given = {"kind": "cuda", "arch": given}
    target = tvm.target.Target(given)
    return target if target.host is not None else target.with_host("llvm")


class _Host:
    """Reads the host's statements: allocations, views, launches."""

    def __init__(self, host: Any, kernels: dict[str, Any], sizes: dict[str, int]) -> None:
        self.kernels, self.sizes = kernels, sizes
        self.names: dict[int, str] = {}
        self.between: list[BufferSpec] = []
        self.launches: list[Launch] = []
        self.parameters = tuple(self._buffer(buffer) for buffer in parameters(host))

    def _buffer(self, buffer: Any) -> BufferSpec:
        taken, name = set(self.names.values()), str(buffer.name)
        if name in taken:
            name = next(f"{name}_{n}" for n in range(1, len(taken) + 2) if f"{name}_{n}" not in taken)
        self._call_it(buffer, name)
        return BufferSpec(name, tuple(self._number(e) for e in buffer.shape), str(buffer.dtype))

    def _call_it(self, buffer: Any, name: str) -> None:
        self.names[key(buffer)] = self.names[key(_memory(buffer.data))] = name

    def visit(self, stmt: Any) -> None:
        kind = type(stmt).__name__
        if kind == "SeqStmt":
            for part in stmt.seq:
                self.visit(part)
        elif kind == "AllocBuffer":
            self.between.append(self._buffer(stmt.buffer))
        elif kind == "DeclBuffer":  # another view of a buffer
            name = self.names.get(key(_memory(stmt.data)))
            if name is None:
                raise NotEmulated(f"host code declares {stmt.buffer.name} over memory of its own")
            self._call_it(stmt.buffer, name)
        elif kind == "Evaluate":
            if hasattr(stmt.value, "op"):
                self._call(stmt.value)
        elif kind not in ("AttrStmt", "AssertStmt"):
            raise NotEmulated(f"host code that is no launch: {kind}")
        if getattr(stmt, "body", None) is not None:
            self.visit(stmt.body)

    def _call(self, call: Any) -> None:
        name = str(getattr(call.args[0], "value", "")) if call.args else ""
        if name not in self.kernels:
            raise NotEmulated(f"host code calls {name or call.op}")
        kernel = self.kernels[name]
        tags = [str(t) for t in kernel.attrs["tirx.kernel_launch_params"]]
        values, count = list(call.args[1:]), len(kernel.params)
        arguments = [self.names.get(key(_memory(v)), v) for v in values[:count]]
        numbers = [a if isinstance(a, str) else self._number(a) for a in arguments]
        self.launches.append(launch_of(name, numbers, tags, [self._number(v) for v in values[count:]]))

    def _number(self, expression: Any) -> int:
        kind = type(expression).__name__
        if isinstance(expression, int) or kind == "IntImm":
            return int(expression)
        if kind == "Var" and expression.name in self.sizes:
            return int(self.sizes[expression.name])
        if kind == "Cast":
            return self._number(expression.value)
        if kind in _ARITHMETIC:
            return _ARITHMETIC[kind](self._number(expression.a), self._number(expression.b))
        if kind == "Call" and str(getattr(expression.op, "name", "")) == "tirx.shift_right":
            return self._number(expression.args[0]) >> self._number(expression.args[1])
        raise NotEmulated(f"a size known only when the function is called: {expression}", remedy="give it in sizes=")


# Extents are not negative: quotients round down either way.
_ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "Add": operator.add, "Sub": operator.sub, "Mul": operator.mul, "FloorDiv": operator.floordiv,
    "Div": operator.floordiv, "FloorMod": operator.mod, "Mod": operator.mod, "Min": min, "Max": max,
}  # fmt: skip


def _memory(data: Any) -> Any:
    """What ``buffer.data`` refers to: in recent versions a call on the buffer, before that a variable."""
    return data.args[0] if str(getattr(getattr(data, "op", None), "name", "")) == "tirx.buffer_data" else data
