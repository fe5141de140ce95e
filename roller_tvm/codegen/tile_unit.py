"""Instructions of a CPU's matrix unit, as statements of TensorIR; or loops that do the same, for CPUs without one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..device.matrix_unit import ASK, SYSTEM_CALL, TILE_STATE
from ..micro_perf.matrix_unit import DEPTH, ROWS
from .flat import loop_of

#: Bytes of a row of a tile; elements of one.
ROW_BYTES = 64
TILE = ROWS * DEPTH
#: Bytes that are stored at once.
_WORD = 8


class TileUnit:
    """Eight tiles: of 16 x 16 numbers of float32, or of 16 x 32 of bfloat16.

    Parameters
    ----------
    tir : module
        Of TVM's statements.
    emulated : bool
        Whether to write loops.
    """

    def __init__(self, tir: Any, emulated: bool) -> None:
        self.tir, self.emulated = tir, emulated
        self.config = tir.decl_buffer([ROW_BYTES // _WORD], "uint64", "config")
        self.fake = [tir.decl_buffer([TILE], "float32", f"tile{n}") for n in range(8)] if emulated else []

    def asked(self) -> list[Any]:
        """Ask the system for the unit; without it the kernel ends in an error, not in a signal."""
        if self.emulated:
            return []
        from tvm import ir

        tir = self.tir
        call = tir.call_extern("int64", "syscall", *(tir.const(n, "int64") for n in (SYSTEM_CALL, ASK, TILE_STATE)))
        told = "this process may not use the CPU's matrix unit; remedy: compile for -mattr=-amx-tile"
        kind, words = (ir.StringImm(text) for text in ("RuntimeError", told))
        return [tir.AssertStmt(call == 0, kind, [words])]

    def configured(self) -> list[Any]:
        """Eight tiles of 16 rows of 64 bytes: the unit's first palette."""
        tir = self.tir
        if self.emulated:
            return [tir.AllocBuffer(buffer) for buffer in self.fake]
        content = bytearray(ROW_BYTES)
        content[0] = 1
        content[16:32:2], content[48:56] = [ROW_BYTES] * 8, [ROWS] * 8
        words = [int.from_bytes(content[at : at + _WORD], "little") for at in range(0, ROW_BYTES, _WORD)]
        stores = [tir.BufferStore(self.config, tir.const(v, "uint64"), [n]) for n, v in enumerate(words)]
        return [tir.AllocBuffer(self.config), *stores, self.call("ldtilecfg", self.address(self.config, 0))]

    def released(self) -> list[Any]:
        return [] if self.emulated else [self.call("tilerelease")]

    def zero(self, tile: int) -> Any:
        if self.emulated:
            cleared = self.tir.const(0.0, "float32")
            return self.loop("n", ROWS * ROWS, lambda n: self.tir.BufferStore(self.fake[tile], cleared, [n]))
        return self.call("tilezero", self.i8(tile))

    def load(self, tile: int, buffer: Any, at: Any, stride: int) -> Any:
        """Load a tile; `stride` is in bytes. Emulated, numbers of bfloat16 become float32."""
        tir = self.tir
        if not self.emulated:
            return self.call("tileloadd64", self.i8(tile), self.address(buffer, at), tir.const(stride, "int64"))
        if str(buffer.dtype) == "float32":
            return self._rows(lambda r, c: tir.BufferStore(
                self.fake[tile], tir.BufferLoad(buffer, [at + r * (stride // 4) + c]), [r * ROWS + c]))  # fmt: skip
        return self.loop("n", TILE, lambda n: tir.BufferStore(self.fake[tile], widened(tir, buffer, at + n), [n]))

    def store(self, tile: int, buffer: Any, at: Any, stride: int) -> Any:
        """Store a tile of float32; `stride` is in bytes."""
        tir = self.tir
        if not self.emulated:
            return self.call("tilestored64", self.i8(tile), self.address(buffer, at), tir.const(stride, "int64"))
        return self._rows(lambda r, c: tir.BufferStore(
            buffer, tir.BufferLoad(self.fake[tile], [r * ROWS + c]), [at + r * (stride // 4) + c]))  # fmt: skip

    def multiply(self, total: int, left: int, right: int) -> Any:
        if not self.emulated:
            return self.call("tdpbf16ps", *map(self.i8, (total, left, right)))
        tir, fake = self.tir, self.fake

        def term(r: Any, c: Any, k: Any) -> Any:
            own = tir.BufferLoad(fake[total], [r * ROWS + c])
            a = tir.BufferLoad(fake[left], [r * DEPTH + k])
            b = tir.BufferLoad(fake[right], [tir.floordiv(k, 2) * DEPTH + c * 2 + tir.floormod(k, 2)])
            return tir.BufferStore(fake[total], own + a * b, [r * ROWS + c])

        return self._rows(lambda r, c: self.loop("k", DEPTH, lambda k: term(r, c, k)))

    def _rows(self, body: Callable[[Any, Any], Any]) -> Any:
        return self.loop("r", ROWS, lambda r: self.loop("c", ROWS, lambda c: body(r, c)))

    def call(self, name: str, *args: Any) -> Any:
        return self.tir.Evaluate(self.tir.call_llvm_intrin("void", f"llvm.x86.{name}", *args))

    def address(self, buffer: Any, at: Any) -> Any:
        return self.tir.address_of(self.tir.BufferLoad(buffer, [at]))

    def i8(self, value: int) -> Any:
        return self.tir.const(value, "int8")

    def loop(self, name: str, extent: int, body: Callable[[Any], Any]) -> Any:
        return loop_of(self.tir, name, extent, body, dtype="int64")


def widened(tir: Any, buffer: Any, at: Any) -> Any:
    """Return a number of bfloat16, which a buffer has as bits, as float32."""
    bits = tir.Cast("uint32", tir.BufferLoad(buffer, [at])) << tir.const(16, "uint32")
    return tir.reinterpret("float32", bits)
