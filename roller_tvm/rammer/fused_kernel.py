"""One CUDA kernel per plan: thread blocks as vEUs that walk their lists of rTasks, or ranges of blocks side by side.

Barriers are step counters: a vEU writes how many of its rTasks are over, others poll for it. The last block to end
resets them, so that the kernel may be launched again and again, also from a CUDA graph, but not twice at the same time.
All vEUs that wait are on the device together: no more are launched than are resident at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from ..codegen import KernelResources
from ..codegen.cuda_text import dtype_bytes
from ..codegen.host_code import BufferSpec, HostCode, Launch
from ..device import DeviceSpec
from ..micro_perf.occupancy import occupancy
from .cuda_functions import CannotFuse, DeviceFunction
from .dialect import CUDA, Dialect
from .launch_bounds import Bounds, bounds_of
from .roperator import RKernel
from .rtask import RTask
from .task_program import BarrierTask, TaskProgram

#: Bytes of a pointer, and of a kernel's parameters by any compiler (CUDA C++ Programming Guide, function parameters:
#: 4 KB; more from CUDA 12.1 and sm_70 on).
_POINTER, _PARAMETERS = 8, 4096
#: Alignment of buffers in the workspace: a line of the caches; the driver's own buffers have at least that.
_ALIGNED = 256
#: Polls after which a wait gives up: a poll goes to the L2 cache and pauses, a few tenths of a microsecond, so that is
#: tens of seconds, while plans take milliseconds. If a block cannot start (a device with fewer units than the plan's,
#: registers of another compiler, two streams), the launch then ends with an error instead of never.
_PATIENCE = 1 << 26
#: Instructions of a vEU's list beside numbers of kernels.
_WAIT, _STEP = -1, -2
#: Argument of a call: a number as text, or a buffer with the C type of its elements.
Argument = str | tuple[str, BufferSpec]


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
    body = _persistent(made, program, dynamic, bounds) if bounds else _block_ranges(made, dynamic)
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


@dataclass(frozen=True)
class _Step:
    """A phase of an operator: a launch of its own kernel, here a call of a device function.

    Parameters
    ----------
    name : str
        Name of the device function; equal kernels are one.
    """

    phase: tuple[str, int]
    launch: Launch
    function: DeviceFunction
    name: str
    arguments: tuple[Argument, ...]

    @property
    def buffers(self) -> list[tuple[str, BufferSpec]]:
        """C type and specification of each buffer among the arguments."""
        return [a for a in self.arguments if not isinstance(a, str)]


@dataclass(frozen=True)
class _Made:
    """The parts of a fused kernel.

    Parameters
    ----------
    steps : tuple of _Step
        Phases in the program's order.
    parameters : tuple of BufferSpec
        Tensors that others see.
    types : mapping of str to str
        C type of each buffer's elements.
    offsets : mapping of str to int
        Byte in the workspace of each buffer that only this kernel sees.
    """

    name: str
    dialect: Dialect
    threads: int
    head: str
    steps: tuple[_Step, ...]
    parameters: tuple[BufferSpec, ...]
    types: Mapping[str, str]
    offsets: Mapping[str, int]
    workspace: int
    waits: bool

    @property
    def arena(self) -> int:
        """Bytes of shared memory, which the rTasks of a block use one after the other."""
        return max((s.function.shared_bytes for s in self.steps), default=0)

    @property
    def interface(self) -> tuple[tuple[BufferSpec, ...], tuple[BufferSpec, ...]]:
        """(parameters, memory that only this kernel sees): together, in this order, the kernel's parameters."""
        own = (BufferSpec(f"{self.name}.workspace", (self.workspace // 4,), "float32"),) if self.offsets else ()
        return self.parameters, own


def _read(
    name: str, program: TaskProgram, code: Mapping[str, OperatorCode], kept: Collection[str], dialect: Dialect
) -> _Made:  # fmt: skip
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
    return _Made(name, dialect, threads, head, steps, parameters, types, offsets, workspace, waits)


def _steps(
    name: str, program: TaskProgram, code: Mapping[str, OperatorCode], dialect: Dialect, threads: int
) -> Iterator[_Step]:
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
            yield _Step((operator, number), launch, made, text, tuple(arguments))


def _definitions(made: _Made) -> str:
    """Return the device functions; those that are called more than once are not inlined."""
    times = Counter(step.name for step in made.steps)
    texts = {step.name: step.function.text for step in made.steps}
    return "\n".join(
        (t.replace("__forceinline__", "__noinline__", 1) if times[n] > 1 else t).replace("rammer_self", n)
        for n, t in texts.items()
    )


def _signature(made: _Made, launch_bounds: str) -> str:
    memory = made.dialect.memory
    each = [f"{memory}{made.types[b.name]}* b{n}" for n, b in enumerate(made.parameters)]
    parameters = ", ".join([*each, *([f"{memory}float* workspace_"] if made.offsets else [])])
    return f"{made.dialect.kernel.format(threads=launch_bounds)} {made.name}({parameters}) {{\n"


def _workspace(made: _Made, beyond: str = "0") -> str:
    pointer = f"{made.dialect.memory}unsigned char*"
    return f"  {pointer} workspace = ({pointer})workspace_ + {beyond};\n" if made.offsets else ""


def _arena(made: _Made, dynamic: int) -> str:
    declared = made.dialect.dynamic_arena if dynamic else made.dialect.arena.format(size=max(16, made.arena))
    return f"  {declared};\n"


def _argument(made: _Made, argument: Argument) -> str:
    if isinstance(argument, str):
        return argument
    c_type, spec = argument
    pointer = f"({made.dialect.memory}{c_type}*)"
    if spec.name in made.offsets:
        return f"{pointer}(workspace + {made.offsets[spec.name]}u)"
    return f"{pointer}b{next(n for n, b in enumerate(made.parameters) if b.name == spec.name)}"


def _run(made: _Made, number: int, block: str, lane: str = "rammer_t") -> str:
    """Return the call of a step for one block of it."""
    step = made.steps[number]
    threads, blocks = step.launch.block, step.launch.grid
    lanes, own = step.function.lanes, prod(threads)
    thread = f"({lane} < {own}u ? {lane} : {own - 1}u)" if lanes > own else lane
    places = [made.dialect.index + _index(*place) for place in ((thread, threads), (block, blocks))]
    call = ", ".join([*(_argument(made, a) for a in step.arguments), "rammer_arena", *places])
    guard = f"if ({lane} < {lanes}u) " if lanes < made.threads else ""
    return f"{guard}{step.name}({call});"


def _block_ranges(made: _Made, dynamic: int) -> str:
    """Return the source in which blocks of one kernel follow those of another, and none waits."""
    lines, first, own = [], 0, made.dialect.block
    for number, step in enumerate(made.steps):
        last = first + prod(step.launch.grid)
        test = f"if ({own} < {last}u) " if number + 1 < len(made.steps) else ""
        where = f"({own} - {first}u)" if first else own
        lines.append(f"{'else ' if number else ''}{test}{{\n    {_run(made, number, where)}\n  }}")
        first = last
    body = "".join(f"  {line}\n" for line in lines)
    return (f"{made.head}\n{made.dialect.helpers}\n{_definitions(made)}\n{_signature(made, str(made.threads))}"
            f"{_arena(made, dynamic)}{_workspace(made)}  const unsigned rammer_t = {made.dialect.thread};\n"
            f"{body}}}\n")


def _persistent(made: _Made, program: TaskProgram, dynamic: int, bounds: Bounds) -> str:
    """Return the source in which blocks walk their lists."""
    name, used = made.name, program.used
    lists, groups, waits = _lists(program, {step.phase: n for n, step in enumerate(made.steps)})
    cases = "".join(
        f"      case {number}: {_run(made, number, '(unsigned)which', 'rammer_own')} break;\n"
        for number in range(len(made.steps))
    )
    tables = "".join((
        _table(f"{name}_first", lists[0]), _table(f"{name}_list", lists[1]),
        _table(f"{name}_groups", groups), _table(f"{name}_waits", waits),
    ))  # fmt: skip
    return f"""{made.head}
{made.dialect.helpers}
{_definitions(made)}
// How many rTasks of each vEU are over, and how many blocks have ended: 0 before and after a launch.
static __device__ unsigned {name}_steps[{used}];
static __device__ unsigned {name}_ended;
{tables}
{_signature(made, str(bounds))}{_arena(made, dynamic)}  const unsigned rammer_t = threadIdx.x;
  volatile unsigned* steps = {name}_steps;
  for (int at = {name}_first[blockIdx.x]; at < {name}_first[blockIdx.x + 1]; ++at) {{
    const int what = {name}_list[2 * at], which = {name}_list[2 * at + 1];
    if (what == {_WAIT}) {{
      for (int n = {name}_groups[which] + (int)rammer_t; n < {name}_groups[which + 1]; n += {made.threads}) {{
        unsigned polls = 0;
        while (steps[{name}_waits[2 * n]] < (unsigned){name}_waits[2 * n + 1]) {{
          if (++polls == {_PATIENCE}u) __trap();
          rammer_pause();
        }}
      }}
      __threadfence();
      __syncthreads();
      continue;
    }}
    if (what == {_STEP}) {{
      if (rammer_t == 0) {{
        __threadfence();
        steps[blockIdx.x] = (unsigned)which;
      }}
      continue;
    }}
    // Never above 0. That it might be keeps the compiler from making the addresses of all cases before the loop, and
    // spilling them.
    const unsigned never = what < {min(_WAIT, _STEP)};
    const unsigned rammer_own = threadIdx.x + never;
{_workspace(made, "never")}    switch (what) {{
{cases}    }}
    __syncthreads();
  }}
  // Nobody polls any more when the last block gets here.
  if (__syncthreads_or(rammer_t == 0 && atomicInc(&{name}_ended, gridDim.x - 1) == gridDim.x - 1)) {{
    __threadfence();  // what the others wrote there comes before what is written now
    for (unsigned n = rammer_t; n < gridDim.x; n += {made.threads}) steps[n] = 0;
  }}
}}
"""


def _lists(
    program: TaskProgram, number: Mapping[tuple[str, int], int]
) -> tuple[tuple[list[int], list[int]], list[int], list[int]]:
    """Return (starts of the vEUs' lists, the lists), starts of the barriers' waits, the waits as (vEU, rTasks)."""
    prog = program.prog
    ranks = []  # rTasks of a vEU up to each order
    for entries in prog:
        count, mine = 0, []
        for entry in entries:
            count += isinstance(entry, RTask)
            mine.append(count)
        ranks.append(mine)
    numbers: dict[int, int] = {}
    groups, waits = [0], []
    awaited: set[tuple[int, int]] = set()
    for entries in prog:
        for entry in entries:
            if isinstance(entry, BarrierTask) and id(entry) not in numbers:
                numbers[id(entry)] = len(groups) - 1
                for u, order in entry.waits:
                    awaited.add((u, ranks[u][order]))
                    waits += [u, ranks[u][order]]
                groups.append(len(waits) // 2)
    first, flat = [0], []
    for v, entries in enumerate(prog[: program.used]):
        count = 0
        for entry in entries:
            if isinstance(entry, BarrierTask):
                flat += [_WAIT, numbers[id(entry)]]
                continue
            count += 1
            flat += [number[entry.operator, entry.phase], entry.number]
            if (v, count) in awaited:
                flat += [_STEP, count]
        first.append(len(flat) // 2)
    return (first, flat), groups, waits


def _index(linear: str, extents: Sequence[int]) -> str:
    """Return a linear number as a position in three dimensions, x fastest."""
    x, y, z = extents
    if y == z == 1:
        return f"{{{linear}, 0u, 0u}}"
    high = f"{linear} / {x * y}u" if z > 1 else "0u"
    return f"{{{linear} % {x}u, {linear} / {x}u{f' % {y}u' if z > 1 else ''}, {high}}}"


def _table(name: str, values: Sequence[int]) -> str:
    numbers = ", ".join(map(str, values or [0]))
    return f"static __device__ const int {name}[] = {{{numbers}}};\n"
