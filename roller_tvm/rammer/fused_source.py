"""Source of a fused kernel: blocks that walk their lists of rTasks, or ranges of blocks of which none waits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from ..codegen.host_code import BufferSpec, Launch
from .cuda_functions import DeviceFunction
from .dialect import Dialect
from .launch_bounds import Bounds
from .rtask import RTask
from .task_program import BarrierTask, TaskProgram

#: Polls after which a wait gives up: a poll goes to the L2 cache and pauses, a few tenths of a microsecond, so that is
#: tens of seconds, while plans take milliseconds. If a block cannot start (a device with fewer units than the plan's,
#: registers of another compiler, two streams), the launch then ends with an error instead of never.
_PATIENCE = 1 << 26
#: Instructions of a vEU's list beside numbers of kernels.
_WAIT, _STEP = -1, -2
#: Argument of a call: a number as text, or a buffer with the C type of its elements.
Argument = str | tuple[str, BufferSpec]


@dataclass(frozen=True)
class Step:
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
class Made:
    """The parts of a fused kernel.

    Parameters
    ----------
    steps : tuple of Step
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
    steps: tuple[Step, ...]
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


def _definitions(made: Made) -> str:
    """Return the device functions; those that are called more than once are not inlined."""
    times = Counter(step.name for step in made.steps)
    texts = {step.name: step.function.text for step in made.steps}
    return "\n".join(
        (t.replace("__forceinline__", "__noinline__", 1) if times[n] > 1 else t).replace("rammer_self", n)
        for n, t in texts.items()
    )


def _signature(made: Made, launch_bounds: str) -> str:
    memory = made.dialect.memory
    each = [f"{memory}{made.types[b.name]}* b{n}" for n, b in enumerate(made.parameters)]
    parameters = ", ".join([*each, *([f"{memory}float* workspace_"] if made.offsets else [])])
    return f"{made.dialect.kernel.format(threads=launch_bounds)} {made.name}({parameters}) {{\n"


def _workspace(made: Made, beyond: str = "0") -> str:
    pointer = f"{made.dialect.memory}unsigned char*"
    return f"  {pointer} workspace = ({pointer})workspace_ + {beyond};\n" if made.offsets else ""


def _arena(made: Made, dynamic: int) -> str:
    declared = made.dialect.dynamic_arena if dynamic else made.dialect.arena.format(size=max(16, made.arena))
    return f"  {declared};\n"


def _argument(made: Made, argument: Argument) -> str:
    if isinstance(argument, str):
        return argument
    c_type, spec = argument
    pointer = f"({made.dialect.memory}{c_type}*)"
    if spec.name in made.offsets:
        return f"{pointer}(workspace + {made.offsets[spec.name]}u)"
    return f"{pointer}b{next(n for n, b in enumerate(made.parameters) if b.name == spec.name)}"


def _run(made: Made, number: int, block: str, lane: str = "rammer_t") -> str:
    """Return the call of a step for one block of it."""
    step = made.steps[number]
    threads, blocks = step.launch.block, step.launch.grid
    lanes, own = step.function.lanes, prod(threads)
    thread = f"({lane} < {own}u ? {lane} : {own - 1}u)" if lanes > own else lane
    places = [made.dialect.index + _index(*place) for place in ((thread, threads), (block, blocks))]
    call = ", ".join([*(_argument(made, a) for a in step.arguments), "rammer_arena", *places])
    guard = f"if ({lane} < {lanes}u) " if lanes < made.threads else ""
    return f"{guard}{step.name}({call});"


def block_ranges(made: Made, dynamic: int) -> str:
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


def persistent(made: Made, program: TaskProgram, dynamic: int, bounds: Bounds) -> str:
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
