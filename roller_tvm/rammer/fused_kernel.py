"""One CUDA kernel per plan: thread blocks as vEUs that walk their lists of rTasks, or ranges of blocks side by side.

Barriers are step counters: a vEU writes how many of its rTasks are over, others poll for it. The last block to end
resets them, so that the kernel may be launched again and again, also from a CUDA graph, but not twice at the same time.
All vEUs that wait are on the device together: no more are launched than are resident at a time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from math import prod

from ..codegen import KernelResources
from ..codegen.cuda_text import dtype_bytes
from ..codegen.host_code import BufferSpec, HostCode, Launch
from ..device import DeviceSpec
from ..micro_perf.occupancy import occupancy
from .cuda_functions import CannotFuse
from .dialect import CUDA, Dialect
from .fused_source import Argument, Made, Step, block_ranges, persistent
from .launch_bounds import Bounds, bounds_of
from .roperator import RKernel
from .task_program import TaskProgram

#: Bytes of a pointer, and of a kernel's parameters by any compiler (CUDA C++ Programming Guide, function parameters:
#: 4 KB; more from CUDA 12.1 and sm_70 on).
_POINTER, _PARAMETERS = 8, 4096
#: Alignment of buffers in the workspace: a line of the caches; the driver's own buffers have at least that.
_ALIGNED = 256


@dataclass(frozen=True)
class OperatorCode:
    """An operator's kernels as TVM generates them.

    Parameters
    ----------
    source : str
        CUDA C++.
    host : HostCode
        Its launches, one per phase of the rKernel; every extent is a number.
    buffers : tuple of str
        The graph's tensor for each of the host code's parameters.
    outputs : int
        Number of tensors that the operator writes: the last ones.
    """

    source: str
    host: HostCode
    buffers: tuple[str, ...]
    outputs: int = 1

    def __post_init__(self) -> None:
        if len(self.buffers) != len(self.host.parameters):
            raise ValueError(f"{len(self.buffers)} buffers for {len(self.host.parameters)} parameters")

    def named(self, operator: str) -> dict[str, BufferSpec]:
        """Return the graph's buffers by their names in the host code; those between launches are the operator's own."""
        found = {}
        for spec, name in zip(self.host.parameters, self.buffers, strict=True):
            assert isinstance(spec, BufferSpec)
            found[spec.name] = BufferSpec(name, spec.shape, spec.dtype)
        for spec in self.host.between:
            found[spec.name] = BufferSpec(f"{operator}.{spec.name}", spec.shape, spec.dtype)
        return found


@dataclass(frozen=True)
class FusedKernel:
    """The source of a plan's one kernel, CUDA C++ or OpenCL C, and its launch.

    Parameters
    ----------
    host : HostCode
        One launch. Its parameters are the tensors of the graph that others see, by their names in the graph.
    resident : int
        Blocks that must be on a unit at a time; 0 if none waits for another.
    bounds : Bounds or None
        Its launch bounds, if blocks wait.
    compiled : KernelResources or None
        Its resources, if there is a compiler here; else None.
    """

    source: str
    host: HostCode
    shared_bytes: int
    resident: int
    bounds: Bounds | None = None
    compiled: KernelResources | None = None


def fuse(
    name: str, program: TaskProgram, code: Mapping[str, OperatorCode], spec: DeviceSpec, kept: Collection[str] = (),
    dialect: Dialect = CUDA,
) -> FusedKernel:  # fmt: skip
    """Return the kernel of a plan.

    Parameters
    ----------
    code : mapping
        Operator -> its kernels.
    kept : collection of str
        Tensors that are read outside of the plan although an operator of the plan reads them too.
    dialect : Dialect
        Language of the operators' code and of the kernel.

    Raises
    ------
    CannotFuse
        If a kernel's text cannot be part of another, if not all vEUs fit on the device at a time, or if they wait but
        the language has no waits.
    """
    refuse_waits(name, program.waits, dialect)
    made = _read(name, program, code, kept, dialect)
    refuse_waits(name, made.waits, dialect)
    resident, bounds = 0, None
    if made.waits:
        resident = -(-program.used // spec.units)
        fits, limit = occupancy(spec, made.threads, program.device.registers, made.arena)
        if fits < resident:
            raise CannotFuse(f"its {program.used} vEUs wait for one another, and a unit of {spec.name} has room for "
                             f"{fits} of {resident} ({limit})", where=f"plan '{name}'",
                             remedy="plan for the card that it runs on, with the kernels' own shared memory")
        bounds = bounds_of(spec, made.threads, resident)[0]
    static = spec.limits.shared_per_block_bytes
    large = any(s.launch.dynamic_shared for s in made.steps) or (static is not None and made.arena > static)
    dynamic = made.arena if dialect.dynamic_arena and large else 0
    body = persistent(made, program, dynamic, bounds) if bounds else block_ranges(made, dynamic)
    grid = program.used if made.waits else sum(prod(s.launch.grid) for s in made.steps)
    parameters, between = made.interface
    arguments = tuple(spec.name for spec in (*parameters, *between))
    launch = Launch(name, arguments, (grid, 1, 1), (made.threads, 1, 1), dynamic)
    return FusedKernel(body, HostCode(parameters, between, (launch,)), made.arena, resident, bounds)


def check_intermediates(kernel: RKernel, host: HostCode) -> None:
    """Raise ``CannotFuse`` if TVM keeps two results between an operator's kernels in one memory.

    A later kernel may overwrite a buffer that an earlier one reads. rTasks only wait for their inputs, so this must be
    refused.
    """
    if kernel.plan is None:
        return
    results = {stage.name for stage in kernel.plan.expression.outputs}
    own = [program.output for program in kernel.plan.programs if program.output not in results]
    if len(host.between) < len(own):
        raise CannotFuse(f"TVM keeps the {len(own)} results between its kernels in {len(host.between)} buffers",
                         where=f"rKernel '{kernel.name}'", remedy="leave the operator a kernel of its own")


def refuse_waits(name: str, waits: bool, dialect: Dialect) -> None:
    """Raise ``CannotFuse`` for a plan with waits in a language that has none, before its operators' code is read."""
    if waits and not dialect.waits:
        raise CannotFuse(f"its blocks wait for one another, and {dialect.name} does not promise that they run together",
                         where=f"plan '{name}'", remedy="plan with the policy 'horizontal', in which none waits")


