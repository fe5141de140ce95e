"""Host code taken from TVM's builds, of either TVM line: buffers between kernels, and launches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..device.arch import arch_number
from .built_kernels import BuiltKernels
from .dialect import Tvm017, dialect_here
from .errors import NotEmulated
from .flat import called, kind_of, parts_of, statements, values_of
from .host_code import OPERATIONS, BufferSpec, Extent, HostCode, Launch, launch_of

#: The pass before which host and device are separate and the host still has its plain parameters.
_BEFORE = ("tir.MakePackedAPI", "tirx.MakePackedAPI")
_ON_DEVICE = ("tir.is_global_func", "tirx.is_global_func")
#: Attribute of a kernel with the names of its launch's extents.
_TAGS = ("tir.kernel_launch_params", "tirx.kernel_launch_params")
#: Attribute of a PrimFunc: number of its last parameters that nobody reads after a call.
SCRATCH = "roller_tvm.scratch"


class TakeHost:
    """Host code of a build, taken by a pass instrument.

    Examples
    --------
    >>> take = TakeHost()
    >>> with tvm.transform.PassContext(opt_level=3, instruments=[take.instrument]):
    ...     lib = relay.build(mod, target, params=params)
    >>> kernels = take.kernels(lib.get_lib())
    """

    def __init__(self) -> None:
        from tvm.ir.instrument import pass_instrument

        self.modules: list[Any] = []
        modules = self.modules

        @pass_instrument
        class Take:
            """Keeps the modules."""

            def run_before_pass(self, module: Any, info: Any) -> None:
                if info.name in _BEFORE and any(map(_on_device, module.functions.values())):
                    modules.append(module)

        self.instrument = Take()

    def read(self) -> tuple[dict[str, HostCode], dict[str, str]]:
        """Return the functions that launch kernels: (name -> host code, name -> why it cannot be emulated)."""
        found: dict[str, HostCode] = {}
        refused: dict[str, str] = {}
        for module in map(_with_launches, self.modules):
            kernels = {str(f.attrs["global_symbol"]): f for _, f in module.functions.items() if _on_device(f)}
            for var, function in module.functions.items():
                if _on_device(function) or not _launches(function, kernels):  # the host's alone runs as it is
                    continue
                try:
                    found[var.name_hint] = _read(function, kernels)
                except NotEmulated as error:
                    refused[var.name_hint] = error.what
        return found, refused

    def kernels(self, built: Any) -> BuiltKernels | None:
        """Return the kernels of a build, to be stored in its package; None if it has none for CUDA."""
        sources = sources_in(built, "cuda")
        if not sources or not self.modules:
            return None
        functions, refused = self.read()
        targets = [f.attrs["target"] for m in self.modules for f in m.functions.values() if _on_device(f)]
        arch = min({str(target.attrs["arch"]) for target in targets}, key=arch_number)
        return BuiltKernels(sources[0], arch, functions, refused, tuple(sources[1:]))


def sources_in(built: Any, kind: str) -> list[str]:
    """Return the sources of the modules of a kind, such as 'cuda', in a build."""
    todo, sources = [getattr(built, "mod", built)], []
    while todo:
        module = todo.pop(0)
        if hasattr(type(module), "type_key"):  # of TVM 0.17; asked itself, one of 0.27 looks for a kernel of that name
            sources += [str(module.get_source())] if module.type_key == kind else []
            todo.extend(module.imported_modules)
        else:
            sources += [str(module.inspect_source())] if module.kind == kind else []
            todo.extend(module.imports)
    return sources


def _on_device(function: Any) -> bool:
    return any(bool(function.attrs.get(name, False)) for name in _ON_DEVICE)


def _with_launches(module: Any) -> Any:
    """Return a module with calls for its launches: TVM 0.17 lowers them between functions of different targets."""
    import tvm

    if hasattr(tvm, "tirx"):
        return module
    # Up to here the host has the device's target.
    functions = {var: f if _on_device(f) else _for_host(f) for var, f in module.functions.items()}
    return tvm.tir.transform.LowerDeviceKernelLaunch()(tvm.IRModule(functions))


def _for_host(function: Any) -> Any:
    host = function.attrs["target"].host
    return function if host is None else function.with_attr("target", host)


def _launches(function: Any, kernels: Mapping[str, Any]) -> bool:
    """Return whether a function of the host calls one of the kernels."""
    values = (value for statement in statements(function.body) for value in values_of(statement))
    return any(_text(part) in kernels for value in values for part in parts_of(value))


def _read(function: Any, kernels: Mapping[str, Any]) -> HostCode:
    walk = _Host(function, kernels)
    walk.visit(function.body)
    scratch = walk.parameters[len(walk.parameters) - int(function.attrs.get(SCRATCH, 0)) :]
    names = tuple(str(getattr(p, "name", p)) for p in scratch)
    return HostCode(walk.parameters, tuple(walk.between), tuple(walk.launches), names)


class _Host:
    """Reads the host's statements: allocations, views, launches."""

    def __init__(self, host: Any, kernels: Mapping[str, Any]) -> None:
        self.kernels = kernels
        self.names: dict[int, str] = {}  # of memory, by the hash of its variable or buffer
        self.between: list[BufferSpec] = []
        self.launches: list[Launch] = []
        self.condition: Extent = 1  # of what is visited
        self.bound: dict[str, Extent] = {}  # names of what the host computes once
        buffers = getattr(host, "buffer_map", None)
        given = [p if buffers is None else buffers.get(p, p) for p in host.params]
        self.parameters = tuple(self._buffer(p) if _is_buffer(p) else str(p.name) for p in given)

    def _buffer(self, buffer: Any) -> BufferSpec:
        name = self._fresh(str(buffer.name))
        self._call_it(buffer, name)
        return BufferSpec(name, tuple(_size(e) for e in buffer.shape), str(buffer.dtype))

    def _fresh(self, name: str) -> str:
        taken = set(self.names.values())
        return name if name not in taken else next(
            f"{name}_{n}" for n in range(1, len(taken) + 2) if f"{name}_{n}" not in taken
        )

    def _call_it(self, buffer: Any, name: str) -> None:
        self.names[hash(buffer)] = self.names[hash(_memory(buffer.data))] = name

    def visit(self, stmt: Any) -> None:
        kind = kind_of(stmt)
        if kind == "SeqStmt":
            for part in stmt.seq:
                self.visit(part)
        elif kind == "AllocBuffer":
            self.between.append(self._buffer(stmt.buffer))
        elif kind == "Allocate":
            name = self.names[hash(stmt.buffer_var)] = self._fresh(str(stmt.buffer_var.name))
            self.between.append(BufferSpec(name, tuple(map(_extent, stmt.extents)), str(stmt.dtype)))
        elif kind == "DeclBuffer":  # another view of a buffer
            name = self.names.get(hash(_memory(stmt.data if hasattr(stmt, "data") else stmt.buffer.data)), "")
            if not name:
                raise NotEmulated(f"host code declares {stmt.buffer.name} over memory of its own")
            self._call_it(stmt.buffer, name)
        elif kind == "Evaluate":
            if hasattr(stmt.value, "op"):
                self._call(stmt.value)
        elif kind == "For" and _is_truth(stmt.extent):  # one turn or none
            outer, own = self.condition, self._size(stmt.extent)
            self.condition = own if outer == 1 else ("And", outer, own)
            self.visit(stmt.body)
            self.condition = outer
            return
        elif kind == "Bind":
            self.bound[str(stmt.var.name)] = self._size(stmt.value)
        elif kind not in ("AttrStmt", "AssertStmt"):
            raise NotEmulated(f"the host code does more than launch kernels: {kind}")
        if getattr(stmt, "body", None) is not None:
            self.visit(stmt.body)

    def _size(self, expression: Any) -> Extent:
        """A size in terms of the open ones."""

        def known(value: Extent) -> Extent:
            if isinstance(value, tuple):
                return value[0], known(value[1]), known(value[2])
            return self.bound.get(value, value) if isinstance(value, str) else value

        return known(_size(expression))

    def _call(self, call: Any) -> None:
        name = _text(call)
        if name not in self.kernels:
            raise NotEmulated(f"host code calls {name or call.op}")
        kernel = self.kernels[name]
        tags = next(kernel.attrs[key] for key in _TAGS if key in kernel.attrs)
        values, count = list(call.args[1:]), len(kernel.params)
        arguments = [self.names.get(hash(_memory(v)), v) for v in values[:count]]
        told = [a if isinstance(a, str) else _number_or_open(self._size(a)) for a in arguments]
        launch = launch_of(name, told, [str(tag) for tag in tags], [self._size(v) for v in values[count:]])
        self.launches.append(replace(launch, condition=self.condition))


