"""GPU schedules of the Relax line executed on the CPU: TVM's CUDA source, launched as its host code would."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roller_tvm.device.arch import arch_number
from roller_tvm.emulate import BufferSpec, BuiltKernels, Function, HostCode, Launch, NotEmulated, compile_source
from roller_tvm.emulate.host import OPERATIONS, Extent, launch_of
from roller_tvm.emulate.opencl import LIMITS, OpenClFunction
from roller_tvm.errors import RollerError, last_line
from roller_tvm.tir.nodes import key

OPENCL = {"kind": "opencl", **LIMITS}
#: Attribute of a PrimFunc: number of its last parameters that nobody reads after a call.
SCRATCH = "roller_tvm.scratch"


def emulated_function(
    scheduled: Any, target: Any = "sm_80", name: str = "", sizes: Mapping[str, int] | None = None, checked: bool = True
) -> Function:
    """Return the kernels of a scheduled function, compiled for this CPU, and their launches.

    Parameters
    ----------
    scheduled : IRModule, PrimFunc or s_tir.Schedule
        Function scheduled for a GPU. PassContext options (``tirx.use_async_copy``) hold as in a build.
    target : tvm.target.Target or str
        Target for cuda, or just the architecture, such as 'sm_90'.
    name : str
        Name of the function, if the module has several.
    sizes : mapping of str to int, optional
        Values of symbolic shapes, by the names of their variables.
    checked : bool
        True to check accesses to memory.

    Raises
    ------
    NotEmulated
        If the host code does more than launch kernels, or the emulator does not know part of the source.

    Examples
    --------
    >>> function = emulated_function(schedule, "sm_90")  # doctest: +SKIP
    >>> (out,) = function.run([a, b])  # doctest: +SKIP
    """
    source, host = generated(scheduled, target, name)
    program = compile_source(source, checked, str(target_of(target).attrs["arch"]))
    return Function.of(program, host, sizes)


def generated(scheduled: Any, target: Any = "sm_80", name: str = "") -> tuple[str, HostCode]:
    """Return the CUDA source of a scheduled function, and its host code: buffers between kernels, launches."""
    import tvm

    module = _module(scheduled, name)
    target = target_of(target)
    current = tvm.transform.PassContext.current()
    config = {str(k): v for k, v in current.config.items()}
    take = TakeHost()
    with tvm.transform.PassContext(current.opt_level, config=config, instruments=[take.instrument]):
        built = tvm.compile(module, target=target)
    if not take.modules:
        raise RollerError("TVM's build has no pass tirx.MakePackedAPI", remedy="report this with TVM's version")
    if len(take.functions) + len(take.refused) != 1:
        names = ", ".join([*take.functions, *take.refused])
        raise NotEmulated(f"{len(take.functions)} functions on the host: {names}", remedy="choose one by name=")
    for refused, why in take.refused.items():
        raise NotEmulated(why, where=refused)
    (host,) = take.functions.values()
    return _kernels_of(built, str(target.kind.name)).inspect_source(), host


def opencl_function(scheduled: Any, name: str = "") -> OpenClFunction:
    """Return the same schedule in OpenCL, for PoCL: an independent check of its results.

    Parameters
    ----------
    scheduled, name
        See `emulated_function`.

    Raises
    ------
    NotEmulated
        If TVM makes no OpenCL of it (tensor cores, cp.async).

    Examples
    --------
    >>> (out,) = opencl_function(schedule).run([a, b])  # doctest: +SKIP
    """
    try:
        return OpenClFunction.of(*generated(scheduled, OPENCL, name))
    except RollerError:
        raise
    except Exception as error:  # whatever its code generator stumbles over
        raise NotEmulated(f"TVM makes no OpenCL of it: {last_line(error)}") from error


class TakeHost:
    """Takes host code from a build: a pass instrument, and the host code it found.

    Examples
    --------
    >>> take = TakeHost()  # doctest: +SKIP
    >>> with tvm.transform.PassContext(instruments=[take.instrument]):  # doctest: +SKIP
    ...     executable = tvm.compile(mod, target)
    >>> kernels = take.kernels(executable)  # doctest: +SKIP
    """

    def __init__(self) -> None:
        import tvm

        self.modules: list[Any] = []
        modules = self.modules

        @tvm.ir.instrument.pass_instrument
        class Take:
            """Keeps modules in which host and device are separate and the host still has its plain parameters."""

            def run_before_pass(self, module: Any, info: Any) -> None:
                if info.name == "tirx.MakePackedAPI" and any(map(_on_device, module.functions.values())):
                    modules.append(module)

        self.instrument = Take()

    def _read(self) -> tuple[dict[str, HostCode], dict[str, str]]:
        found: dict[str, HostCode] = {}
        refused: dict[str, str] = {}
        for module in self.modules:
            functions = module.functions.items()
            kernels = {str(f.attrs["global_symbol"]): f for _, f in functions if _on_device(f)}
            for var, function in functions:
                if _on_device(function) or not _launches(function, kernels):
                    # Functions of the host alone run as they are.
                    continue
                try:
                    walk = _Host(function, kernels)
                    walk.visit(function.body)
                    scratch = walk.parameters[len(walk.parameters) - int(function.attrs.get(SCRATCH, 0)) :]
                    names = tuple(str(getattr(p, "name", p)) for p in scratch)
                    host = HostCode(walk.parameters, tuple(walk.between), tuple(walk.launches), names)
                    found[var.name_hint] = host
                except NotEmulated as error:
                    refused[var.name_hint] = error.what
        return found, refused

    @property
    def functions(self) -> dict[str, HostCode]:
        """Name -> host code, for functions that launch kernels."""
        return self._read()[0]

    @property
    def refused(self) -> dict[str, str]:
        """Name -> why the function cannot be emulated."""
        return self._read()[1]

    def kernels(self, built: Any) -> BuiltKernels | None:
        """Return the kernels of a build for a package; None if it has none for CUDA."""
        module = _kernels_of(built, "cuda")
        if module is None or not self.modules:
            return None
        functions, refused = self._read()
        kernels = [f for m in self.modules for f in m.functions.values() if _on_device(f)]
        archs = {str(f.attrs["target"].attrs["arch"]) for f in kernels}
        return BuiltKernels(str(module.inspect_source()), min(archs, key=arch_number), functions, refused)


def _on_device(function: Any) -> bool:
    return bool(function.attrs.get("tirx.is_global_func", False))


def _launches(function: Any, kernels: Mapping[str, Any]) -> bool:
    text = function.script()  # 0.27 has no visitor of statements
    return any(f'"{name}"' in text for name in kernels)


def _text(expression: Any) -> str:
    return expression.value if isinstance(getattr(expression, "value", None), str) else ""


def _kernels_of(built: Any, kind: str) -> Any:
    """Return the module of kernels in a build, or None."""
    todo = [getattr(built, "mod", built)]
    while todo:
        module = todo.pop()
        if module.kind == kind:
            return module
        todo.extend(module.imports)
    return None


def _module(scheduled: Any, name: str) -> Any:
    import tvm

    module = getattr(scheduled, "mod", scheduled)
    if isinstance(module, tvm.tirx.PrimFunc):
        return tvm.IRModule({"main": module.with_attr("global_symbol", "main")})
    if name:
        return tvm.IRModule({name: module[name].with_attr("global_symbol", name)})
    return module


def target_of(given: Any) -> Any:
    """Return a target with a host; a bare architecture means cuda."""
    import tvm

    if isinstance(given, str) and given.startswith("sm_"):
        given = {"kind": "cuda", "arch": given}
    target = tvm.target.Target(given)
    return target if target.host is not None else target.with_host("llvm")


class _Host:
    """Reads the host's statements: allocations, views, launches."""

    def __init__(self, host: Any, kernels: Mapping[str, Any]) -> None:
        self.kernels = kernels
        self.names: dict[int, str] = {}
        self.between: list[BufferSpec] = []
        self.launches: list[Launch] = []
        buffers = getattr(host, "buffer_map", None)
        given = [p if buffers is None else buffers.get(p, p) for p in host.params]
        self.parameters = tuple(self._buffer(p) if _is_buffer(p) else str(p.name) for p in given)

    def _buffer(self, buffer: Any) -> BufferSpec:
        taken, name = set(self.names.values()), str(buffer.name)
        if name in taken:
            name = next(f"{name}_{n}" for n in range(1, len(taken) + 2) if f"{name}_{n}" not in taken)
        self._call_it(buffer, name)
        return BufferSpec(name, tuple(_extent(e) for e in buffer.shape), str(buffer.dtype))

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
            raise NotEmulated(f"the host code does more than launch kernels: {kind}")
        if getattr(stmt, "body", None) is not None:
            self.visit(stmt.body)

    def _call(self, call: Any) -> None:
        name = _text(call.args[0]) if call.args else ""
        if name not in self.kernels:
            raise NotEmulated(f"host code calls {name or call.op}")
        kernel = self.kernels[name]
        tags = [str(t) for t in kernel.attrs["tirx.kernel_launch_params"]]
        values, count = list(call.args[1:]), len(kernel.params)
        arguments = [self.names.get(key(_memory(v)), v) for v in values[:count]]
        told = [a if isinstance(a, str) else _number_or_open(_extent(a)) for a in arguments]
        self.launches.append(launch_of(name, told, tags, [_extent(v) for v in values[count:]]))


def _is_buffer(parameter: Any) -> bool:
    return hasattr(parameter, "shape") and hasattr(parameter, "scope")


def _number_or_open(extent: Extent) -> Any:
    return extent if isinstance(extent, int) else (extent,)


def _extent(expression: Any) -> Extent:
    kind = type(expression).__name__
    if isinstance(expression, int) or kind == "IntImm":
        return int(expression)
    if kind in ("Var", "SizeVar"):
        return str(expression.name)
    if kind == "Cast":
        return _extent(expression.value)
    if kind in OPERATIONS:
        return kind, _extent(expression.a), _extent(expression.b)
    if kind == "Call" and (name := str(getattr(expression.op, "name", "")).removeprefix("tirx.")) in OPERATIONS:
        return name, _extent(expression.args[0]), _extent(expression.args[1])
    raise NotEmulated(f"a size is not plain arithmetic: {expression}")


def _memory(data: Any) -> Any:
    """Return the variable behind ``buffer.data``, which recent versions wrap in a call on the buffer."""
    return data.args[0] if str(getattr(getattr(data, "op", None), "name", "")) == "tirx.buffer_data" else data
