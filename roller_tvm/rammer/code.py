"""One CUDA kernel per plan: thread blocks as vEUs that walk their lists of rTasks, or ranges of blocks side by side.

Barriers are step counters: a vEU writes how many of its rTasks are over, others poll for it. The last block to end
resets them, so that the kernel may be launched again and again, also from a CUDA graph, but not twice at the same time.
All vEUs that wait are on the device together: no more are launched than are resident at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from ..codegen import KernelResources
from ..codegen.cuda_text import dtype_bytes
from ..codegen.host_code import BufferSpec, HostCode, Launch
from ..device import DeviceSpec
from ..micro_perf.occupancy import occupancy
from .bounds import Bounds, bounds_of
from .device_code import CannotFuse, DeviceFunction
from .dialect import CUDA, Dialect
from .operators import RKernel
from .program import BarrierTask, RTask, TaskProgram

#: Bytes of a pointer, and of a kernel's parameters by any compiler (CUDA C++ Programming Guide, function parameters:
#: 4 KB; more from CUDA 12.1 and sm_70 on).
_POINTER, _PARAMETERS = 8, 4096
#: Alignment of buffers in the workspace: a line of the caches; the driver's own buffers have at least that.
_LINE = 256
#: Polls after which a wait gives up: a poll goes to the L2 cache and pauses, a few tenths of a microsecond, so that is
#: tens of seconds, while plans take milliseconds. If a block cannot start (a device with fewer units than the plan's,
#: registers of another compiler, two streams), the launch then ends with an error instead of never.
_PATIENCE = 1 << 26
#: Instructions of a vEU's list beside numbers of kernels.
_WAIT, _STEP = -1, -2
#: Argument of a call: a number as text, or a buffer by its type and name.
Argument = str | tuple[str, str]


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
    source : str
    host : HostCode
        One launch. Its parameters are the tensors of the graph that others see, by their names in the graph.
    shared_bytes : int
        Shared memory of a block.
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
    name : str
        Name of the kernel.
    program : TaskProgram
    code : mapping
        Operator -> its kernels.
    spec : DeviceSpec
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
    made = _Made(name, program, code, kept, dialect)
    arena = max((f.shared_bytes for f in made.functions), default=0)
    # Blocks of a plain kernel run in any order, so nothing may be both read and written.
    waits = program.waits or bool(made.read & made.written)
    resident, bounds = 0, None
    refuse_waits(name, waits, dialect)
    if waits:
        resident = -(-program.used // spec.units)
        fits, limit = occupancy(spec, made.threads, program.device.registers, arena)
        if fits < resident:
            raise CannotFuse(f"its {program.used} vEUs wait for one another, and a unit of {spec.name} has room for "
                             f"{fits} of {resident} ({limit})", where=f"plan '{name}'",
                             remedy="plan for the card that it runs on, with the kernels' own shared memory")
        bounds = bounds_of(spec, made.threads, resident)[0]
    static = spec.limits.shared_per_block_bytes
    dynamic = arena if dialect.dynamic_arena and (made.dynamic or (static is not None and arena > static)) else 0
    body = made.persistent(arena, dynamic, bounds) if bounds else made.side_by_side(arena, dynamic)
    grid = program.used if waits else sum(prod(launch.grid) for launch in made.launches)
    parameters, between = made.interface()
    arguments = tuple(spec.name for spec in (*parameters, *between))
    launch = Launch(name, arguments, (grid, 1, 1), (made.threads, 1, 1), dynamic)
    return FusedKernel(body, HostCode(parameters, between, (launch,)), arena, resident, bounds)


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


class _Made:
    """The parts of a fused kernel."""

    def __init__(
        self, name: str, program: TaskProgram, code: Mapping[str, OperatorCode], kept: Collection[str],
        dialect: Dialect,
    ) -> None:  # fmt: skip
        self.name, self.program, self.kept, self.dialect = name, program, kept, dialect
        self.launches: list[Launch] = []
        self.functions: list[DeviceFunction] = []
        self.calls: list[tuple[str, list[Argument]]] = []  # function and arguments, by phase
        self.number: dict[tuple[str, int], int] = {}
        self.buffers: dict[str, BufferSpec] = {}
        self.types: dict[str, str] = {}
        self.read: set[str] = set()
        self.written: set[str] = set()
        self.own: set[str] = set()  # between an operator's launches
        self.workspace = 0  # bytes
        widths = {prod(launch.block) for o, _ in program.kernels for launch in code[o].host.launches}
        self.threads = max(widths) if len(widths) == 1 else -(-max(widths) // 32) * 32
        heads: dict[str, None] = {}
        texts: dict[str, str] = {}  # equal kernels are one function
        for operator, kernel in program.kernels:
            own = code[operator]
            if len(own.host.launches) != len(kernel.phases):
                raise CannotFuse(f"{len(own.host.launches)} kernels for {len(kernel.phases)} phases of its plan",
                                 where=f"operator '{operator}'", remedy="give the code generated for its rKernel")
            heads |= dict.fromkeys(dialect.preamble(own.source))
            named = own.named(operator)
            for phase, launch in enumerate(own.host.launches):
                if prod(launch.grid) != kernel.phases[phase].tasks:
                    raise CannotFuse(f"{prod(launch.grid)} blocks for {kernel.phases[phase].tasks} rTasks",
                                     where=f"operator '{operator}', kernel '{launch.kernel}'",
                                     remedy="give the code generated for its rKernel")
                made = dialect.read(own.source, launch.kernel, launch.block, launch.grid, self.threads,
                                    launch.dynamic_shared)
                text = texts.setdefault(made.text, f"{name}_{len(texts)}")
                self.number[operator, phase] = len(self.launches)
                self.launches.append(launch)
                self.functions.append(made)
                self.calls.append((text, self._arguments(made, launch, named)))
            split = len(own.buffers) - own.outputs
            self.read |= set(own.buffers[:split])
            self.written |= set(own.buffers[split:])
            self.own |= {named[b.name].name for b in own.host.between}
        self.head = "\n\n".join(heads)  # `preamble` takes it apart at blank lines
        times = Counter(text for text, _ in self.calls)
        self.definitions = "\n".join(
            (t.replace("__forceinline__", "__noinline__", 1) if times[n] > 1 else t).replace("rammer_self", n)
            for t, n in texts.items()
        )
        internal = self.own | {n for n in self.written if n in self.read and n not in self.kept}
        self.parameters = [b for n, b in self.buffers.items() if n not in internal]
        self.number_of = {b.name: n for n, b in enumerate(self.parameters)}
        self.offsets: dict[str, int] = {}  # of what only this kernel sees, in its workspace
        for n, b in self.buffers.items():
            if n in internal:
                size = prod(b.shape) * dtype_bytes(b.dtype)
                self.offsets[n] = self.workspace
                self.workspace += -(-size // _LINE) * _LINE
        taken = _POINTER * (len(self.parameters) + bool(self.offsets))
        if taken > _PARAMETERS:
            raise CannotFuse(f"its {len(self.parameters)} tensors take {taken} B of parameters, a kernel has "
                             f"{_PARAMETERS}", where=f"plan '{name}'", remedy="fuse fewer operators at a time")
        self.dynamic = any(launch.dynamic_shared for launch in self.launches)

    def _arguments(self, made: DeviceFunction, launch: Launch, named: Mapping[str, BufferSpec]) -> list[Argument]:
        result: list[Argument] = []
        for parameter, argument in zip(made.parameters, launch.arguments, strict=True):
            if not isinstance(argument, str):
                result.append(str(argument))
                continue
            spec = named[argument]
            self.buffers.setdefault(spec.name, spec)
            self.types.setdefault(spec.name, parameter.c_type)
            result.append((parameter.c_type, spec.name))
        return result

    def _argument(self, argument: Argument) -> str:
        if isinstance(argument, str):
            return argument
        c_type, name = argument
        pointer = f"({self.dialect.memory}{c_type}*)"
        if name in self.offsets:
            return f"{pointer}(workspace + {self.offsets[name]}u)"
        return f"{pointer}b{self.number_of[name]}"

    def interface(self) -> tuple[tuple[BufferSpec, ...], tuple[BufferSpec, ...]]:
        """Return (parameters, memory that only this kernel sees): together, in this order, the kernel's parameters."""
        own = (BufferSpec(f"{self.name}.workspace", (self.workspace // 4,), "float32"),) if self.offsets else ()
        return tuple(self.parameters), own

    def _signature(self, launch_bounds: str) -> str:
        memory = self.dialect.memory
        each = [f"{memory}{self.types[b.name]}* b{n}" for n, b in enumerate(self.parameters)]
        parameters = ", ".join([*each, *([f"{memory}float* workspace_"] if self.offsets else [])])
        return f"{self.dialect.kernel.format(threads=launch_bounds)} {self.name}({parameters}) {{\n"

    def _workspace(self, beyond: str = "0") -> str:
        pointer = f"{self.dialect.memory}unsigned char*"
        return f"  {pointer} workspace = ({pointer})workspace_ + {beyond};\n" if self.offsets else ""

    def _arena(self, arena: int, dynamic: int) -> str:
        declared = self.dialect.dynamic_arena if dynamic else self.dialect.arena.format(size=max(16, arena))
        return f"  {declared};\n"

    def _run(self, number: int, block: str, lane: str = "rammer_t") -> str:
        text, arguments = self.calls[number]
        threads, blocks = self.launches[number].block, self.launches[number].grid
        lanes, own = self.functions[number].lanes, prod(threads)
        thread = f"({lane} < {own}u ? {lane} : {own - 1}u)" if lanes > own else lane
        places = [self.dialect.index + _index(*place) for place in ((thread, threads), (block, blocks))]
        where = ["rammer_arena", *places]
        call = ", ".join([*map(self._argument, arguments), *where])
        guard = f"if ({lane} < {lanes}u) " if lanes < self.threads else ""
        return f"{guard}{text}({call});"

    def side_by_side(self, arena: int, dynamic: int) -> str:
        """Return the source in which blocks of one kernel follow those of another, and none waits."""
        lines, first, own = [], 0, self.dialect.block
        for number, launch in enumerate(self.launches):
            last = first + prod(launch.grid)
            test = f"if ({own} < {last}u) " if number + 1 < len(self.launches) else ""
            where = f"({own} - {first}u)" if first else own
            lines.append(f"{'else ' if number else ''}{test}{{\n    {self._run(number, where)}\n  }}")
            first = last
        body = "".join(f"  {line}\n" for line in lines)
        return (f"{self.head}\n{self.dialect.helpers}\n{self.definitions}\n{self._signature(str(self.threads))}"
                f"{self._arena(arena, dynamic)}{self._workspace()}  const unsigned rammer_t = {self.dialect.thread};\n"
                f"{body}}}\n")

    def persistent(self, arena: int, dynamic: int, bounds: Bounds) -> str:
        """Return the source in which blocks walk their lists."""
        name, used = self.name, self.program.used
        lists, groups, waits = self._lists()
        cases = "".join(
            f"      case {number}: {self._run(number, '(unsigned)which', 'rammer_own')} break;\n"
            for number in range(len(self.calls))
        )
        tables = "".join((
            _table(f"{name}_first", lists[0]), _table(f"{name}_list", lists[1]),
            _table(f"{name}_groups", groups), _table(f"{name}_waits", waits),
        ))  # fmt: skip
        return f"""{self.head}
{self.dialect.helpers}
{self.definitions}
// How many rTasks of each vEU are over, and how many blocks have ended: 0 before and after a launch.
static __device__ unsigned {name}_steps[{used}];
static __device__ unsigned {name}_ended;
{tables}
{self._signature(str(bounds))}{self._arena(arena, dynamic)}  const unsigned rammer_t = threadIdx.x;
  volatile unsigned* steps = {name}_steps;
  for (int at = {name}_first[blockIdx.x]; at < {name}_first[blockIdx.x + 1]; ++at) {{
    const int what = {name}_list[2 * at], which = {name}_list[2 * at + 1];
    if (what == {_WAIT}) {{
      for (int n = {name}_groups[which] + (int)rammer_t; n < {name}_groups[which + 1]; n += {self.threads}) {{
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
{self._workspace("never")}    switch (what) {{
{cases}    }}
    __syncthreads();
  }}
  // Nobody polls any more when the last block gets here.
  if (__syncthreads_or(rammer_t == 0 && atomicInc(&{name}_ended, gridDim.x - 1) == gridDim.x - 1)) {{
    __threadfence();  // what the others wrote there comes before what is written now
    for (unsigned n = rammer_t; n < gridDim.x; n += {self.threads}) steps[n] = 0;
  }}
}}
"""

    def _lists(self) -> tuple[tuple[list[int], list[int]], list[int], list[int]]:
        """Return (starts of the vEUs' lists, the lists), starts of the barriers' waits, the waits as (vEU, rTasks)."""
        prog = self.program.prog
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
        for v, entries in enumerate(prog[: self.program.used]):
            count = 0
            for entry in entries:
                if isinstance(entry, BarrierTask):
                    flat += [_WAIT, numbers[id(entry)]]
                    continue
                count += 1
                flat += [self.number[entry.operator, entry.phase], entry.number]
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