def _text(call: Any) -> str:
    """Return the first argument of a call if it is a text, else ''."""
    first = getattr(call.args[0], "value", "") if kind_of(call) == "Call" and call.args else ""
    return first if isinstance(first, str) else ""


def _is_buffer(parameter: Any) -> bool:
    return hasattr(parameter, "shape") and hasattr(parameter, "scope")


def _number_or_open(extent: Extent) -> Any:
    return extent if isinstance(extent, int) else (extent,)


def _size(expression: Any) -> Extent:
    """Return an extent or a number argument; TVM 0.17 leaves sums of numbers for its simplifier."""
    dialect = dialect_here()
    return _extent(dialect.analyzer().simplify(expression) if isinstance(dialect, Tvm017) else expression)


def _extent(expression: Any) -> Extent:
    kind = kind_of(expression)
    if isinstance(expression, int) or kind == "IntImm":
        return int(expression)
    if kind in ("Var", "SizeVar"):
        return str(expression.name)
    if kind == "Cast":
        return _extent(expression.value)
    if kind == "Not":
        return "EQ", _extent(expression.a), 0
    if kind in OPERATIONS:
        return kind, _extent(expression.a), _extent(expression.b)
    if (name := called(expression)) in OPERATIONS:
        return name, _extent(expression.args[0]), _extent(expression.args[1])
    raise NotEmulated(f"a size is not plain arithmetic: {expression}")


def _is_truth(expression: Any) -> bool:
    """Return whether a number is 1 or 0, as something holds or not."""
    while kind_of(expression) == "Cast":
        expression = expression.value
    return str(getattr(getattr(expression, "ty", None), "dtype", "")) == "bool"


def _memory(data: Any) -> Any:
    """Return the variable behind ``buffer.data``, which recent versions wrap in a call on the buffer."""
    return data.args[0] if str(getattr(getattr(data, "op", None), "name", "")) == "tirx.buffer_data" else data