def _read(
    name: str, program: TaskProgram, code: Mapping[str, OperatorCode], kept: Collection[str], dialect: Dialect
) -> Made:  # fmt: skip
    """Read the operators' kernels, and lay out what they work on."""
    widths = {prod(launch.block) for o, _ in program.kernels for launch in code[o].host.launches}
    threads = max(widths) if len(widths) == 1 else -(-max(widths) // 32) * 32
    steps = tuple(_steps(name, program, code, dialect, threads))
    heads = dict.fromkeys(piece for o, _ in program.kernels for piece in dialect.preamble(code[o].source))
    buffers: dict[str, BufferSpec] = {}
    types: dict[str, str] = {}
    for c_type, spec in (buffer for step in steps for buffer in step.buffers):
        buffers.setdefault(spec.name, spec)
        types.setdefault(spec.name, c_type)
    operators = [code[o] for o, _ in program.kernels]
    read = {t for own in operators for t in own.buffers[: len(own.buffers) - own.outputs]}
    written = {t for own in operators for t in own.buffers[len(own.buffers) - own.outputs :]}
    between = {own.named(o)[b.name].name for (o, _), own in zip(program.kernels, operators, strict=True)
               for b in own.host.between}
    internal = between | {n for n in written if n in read and n not in kept}
    parameters = tuple(b for n, b in buffers.items() if n not in internal)
    offsets, workspace = {}, 0
    for n, b in buffers.items():
        if n in internal:
            offsets[n] = workspace
            workspace += -(-prod(b.shape) * dtype_bytes(b.dtype) // _ALIGNED) * _ALIGNED
    taken = _POINTER * (len(parameters) + bool(offsets))
    if taken > _PARAMETERS:
        raise CannotFuse(f"its {len(parameters)} tensors take {taken} B of parameters, a kernel has {_PARAMETERS}",
                         where=f"plan '{name}'", remedy="fuse fewer operators at a time")
    # Blocks of a plain kernel run in any order, so nothing may be both read and written.
    waits = program.waits or bool(read & written)
    head = "\n\n".join(heads)  # `preamble` takes it apart at blank lines
    return Made(name, dialect, threads, head, steps, parameters, types, offsets, workspace, waits)


def _steps(
    name: str, program: TaskProgram, code: Mapping[str, OperatorCode], dialect: Dialect, threads: int
) -> Iterator[Step]:
    """Yield the phases of all operators as calls of device functions."""
    texts: dict[str, str] = {}
    for operator, kernel in program.kernels:
        own = code[operator]
        if len(own.host.launches) != len(kernel.phases):
            raise CannotFuse(f"{len(own.host.launches)} kernels for {len(kernel.phases)} phases of its plan",
                             where=f"operator '{operator}'", remedy="give the code generated for its rKernel")
        named = own.named(operator)
        for number, (launch, phase) in enumerate(zip(own.host.launches, kernel.phases, strict=True)):
            if prod(launch.grid) != phase.tasks:
                raise CannotFuse(f"{prod(launch.grid)} blocks for {phase.tasks} rTasks",
                                 where=f"operator '{operator}', kernel '{launch.kernel}'",
                                 remedy="give the code generated for its rKernel")
            made = dialect.read(own.source, launch.kernel, launch.block, launch.grid, threads, launch.dynamic_shared)
            arguments: list[Argument] = []
            for parameter, argument in zip(made.parameters, launch.arguments, strict=True):
                known = isinstance(argument, str)
                arguments.append((parameter.c_type, named[str(argument)]) if known else str(argument))
            text = texts.setdefault(made.text, f"{name}_{len(texts)}")
            yield Step((operator, number), launch, made, text, tuple(arguments))


