"""How a recurrence's kernel is cut, chosen by a model: blocks of units, tiles of rows, and how threads share them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..device import DeviceSpec, MemoryLevel
from ..micro_perf.cpu_constants import BARRIER, CACHE_SHARE, INSTRUCTIONS, SERIAL_LAUNCH, TILE_OVERHEAD
from .cell import Recurrence

#: Units of a layer are rounded up to a multiple of this: the lanes of the widest vectors.
WIDEST = 16
#: Multiply-adds in flight that hide their latency, a vector each.
IN_FLIGHT = 8
#: Vector registers that hold no sums: a weight, a state.
OTHER_REGISTERS = 4
#: Most sums of a block, which are computed without a loop: its code stays short.
MOST_SUMS = 64
#: Slots of a vector instruction that the gates of a cell take, a vector of units.
GATE_SLOTS = {"LSTM": 5 * INSTRUCTIONS["exp"] + 10, "GRU": 3 * INSTRUCTIONS["exp"] + 10, "RNN": INSTRUCTIONS["exp"] + 4}
#: Share of the time that threads must save to be taken: they wait for one another, on a machine that is not theirs.
LEAST_GAIN = 0.15


@dataclass(frozen=True)
class Tiles:
    """The tiles of a kernel.

    Parameters
    ----------
    lanes : int
        float32 in a vector.
    vectors : int
        Vectors of units in a block, whose gates are computed together.
    blocks : int
        Blocks of units; the last one may hold units that are none.
    rows : int
        Rows of the batch in a tile.
    registers : int
        Vectors of sums kept at once.
    way : {'serial', 'rows', 'units'}
        One thread; threads that share directions and tiles of rows; threads that share the units of a step.
    arch : str
        Architecture of the CPU, whose instruction waiting threads take.
    """

    lanes: int
    vectors: int
    blocks: int
    rows: int
    registers: int
    way: str
    arch: str = ""

    @property
    def block(self) -> int:
        """Units of a block."""
        return self.lanes * self.vectors

    @property
    def units(self) -> int:
        """Units of all blocks, those that are none too."""
        return self.block * self.blocks

    def __str__(self) -> str:
        shared = {"serial": "one thread", "rows": "threads share rows", "units": "threads share units"}[self.way]
        return f"{self.blocks} blocks of {self.block} units, {self.rows} rows a tile, {shared}"


def units_of(hidden: int) -> int:
    """Return the units of a layer with those that are none.

    Examples
    --------
    >>> units_of(100)
    112
    """
    return -(-hidden // WIDEST) * WIDEST


def plain_tiles(layer: Recurrence) -> Tiles:
    """Return tiles that any CPU can compute: what a model holds until its target is known."""
    return Tiles(WIDEST, 1, units_of(layer.hidden) // WIDEST, min(layer.batch, 4), 12, "serial")


def plan(layer: Recurrence, device: DeviceSpec) -> tuple[Tiles, float]:
    """Return the tiles of the least predicted time on a CPU, and that time in seconds.

    Examples
    --------
    >>> from roller_tvm.device import load_device
    >>> from roller_tvm.recurrences.cell import Cell, activations
    >>> layer = Recurrence(Cell("LSTM", activations("LSTM", 1, [], [], [])), steps=100, batch=1, hidden=128)
    >>> tiles, predicted = plan(layer, load_device("cpu"))
    >>> tiles.units, predicted > 0
    (128, True)
    """
    best: dict[str, tuple[float, Tiles]] = {}
    for tiles in candidates(layer, device):
        found = seconds(layer, tiles, device)
        if tiles.way not in best or found < best[tiles.way][0]:
            best[tiles.way] = found, tiles
    chosen = best["serial"]
    for way in ("rows", "units"):  # rows first: their threads do not wait
        if way in best and best[way][0] < (1 - LEAST_GAIN) * chosen[0]:
            chosen = best[way]
    return chosen[1], chosen[0]


def candidates(layer: Recurrence, device: DeviceSpec) -> Iterator[Tiles]:
    """Yield the tiles whose vectors divide the units, for each way that has work for the threads."""
    lanes = min(device.vector_width, WIDEST)
    registers = max(4, (device.limits.vector_registers or 16) - OTHER_REGISTERS)
    vectors_of_all, gates = units_of(layer.hidden) // lanes, len(layer.cell.gates)
    for vectors in (1, 2, 3, 4, 6, 8):
        if vectors_of_all % vectors:
            continue
        for rows in range(1, min(layer.batch, registers) + 1):
            if rows * vectors > registers or (rows * vectors * gates > MOST_SUMS and rows * vectors > 1):
                continue
            blocks = vectors_of_all // vectors
            yield Tiles(lanes, vectors, blocks, rows, registers, "serial")
            if device.units > 1 and layer.directions * -(-layer.batch // rows) > 1:
                yield Tiles(lanes, vectors, blocks, rows, registers, "rows")
            if device.units > 1 and layer.directions * blocks > 1:
                yield Tiles(lanes, vectors, blocks, rows, registers, "units", device.arch)


def seconds(layer: Recurrence, tiles: Tiles, device: DeviceSpec) -> float:
    """Return the predicted seconds of a layer's steps; the product of its inputs is another kernel."""
    cell, threads = layer.cell, device.units
    gates, row_tiles = len(cell.gates), -(-layer.batch // tiles.rows)
    weights = 4 * gates * layer.hidden * tiles.units  # bytes of a direction's
    block = _block_seconds(layer, tiles, device)
    begin = SERIAL_LAUNCH if tiles.way == "serial" else device.launch_overhead_us * 1e-6
    if tiles.way == "units":
        own = -(-layer.directions * tiles.blocks // threads)
        waits = (2 if cell.two_phases else 1) * BARRIER
        read = _read_seconds(device, weights * layer.directions / threads) * weights / tiles.blocks
        return begin + layer.steps * (waits + own * row_tiles * max(block, read))
    chunks = layer.directions * row_tiles
    own = -(-chunks // threads) if tiles.way == "rows" else chunks
    read = _read_seconds(device, weights) * weights / tiles.blocks
    return begin + layer.steps * own * tiles.blocks * max(block, read)


def _block_seconds(layer: Recurrence, tiles: Tiles, device: DeviceSpec) -> float:
    """Return the seconds of a block's products and gates for a tile of rows, its weights at hand."""
    gates, clock = len(layer.cell.gates), device.clock_ghz * 1e9
    rate = device.peak_gflops["float32"] / (device.units * device.clock_ghz * 2 * tiles.lanes)  # multiply-adds a cycle
    together = max(1, min(gates, tiles.registers // (tiles.rows * tiles.vectors)))
    flying = min(1.0, together * tiles.rows * tiles.vectors / IN_FLIGHT)
    sums = gates * tiles.rows * tiles.vectors
    groups = -(-gates // together)
    loads = gates * tiles.vectors + groups * tiles.rows
    cycles = layer.hidden * max(sums / (rate * flying), loads / 2)
    cycles += GATE_SLOTS[layer.cell.kind] * tiles.rows * tiles.vectors / 2 + groups * TILE_OVERHEAD
    return cycles / clock


def _read_seconds(device: DeviceSpec, held: float) -> float:
    """Return the seconds of a byte of weights that a thread reads anew in each step, of this many in all."""
    level = next((one for one in _near_to_far(device) if held <= CACHE_SHARE * one.capacity_bytes), device.far)
    return device.units / (level.bandwidth_gbps * 1e9)


def _near_to_far(device: DeviceSpec) -> list[MemoryLevel]:
    return [level for level in reversed(device.levels) if level.name != "register"]
