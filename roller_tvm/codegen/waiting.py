"""Threads of a parallel region that wait for one another, by a number for each part of the work.

TVM's own barrier gives the core away whenever a thread has to wait. Where another process wants this core too, it has
it for milliseconds then, at each of a thousand steps. Here a thread spins first. The functions are text in LLVM's
language that the kernel brings along, because TensorIR has no atomic numbers. TVM 0.17 keeps none but those that stand
in the place of their calls.
"""

from __future__ import annotations

from typing import Any

from ..te.numbering import PARALLEL
from .dialect import Dialect
from .flat import called, kind_of, loop_of, statements

#: Architecture of a CPU -> its instruction for a loop that waits.
PAUSES = {"x86-64": "pause", "aarch64": "isb"}
#: Looks at a number before a thread gives its core away: some 20 us on Intel's CPUs, far more than threads differ.
LOOKS = 400
#: Names of the functions.
ARRIVED, WAIT = "roller_arrived", "roller_wait"
#: Key of a region in which all threads run: its loops are shared, the rest each thread does.
REGION = "pragma_parallel_launch_point"

_TEXT = """
declare i32 @sched_yield()
define linkonce_odr i32 @roller_arrived(INTS %flag, i32 %number) alwaysinline nounwind {
  store atomic i32 %number, INTS %flag release, align 4
  ret i32 0
}
define linkonce_odr i32 @roller_wait(INTS %flags, i32 %count, i32 %number) alwaysinline nounwind {
begin:
  br label %one
one:
  %n = phi i32 [ 0, %begin ], [ %next, %reached ]
  %flag = getelementptr i32, INTS %flags, i32 %n
  br label %look
look:
  %looks = phi i32 [ 0, %one ], [ %more, %pause ], [ 0, %yield ]
  %seen = load atomic i32, INTS %flag acquire, align 4
  %behind = icmp slt i32 %seen, %number
  br i1 %behind, label %pause, label %reached
pause:
  PAUSE
  %more = add i32 %looks, 1
  %long = icmp sge i32 %more, LOOKS
  br i1 %long, label %yield, label %look
yield:
  %done = call i32 @sched_yield()
  br label %look
reached:
  %next = add i32 %n, 1
  %all = icmp sge i32 %next, %count
  br i1 %all, label %end, label %one
end:
  ret i32 0
}
"""


class Waiting:
    """The numbers of parts of the work, in a buffer: a part's number grows when a thread is done with it.

    Parameters
    ----------
    dialect : Dialect
    parts : int
        Parts of the work, each done by one thread before it waits.
    arch : str
        Architecture of the CPU.
    """

    def __init__(self, dialect: Dialect, parts: int, arch: str) -> None:
        self.dialect, self.parts, self.arch = dialect, parts, arch
        self.flags = dialect.tir.decl_buffer((parts,), "int32", "arrived")

    def around(self, region: Any) -> Any:
        """Return a region with the numbers, which are 0 at first, and the functions."""
        tir = self.dialect.tir
        zero = tir.const(0, "int32")
        cleared = loop_of(tir, "part", self.parts, lambda part: tir.BufferStore(self.flags, zero, [part]))
        body = self.dialect.allocated(self.flags, tir.SeqStmt([cleared, region]))
        return tir.AttrStmt(zero, "pragma_import_llvm", self.dialect.text(self._text()), body)

    def arrived(self, part: Any, number: Any) -> Any:
        """Return the statement after a part of the work; `number` is greater than before."""
        return self._called(ARRIVED, part, number)

    def wait(self, number: Any) -> Any:
        """Return the statement that waits until all parts have this number."""
        zero = self.dialect.tir.const(0, "int32")
        return self._called(WAIT, zero, self.dialect.tir.const(self.parts, "int32"), number)

    def _called(self, name: str, part: Any, *arguments: Any) -> Any:
        tir = self.dialect.tir
        address = tir.address_of(tir.BufferLoad(self.flags, [part]))
        return tir.Evaluate(tir.call_extern("int32", name, address, *arguments))

    def _text(self) -> str:
        pause = PAUSES.get(self.arch, "")
        told = {"INTS": self.dialect.ints_pointer, "LOOKS": str(LOOKS),
                "PAUSE": f'call void asm sideeffect "{pause}", ""()' if pause else ""}  # fmt: skip
        text = _TEXT
        for word, value in told.items():
            text = text.replace(word, value)
        return text


def function_of(statement: Any) -> str:
    """Return which of the two functions a statement calls; '' if it calls neither."""
    if kind_of(statement) != "Evaluate" or called(statement.value) != "call_extern":
        return ""
    name = str(getattr(statement.value.args[0], "value", ""))
    return name if name in (ARRIVED, WAIT) else ""


def all_wait(region: Any) -> bool:
    """Return whether threads wait behind each shared loop of a region for the number that its parts get."""
    shared = [node for node in statements(region) if kind_of(node) == "For" and int(node.kind) == PARALLEL]
    waited = 0
    for node in statements(region):
        parts = list(node.seq) if kind_of(node) == "SeqStmt" else []
        for loop, after in zip(parts, parts[1:], strict=False):
            if kind_of(loop) == "For" and int(loop.kind) == PARALLEL and function_of(after) == WAIT:
                last = list(loop.body.seq)[-1] if kind_of(loop.body) == "SeqStmt" else loop.body
                same = function_of(last) == ARRIVED and str(last.value.args[-1]) == str(after.value.args[-1])
                waited += same
    return waited == len(shared)
