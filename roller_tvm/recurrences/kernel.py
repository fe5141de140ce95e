"""The kernel of a recurrence: one loop over the steps, the products of a step with packed weights, its gates.

Everything that does not depend on the step before (the products with the inputs) is computed before it, for all steps
at once. What is left of a step is a product of the state with weights that stay in a cache, and its gates, in
registers. Threads share the units of a step and wait for one another (`codegen.waiting`), or go through all steps on
their own, each with rows and a direction of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ..codegen.dialect import Dialect
from ..codegen.flat import in_order, loop_of
from ..codegen.waiting import REGION, Waiting
from ..te.numbering import PARALLEL
from .activations import activated, clipped
from .cell import Recurrence
from .tiles import Tiles


def kernel(layer: Recurrence, tiles: Tiles, dialect: Dialect, tensors: dict[str, Any]) -> Any:
    """Return the statement that computes a layer.

    Parameters
    ----------
    layer : Recurrence
    tiles : Tiles
        Block of units, rows of a tile, and how threads share the work.
    dialect : Dialect
        Of the TVM at hand.
    tensors : dict
        Name -> buffer, of the shapes that `tensor_shapes` tells.
    """
    return _Maker(layer, tiles, dialect, tensors).made()


def tensor_shapes(layer: Recurrence, tiles: Tiles) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]:
    """Return the shapes of what a kernel reads and writes, by name.

    ``sums``: the inputs' products and the biases; ``weights``: those of the state, in blocks (`weights.in_blocks`);
    ``bias``: of a GRU's state, where its reset gate comes behind it; ``peepholes``; ``h0``, ``c0``; ``lengths``.
    ``y``: the outputs of all steps; ``h``, ``c``: the last state; ``states``: those of two steps, in turns;
    ``reset``: a GRU's state behind its reset gate.
    """
    d, n, t, units = layer.directions, layer.batch, layer.steps, tiles.units
    gates, cell, state = len(layer.cell.gates), layer.cell, (d, n, tiles.units)
    reads: dict[str, tuple[int, ...]] = {
        "sums": (t, n, d, gates, units),
        "weights": (d, layer.hidden * gates * units),
        "h0": state,
    }
    if cell.kind == "LSTM":
        reads["c0"] = state
    if cell.kind == "GRU" and cell.linear_before_reset:
        reads["bias"] = (d, units)
    if cell.peepholes:
        reads["peepholes"] = (d, 3, units)
    if layer.lengths:
        reads["lengths"] = (n,)
    writes = {"y": (t, n, d, units) if layer.rows_first else (t, *state), "h": state}
    if cell.kind == "LSTM":
        writes["c"] = state
    writes["states"] = (2, *state)
    if cell.two_phases:
        writes["reset"] = state
    return reads, writes


class _Maker:
    """Makes the statement."""

    def __init__(self, layer: Recurrence, tiles: Tiles, dialect: Dialect, tensors: dict[str, Any]) -> None:
        self.layer, self.tiles, self.dialect, self.tensors = layer, tiles, dialect, tensors
        self.tir, self.cell = dialect.tir, layer.cell
        self.lanes = f"float32x{tiles.lanes}"

    def made(self) -> Any:
        """Return the whole statement."""
        layer, tiles = self.layer, self.tiles
        blocks, whole, rest = tiles.blocks, *divmod(layer.batch, tiles.rows)
        if tiles.way == "units":
            return self._by_units(blocks)
        tiles_of_rows = whole + bool(rest)

        def chunk(at: Any) -> Any:
            """Return all steps of a tile of rows of a direction."""
            d, tile = at // tiles_of_rows, at % tiles_of_rows
            return self._over_rows(d, tile, whole, rest)

        return self._loop("chunk", layer.directions * tiles_of_rows, chunk, parallel=tiles.way == "rows")

    def _over_rows(self, d: Any, tile: Any, whole: int, rest: int) -> Any:
        """Return all steps of one tile of rows, the last of which may have fewer."""
        def steps(rows: int) -> Any:
            n = tile * self.tiles.rows
            first = self._loop("b", self.tiles.blocks, lambda b: self._start(d, b, n, rows))

            def step(s: Any) -> Any:
                def over_blocks(phase: Callable[..., Any]) -> Any:
                    return self._loop("b", self.tiles.blocks, lambda b: phase(d, b, s, n, rows))

                return self._sequence([over_blocks(phase) for phase in self._phases()])

            return self._sequence([first, self._loop("step", self.layer.steps, step)])

        if not rest:
            return steps(self.tiles.rows)
        if not whole:
            return steps(rest)
        return self.tir.IfThenElse(tile < whole, steps(self.tiles.rows), steps(rest))

    def _by_units(self, blocks: int) -> Any:
        """Return steps whose units threads share; they wait for one another after each phase."""
        layer, rows = self.layer, self.tiles.rows
        whole, rest = divmod(layer.batch, rows)
        chunks, phases = layer.directions * blocks, self._phases()
        waiting = Waiting(self.dialect, chunks, self.tiles.arch)

        def phase(number: Any, body: Callable[[Any, Any, Any, int], Any]) -> Any:
            def chunk(at: Any) -> Any:
                d, b = at // blocks, at % blocks
                parts = [self._loop("tile", whole, lambda tile: body(d, b, tile * rows, rows))] if whole else []
                parts += [body(d, b, self._int(whole * rows), rest)] if rest else []
                return self._sequence([*parts, waiting.arrived(at, number)])

            return self._sequence([self._loop("chunk", chunks, chunk, parallel=True), waiting.wait(number)])

        def step(s: Any) -> Any:
            def of_step(place: int, one: Callable[..., Any]) -> Any:
                number = s * len(phases) + (place + 2)  # the copies of the first state are number 1
                return phase(number, lambda d, b, n, rows: one(d, b, s, n, rows))

            return self._sequence([of_step(place, one) for place, one in enumerate(phases)])

        body = self._sequence([phase(self._int(1), self._start), self._loop("step", layer.steps, step)])
        return waiting.around(self._attribute(REGION, body))

    def _start(self, d: Any, b: Any, n: Any, rows: int) -> Any:
        """Return the copies of the first state."""
        made = []
        for _, _, at in self._places(d, b, n, rows):
            made.append(self._store("states", [self._int(0), *at], self._load("h0", at)))
            if self.cell.kind == "LSTM":
                made.append(self._store("c", at, self._load("c0", at)))
        return self._sequence(made)

    def _places(self, d: Any, b: Any, n: Any, rows: int) -> Iterator[tuple[int, int, list[Any]]]:
        """Yield row, vector and indices of each vector of a block of units and a tile of rows."""
        for row in range(rows):
            for v in range(self.tiles.vectors):
                yield row, v, [d, n + row, self._lane(b, v)]

    def _phases(self) -> list[Callable[..., Any]]:
        """Return the phases of a step: functions of direction, block of units, step, first row and rows."""
        if self.cell.two_phases:
            return [self._reset_phase, self._second_phase]
        return [self._whole_phase]

    # Phases -----------------------------------------------------------------------------------------------

    def _whole_phase(self, d: Any, b: Any, s: Any, n: Any, rows: int) -> Any:
        """Return all gates of a block of units, and its new state."""
        gates = range(len(self.cell.gates))
        return self._products(d, b, s, n, rows, [*gates], "states", lambda sums: self._finish(d, b, s, n, rows, sums))

    def _reset_phase(self, d: Any, b: Any, s: Any, n: Any, rows: int) -> Any:
        """GRU: return the gates z and r; the state behind r. z waits where the new state will stand."""
        def finish(sums: dict[tuple[int, int, int], Any]) -> list[Any]:
            made = []
            for row, v, at in self._places(d, b, n, rows):
                old = self._state(s, at)
                z, r = (self._gate(d, 0, sums[g, row, v]) for g in (0, 1))
                made.append(self._store("reset", at, r * old))
                made.append(self._store("states", [(s + 1) % 2, *at], z))
            return made

        return self._products(d, b, s, n, rows, [0, 1], "states", finish)

    def _second_phase(self, d: Any, b: Any, s: Any, n: Any, rows: int) -> Any:
        """GRU: return the new state, of the product with the state behind r."""
        def finish(sums: dict[tuple[int, int, int], Any]) -> list[Any]:
            made = []
            for row, v, at in self._places(d, b, n, rows):
                z, new = self._load("states", [(s + 1) % 2, *at]), self._gate(d, 1, sums[2, row, v])
                made += self._blended(d, s, n, row, at, z, new)
            return made

        return self._products(d, b, s, n, rows, [2], "reset", finish)

    def _finish(self, d: Any, b: Any, s: Any, n: Any, rows: int, sums: dict[tuple[int, int, int], Any]) -> list[Any]:
        """Return the stores of a block's new state, given the sums of its gates."""
        made = []
        for row, v, at in self._places(d, b, n, rows):
            own = [sums[g, row, v] for g in range(len(self.cell.gates))]
            if self.cell.kind == "RNN":
                made += self._new_state(d, s, n, row, at, self._gate(d, 0, own[0]))
            elif self.cell.kind == "GRU":
                made += self._gru(d, s, n, row, at, own)
            else:
                made += self._lstm(d, s, n, row, at, own)
        return made

    def _gru(self, d: Any, s: Any, n: Any, row: int, at: list[Any], own: list[Any]) -> list[Any]:
        x = self._load("sums", self._sums_at(d, s, n, row, 2, at[-1]))
        z, r = self._gate(d, 0, own[0]), self._gate(d, 0, own[1])
        return self._blended(d, s, n, row, at, z, self._gate(d, 1, x + r * own[2]))

    def _blended(self, d: Any, s: Any, n: Any, row: int, at: list[Any], gate: Any, new: Any) -> list[Any]:
        """GRU: return the stores of the new state, between the old one and `new` as gate z has it."""
        def stores(z: Any) -> list[Any]:
            return self._new_state(d, s, n, row, at, (self._like(1.0) - z) * new + z * self._state(s, at))

        return self._named(gate, stores)

    def _lstm(self, d: Any, s: Any, n: Any, row: int, at: list[Any], own: list[Any]) -> list[Any]:
        i, o, f, c = own
        old = self._load("c", at)
        if self.cell.peepholes:
            i, f = (x + self._load("peepholes", [d, self._int(p), at[-1]]) * old for x, p in ((i, 0), (f, 2)))
        i = self._gate(d, 0, i)

        def with_gate(i: Any) -> list[Any]:
            forget = self._like(1.0) - i if self.cell.input_forget else self._gate(d, 0, f)
            return self._named(forget * old + i * self._gate(d, 1, c), with_cell)

        def with_cell(new: Any) -> list[Any]:
            out = o + self._load("peepholes", [d, self._int(1), at[-1]]) * new if self.cell.peepholes else o
            value = self._gate(d, 0, out) * self._activation(d, 2, new)
            kept = [self._store("c", at, new)]
            return self._new_state(d, s, n, row, at, value, kept)

        return self._named(i, with_gate)

    def _new_state(
        self, d: Any, s: Any, n: Any, row: int, at: list[Any], value: Any, kept: Sequence[Any] = ()
    ) -> list[Any]:
        """Return the stores of a new state; behind a row's own length the old one stays, and the output is 0."""
        t = self._time(d, s)
        place = [t, n + row, d, at[-1]] if self.layer.rows_first else [t, *at]

        def stores(value: Any) -> list[Any]:
            return [
                self._store("states", [(s + 1) % 2, *at], value), self._store("y", place, value),
                self._store("h", at, value), *kept,
            ]  # fmt: skip

        made = self._named(value, stores)
        if not self.layer.lengths:
            return made
        within = t < self.tir.BufferLoad(self.tensors["lengths"], [n + row])
        old = self._state(s, at)
        other = [
            self._store("states", [(s + 1) % 2, *at], old), self._store("y", place, self._like(0.0)),
            self._store("h", at, old),
        ]  # fmt: skip
        return [self.tir.IfThenElse(within, self._sequence(made), self._sequence(other))]

    def _products(
        self, d: Any, b: Any, s: Any, n: Any, rows: int, gates: Sequence[int], state: str,
        finish: Callable[[dict[tuple[int, int, int], Any]], list[Any]],
    ) -> Any:  # fmt: skip
        """Return the sums of some gates over the state, in registers, and what is made of them."""
        tir, vectors = self.tir, self.tiles.vectors
        places = [(g, row, v) for g in gates for row in range(rows) for v in range(vectors)]
        sums = {at: self._register("sum_{}_{}_{}".format(*at)) for at in places}
        start = [self._set(sums[g, row, v], self._first(d, s, n, row, g, self._lane(b, v))) for g, row, v in places]
        made: list[Any] = [*start]
        for some in self._groups(gates, rows):
            def over(k: Any, some: Sequence[int] = some) -> Any:
                stores = []
                for g in some:
                    for v in range(vectors):
                        at = ((b * self.layer.hidden + k) * len(self.cell.gates) + g) * self.tiles.block
                        weight = self._load("weights", [d, self._vector(at + v * self.tiles.lanes)])
                        for row in range(rows):
                            index = [d, n + row, k]
                            if state == "states":
                                index = [s % 2, *index]
                            one = tir.BufferLoad(self.tensors[state], index)
                            register = sums[g, row, v]
                            value = self._get(register) + tir.Broadcast(one, self.tiles.lanes) * weight
                            stores.append(self._set(register, value))
                return self._sequence(stores)

            made.append(self._loop("k", self.layer.hidden, over))
        made += finish({at: self._get(register) for at, register in sums.items()})
        return self._allocated(list(sums.values()), self._sequence(made))

    def _groups(self, gates: Sequence[int], rows: int) -> list[Sequence[int]]:
        """Return gates in groups whose sums fit into the registers together."""
        many = max(1, self.tiles.registers // (rows * self.tiles.vectors))
        return [gates[at : at + many] for at in range(0, len(gates), many)]

    def _first(self, d: Any, s: Any, n: Any, row: int, gate: int, lane: Any) -> Any:
        """Return where the sum of a gate starts: at the inputs' product, or at the bias behind a reset gate."""
        if "bias" in self.tensors and gate == 2:
            return self._load("bias", [d, lane])
        return self._load("sums", self._sums_at(d, s, n, row, gate, lane))

    # Expressions ------------------------------------------------------------------------------------------

    def _sums_at(self, d: Any, s: Any, n: Any, row: int, gate: int, lane: Any) -> list[Any]:
        return [self._time(d, s), n + row, d, self._int(gate), lane]

    def _time(self, d: Any, s: Any) -> Any:
        """Return the step's place in time."""
        last, backward = self.layer.steps - 1, self.layer.backward
        if len(backward) == 2:
            return self.tir.Select(self.tir.EQ(d, self._int(1)), last - s, s)
        return last - s if backward[0] else s

    def _state(self, s: Any, at: list[Any]) -> Any:
        return self._load("states", [s % 2, *at])

    def _gate(self, d: Any, which: int, x: Any) -> Any:
        """Return an activation of a clipped value."""
        return self._activation(d, which, clipped(self.tir, x, self.cell.clip, self.tiles.lanes))

    def _activation(self, d: Any, which: int, x: Any) -> Any:
        """Return an activation, which may be another one on the way back."""
        own = [each[which] for each in self.cell.activations]
        values = [activated(self.tir, one, x, self.tiles.lanes) for one in dict.fromkeys(own)]
        if len(values) == 1:
            return values[0]
        back = self.tir.EQ(d, self._int(1))
        return self.tir.Select(self.tir.Broadcast(back, self.tiles.lanes), values[1], values[0])

    def _lane(self, b: Any, v: int) -> Any:
        """Return the units of a vector of a block."""
        return self._vector(b * self.tiles.block + v * self.tiles.lanes)

    def _vector(self, first: Any) -> Any:
        """Return the indices of a vector."""
        return self.tir.Ramp(first, self._int(1), self.tiles.lanes)

    def _int(self, value: int) -> Any:
        return self.tir.const(value, "int32")

    def _like(self, value: float) -> Any:
        return self.tir.const(value, self.lanes)

    def _load(self, name: str, index: list[Any]) -> Any:
        return self.tir.BufferLoad(self.tensors[name], index)

    def _store(self, name: str, index: list[Any], value: Any) -> Any:
        return self.tir.BufferStore(self.tensors[name], value, index)

    # Statements -------------------------------------------------------------------------------------------

    def _register(self, name: str) -> Any:
        return self.tir.decl_buffer((self.tiles.lanes,), "float32", name, scope="local")

    def _get(self, register: Any) -> Any:
        return self.tir.BufferLoad(register, [self._vector(self._int(0))])

    def _set(self, register: Any, value: Any) -> Any:
        return self.tir.BufferStore(register, value, [self._vector(self._int(0))])

    def _named(self, value: Any, body: Callable[[Any], list[Any]]) -> list[Any]:
        """Return statements of a value that is kept in a register."""
        register = self._register("value")
        stores = [self._set(register, value), *body(self._get(register))]
        return [self._allocated([register], self._sequence(stores))]

    def _allocated(self, registers: Sequence[Any], body: Any) -> Any:
        for register in registers:
            body = self.dialect.allocated(register, body)
        return body

    def _loop(self, name: str, extent: int, body: Callable[[Any], Any], parallel: bool = False) -> Any:
        return loop_of(self.tir, name, extent, body, PARALLEL if parallel else None)

    def _attribute(self, key: str, body: Any) -> Any:
        return self.tir.AttrStmt(self._int(0), key, self._int(1), body)

    def _sequence(self, parts: Sequence[Any]) -> Any:
        return in_order(list(parts), self.tir)
