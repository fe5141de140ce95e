"""Resources of compiled kernels beside the model's prediction: registers, local and shared memory, occupancy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ...device import DeviceSpec
from ...micro_perf.estimate import ProgramEstimate
from ...micro_perf.occupancy import occupancy
from .words import table

if TYPE_CHECKING:
    from ...codegen.resources import KernelResources


@dataclass(frozen=True)
class ResourcesCompared:
    """A kernel's resources, predicted and as compiled.

    Attributes
    ----------
    threads : int
        Threads of a block.
    registers, shared_bytes, occupancy : (int, int)
        Predicted and compiled: registers of a thread; shared memory of a block, bytes; blocks resident on a unit.
    limit : str
        Resource that limits the occupancy of the compiled kernel.
    local_bytes : int
        Local memory of a thread as compiled, bytes: spilled registers and arrays. The model predicts 0.
    """

    threads: int
    registers: tuple[int, int]
    shared_bytes: tuple[int, int]
    occupancy: tuple[int, int]
    limit: str
    local_bytes: int

    @classmethod
    def of(cls, estimate: ProgramEstimate, kernel: KernelResources, device: DeviceSpec) -> ResourcesCompared:
        """Compare a program's estimate with its compiled kernel.

        Examples
        --------
        >>> from roller_tvm.device import load_device
        >>> from roller_tvm.codegen.resources import KernelResources
        >>> from roller_tvm.ir.operators import matmul
        >>> from roller_tvm.planner import construct
        >>> a100 = load_device("a100")
        >>> (program,) = construct(matmul(m=512, n=512, k=512), a100, 1).best.estimate.programs
        >>> kernel = KernelResources(registers=program.registers, local_bytes=0, shared_bytes=program.shared_bytes)
        >>> ResourcesCompared.of(program, kernel, a100).occupancy
        (12, 12)
        """
        return cls.from_numbers(
            device, estimate.threads, estimate.registers, estimate.shared_bytes, kernel.registers, kernel.shared_bytes,
            kernel.local_bytes,
        )  # fmt: skip

    @classmethod
    def from_numbers(
        cls, device: DeviceSpec, threads: int, predicted_registers: int, predicted_shared: int, registers: int,
        shared_bytes: int, local_bytes: int,
    ) -> ResourcesCompared:  # fmt: skip
        """Compare plain numbers, as result files have them."""
        most = device.limits.max_registers_per_thread or predicted_registers
        before, _ = occupancy(device, threads, min(predicted_registers, most), predicted_shared)
        after, limit = occupancy(device, threads, registers, shared_bytes)
        return cls(
            threads, (predicted_registers, registers), (predicted_shared, shared_bytes), (before, after), limit,
            local_bytes,
        )  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return asdict(self)


def resource_lines(compared: Sequence[ResourcesCompared], title: str) -> list[str]:
    """Return a table as lines, one kernel per line.

    Examples
    --------
    >>> one = ResourcesCompared(256, (128, 122), (8192, 8192), (2, 2), "registers", 0)
    >>> print("\\n".join(resource_lines([one], "compiled for sm_80")))
    compiled for sm_80: predicted | by the compiler
        kernel  threads   registers  local         shared  blocks a unit  limited by
        1           256  128 |  122    0 B  8192 | 8192 B          2 | 2   registers
    """
    rows = [["kernel", "threads", "registers", "local", "shared", "blocks a unit", "limited by"]]
    for number, one in enumerate(compared, 1):
        rows.append(
            [
                str(number), str(one.threads), f"{one.registers[0]} | {one.registers[1]:4}", f"{one.local_bytes} B",
                f"{one.shared_bytes[0]} | {one.shared_bytes[1]} B", f"{one.occupancy[0]} | {one.occupancy[1]}",
                one.limit,
            ]
        )  # fmt: skip
    return [f"{title}: predicted | by the compiler", *table(rows)]
