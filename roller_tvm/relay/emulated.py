"""GPU schedules of the Relay line executed on the CPU: TVM's CUDA source, launched as its host code would."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from roller_tvm.device.arch import arch_number
from roller_tvm.emulate import (
    BufferSpec,
    BuiltKernels,
    Checked,
    Function,
    HostCode,
    Launch,
    NotEmulated,
    OpenClFunction,
    check,
    check_on_pocl,
    compile_source,
)
from roller_tvm.emulate.host import launch_of
from roller_tvm.emulate.opencl import LIMITS
from roller_tvm.errors import RollerError, last_line
from roller_tvm.planner.lower import lower
from roller_tvm.relay.apply_te import apply_steps_te
from roller_tvm.relay.cuda import cuda_source
from roller_tvm.relay.loops import TeProgram
from roller_tvm.relay.reference import reduction_terms, reference_on, reference_schedule
from roller_tvm.roller.rprogram import Plan
from roller_tvm.te import read_te


def emulated_function(schedule: Any, args: Sequence[Any], arch: str = "sm_80", checked: bool = True) -> Function:
    """Return the kernels of a schedule compiled for this CPU, with their launches.

    Parameters
    ----------
    schedule : te.Schedule
    args : sequence of te.Tensor
    arch : str
    checked : bool
        Whether accesses to memory are checked.

    Raises
    ------
    NotEmulated
        The host code does more than launch kernels, or the emulator does not support the source.

    Examples
    --------
    >>> function = emulated_function(schedule, args)  # doctest: +SKIP
    >>> (out,) = function.run([a, b])  # doctest: +SKIP
    """
    source, host = generated(schedule, args, arch)
    return Function.of(compile_source(source, checked, arch), host)


def generated(schedule: Any, args: Sequence[Any], arch: str = "sm_80") -> tuple[str, HostCode]:
    """Return the CUDA C++ that TVM generates for a schedule, and its host code with the launches.

    Raises
    ------
    NotEmulated
        The host code does more than launch kernels.
    """
    import tvm

    take, current = TakeHost(), tvm.transform.PassContext.current()
    config = {str(k): v for k, v in current.config.items()}
    with tvm.transform.PassContext(current.opt_level, config=config, instruments=[take.instrument]):
        source = cuda_source(schedule, args, arch)
    if not take.modules:
        raise RollerError("TVM's build has no pass tir.MakePackedAPI", remedy="report this with TVM's version")
    functions, refused = take.read()
    for name, why in refused.items():
        raise NotEmulated(why, where=name)
    if len(functions) != 1:
        raise NotEmulated(f"{len(functions)} functions on the host")
    (host,) = functions.values()
    return source, host


def opencl_function(schedule: Any, args: Sequence[Any]) -> OpenClFunction:
    """Return the schedule compiled as OpenCL for PoCL: a second, independent execution of it.

    Parameters
    ----------
    schedule : te.Schedule
    args : sequence of te.Tensor

    Raises
    ------
    NotEmulated
        TVM cannot generate OpenCL for it.

    Examples
    --------
    >>> (out,) = opencl_function(schedule, args).run([a, b])  # doctest: +SKIP
    """
    import tvm

    take, current = TakeHost(), tvm.transform.PassContext.current()
    config = {str(k): v for k, v in current.config.items()}
    options = " ".join(f"-{name}={value}" for name, value in LIMITS.items())
    try:
        with tvm.transform.PassContext(current.opt_level, config=config, instruments=[take.instrument]):
            built = tvm.build(schedule, list(args), tvm.target.Target(f"opencl {options}", host="llvm"), name="kernel")
    except Exception as error:  # whatever its code generator stumbles over
        raise NotEmulated(f"TVM makes no OpenCL of it: {last_line(error)}") from error
    (host,) = take.read()[0].values()
    return OpenClFunction.of(str(built.imported_modules[0].get_source()), host)


class TakeHost:
    """Collects the host code of a build with a pass instrument.

    Examples
    --------
    >>> take = TakeHost()  # doctest: +SKIP
    >>> with tvm.transform.PassContext(opt_level=3, instruments=[take.instrument]):  # doctest: +SKIP
    ...     lib = relay.build(mod, target, params=params)
    >>> kernels = take.kernels(lib.get_lib())  # doctest: +SKIP
    """

    def __init__(self) -> None:
        import tvm

        self.modules: list[Any] = []
        modules = self.modules

        @tvm.instrument.pass_instrument
        class Take:
            """Keeps the modules that are split into host and device, before their parameters are packed."""

            def run_before_pass(self, module: Any, info: Any) -> None:
                if info.name == "tir.MakePackedAPI" and any(map(_on_device, module.functions.values())):
                    modules.append(module)

        self.instrument = Take()

    def read(self) -> tuple[dict[str, HostCode], dict[str, str]]:
        """Return the functions that launch kernels: (name -> host code, name -> why it cannot be emulated)."""
        import tvm

        found: dict[str, HostCode] = {}
        refused: dict[str, str] = {}
        for taken in self.modules:
            # Launches are lowered between functions of different targets; up to here the host has the device's.
            functions = {var: f if _on_device(f) else _for_host(f) for var, f in taken.functions.items()}
            module = tvm.tir.transform.LowerDeviceKernelLaunch()(tvm.IRModule(functions))
            hosts = {g.name_hint: f for g, f in module.functions.items() if not _on_device(f)}
            devices = {g.name_hint: f for g, f in module.functions.items() if _on_device(f)}
            for name, host in hosts.items():
                if not _launches(host, devices):  # what is the host's alone runs as it is
                    continue
                try:
                    walk = _Host(host, devices)
                    walk.visit(host.body)
                    found[name] = HostCode(walk.parameters, tuple(walk.between), tuple(walk.launches))
                except NotEmulated as error:
                    refused[name] = error.what
        return found, refused

    def kernels(self, library: Any) -> BuiltKernels | None:
        """Return the kernels of a built library, to be stored in its package; None if it has none for CUDA."""
        todo, sources = [library], []
        while todo:
            module = todo.pop(0)
            sources += [str(module.get_source())] if module.type_key == "cuda" else []
            todo += module.imported_modules
        if not sources or not self.modules:
            return None
        functions, refused = self.read()
        archs = {str(f.attrs["target"].arch) for m in self.modules for f in m.functions.values() if _on_device(f)}
        return BuiltKernels(sources[0], min(archs, key=arch_number), functions, refused, tuple(sources[1:]))


def check_plan(plan: Plan, tensors: Sequence[Any], arch: str = "sm_80", budget_s: float = 20.0) -> Checked:
    """Execute a plan's kernels on the CPU and compare them with TVM's own schedule.

    Parameters
    ----------
    plan : Plan
        For a GPU.
    tensors : sequence of te.Tensor
        The tensors that the plan was made for: inputs, then outputs.
    arch : str
    budget_s : float
        Time limit of a kernel, seconds; one that takes longer is run in part.

    Raises
    ------
    KernelFault, WrongAnswer
        A kernel misbehaves, or its results are wrong.

    Examples
    --------
    >>> print(check_plan(plan, te_operator("matmul", m=64, n=64, k=64)))  # doctest: +SKIP
    executed on the CPU: 1 kernel, all blocks, all elements agree with the reference (0.1 s)
    """
    tensors = list(tensors)
    program = TeProgram.of_reading(read_te(tensors), tensors)
    function = emulated_function(*apply_steps_te(program, lower(plan)), arch)
    arrays, expected, terms = _reference(tensors)
    return check(function, arrays, expected, terms, float(plan.expression.flops), budget_s)


def check_plan_on_pocl(plan: Plan, tensors: Sequence[Any]) -> Checked:
    """Execute a plan's kernels as OpenCL on PoCL and compare them as `check_plan` does.

    Raises
    ------
    NotEmulated
        TVM cannot generate OpenCL for it.
    ToolchainError
        There is no PoCL.
    WrongAnswer
        The results differ.

    Examples
    --------
    >>> print(check_plan_on_pocl(plan, te_operator("matmul", m=64, n=64, k=64)))  # doctest: +SKIP
    executed in OpenCL by PoCL: 1 kernel, all blocks, all elements agree with the reference (0.4 s)
    """
    tensors = list(tensors)
    program = TeProgram.of_reading(read_te(tensors), tensors)
    return check_on_pocl(opencl_function(*apply_steps_te(program, lower(plan))), *_reference(tensors))


def _reference(tensors: Sequence[Any]) -> tuple[list[Any], list[Any], int]:
    """Return (inputs by position, outputs of TVM's own schedule, number of terms of its sums)."""
    import tvm
    from tvm import te

    given = [isinstance(t.op, te.PlaceholderOp) for t in tensors]
    outputs = [t for t, is_given in zip(tensors, given, strict=True) if not is_given]
    kernel = tvm.build(reference_schedule(outputs), tensors, "llvm")

    def compute(feeds: Sequence[np.ndarray]) -> list[np.ndarray]:
        made = [tvm.nd.empty([int(e) for e in t.shape], t.dtype) for t in outputs]
        inputs, results = iter(feeds), iter(made)
        kernel(*(tvm.nd.array(next(inputs)) if is_given else next(results) for is_given in given))
        return [m.numpy() for m in made]

    feeds, expected = reference_on([t for t, is_given in zip(tensors, given, strict=True) if is_given], compute)
    inputs = iter(feeds)
    arrays = [next(inputs) if is_given else None for is_given in given]
    return arrays, expected, reduction_terms(tvm.auto_scheduler.ComputeDAG(tensors).ops)


def _on_device(function: Any) -> bool:
    return bool(function.attrs.get("tir.is_global_func", False))


def _for_host(function: Any) -> Any:
    host = function.attrs["target"].host
    return function if host is None else function.with_attr("target", host)


def _launches(function: Any, devices: Mapping[str, Any]) -> bool:
    import tvm

    found: list[str] = []

    def visit(node: Any) -> None:
        if isinstance(node, tvm.tir.Call) and node.args and isinstance(node.args[0], tvm.tir.StringImm):
            found.append(node.args[0].value)

    tvm.tir.stmt_functor.post_order_visit(function.body, visit)
    return any(name in devices for name in found)


class _Host:
    """Reads allocations and launches from host code."""

    def __init__(self, host: Any, devices: dict[str, Any]) -> None:
        self.devices = devices
        self.names: dict[Any, str] = {}
        self.between: list[BufferSpec] = []
        self.launches: list[Launch] = []
        parameters = []
        for var in host.params:
            if var not in host.buffer_map:
                raise NotEmulated(f"a parameter {var.name} that is no buffer")
            buffer = host.buffer_map[var]
            self.names[buffer.data] = self._fresh(buffer.name)
            shape = tuple(_number(e) for e in buffer.shape)
            parameters.append(BufferSpec(self.names[buffer.data], shape, str(buffer.dtype)))
        self.parameters = tuple(parameters)

    def _fresh(self, name: str) -> str:
        taken = set(self.names.values())
        return name if name not in taken else next(f"{name}_{n}" for n in range(1, 99) if f"{name}_{n}" not in taken)

    def visit(self, stmt: Any) -> None:
        import tvm

        tir = tvm.tir
        if isinstance(stmt, tir.SeqStmt):
            for part in stmt.seq:
                self.visit(part)
        elif isinstance(stmt, tir.Allocate):
            self.names[stmt.buffer_var] = self._fresh(stmt.buffer_var.name)
            shape = tuple(_number(e) for e in stmt.extents)
            self.between.append(BufferSpec(self.names[stmt.buffer_var], shape, str(stmt.dtype)))
            self.visit(stmt.body)
        elif isinstance(stmt, (tir.AttrStmt, tir.DeclBuffer, tir.AssertStmt)):
            self.visit(stmt.body)
        elif isinstance(stmt, tir.Evaluate) and isinstance(stmt.value, tir.Call):
            self._call(stmt.value)
        elif not isinstance(stmt, tir.Evaluate):
            raise NotEmulated(f"host code that is no launch: {type(stmt).__name__}")

    def _call(self, call: Any) -> None:
        import tvm

        name = call.args[0]
        name = name.value if isinstance(name, tvm.tir.StringImm) else ""
        if name not in self.devices:
            raise NotEmulated(f"host code calls {name or call.op}")
        kernel = self.devices[name]
        count = len(kernel.params)
        arguments = [self.names[a] if a in self.names else _number(a) for a in call.args[1 : 1 + count]]
        tags = [str(t) for t in kernel.attrs["tir.kernel_launch_params"]]
        extents = [_number(e) for e in call.args[1 + count :]]
        self.launches.append(launch_of(str(kernel.attrs["global_symbol"] or name), arguments, tags, extents))


def _number(expression: Any) -> int:
    import tvm

    value = tvm.arith.Analyzer().simplify(expression)
    if not isinstance(value, tvm.tir.IntImm):
        raise NotEmulated(f"a size known only when the function is called: {expression}")
    return int(value)
