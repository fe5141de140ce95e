"""Products of float32 on a matrix unit, as a PrimFunc of loops (TVM 0.25 and later): ``micro_perf.matrix_unit``.

The left operand is split in parts of bfloat16. Cores that share the columns do so in a parallel loop of its own; cores
that share the rows, just before they multiply them, with the parts in their caches. A block of 32 x 32 has four
accumulators in tiles, and six products of tiles are added for each 32 terms. What follows the product is computed with
each block, while it is in the cache.

The products of parts are no products where an operand is no number of bfloat16 (infinity, NaN, the last 2^-9 below the
largest float32): blocks of rows with such elements are summed up by ordinary multiply-adds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..device.known import estimate
from ..micro_perf.matrix_unit import BLOCK, DEPTH, PAIRS, PARTS, ROWS, MatrixTiles
from ..te.numbering import PARALLEL
from ..tir.nodes import digits
from .dialect import FIRST_LEVEL, SECOND_LEVEL, dialect_here
from .flat import in_order, loop_of
from .tile_unit import ROW_BYTES, TILE, TileUnit, widened

#: Elements of a block of an operand: its parts, each of two tiles.
OPERAND = PARTS * 2 * TILE
#: Accumulators, by (half of the rows, half of the columns), and the tiles of the operands' halves.
TOTALS, LEFT, RIGHT = ((0, 1), (2, 3)), (4, 5), (6, 7)
#: Parts of the constant's next panel that are asked for side by side.
STRIPES = 8
#: Least bits of a float32, without its sign, that bfloat16 rounds to infinity.
TOO_LARGE = 0x7F7F8000
#: float32 of a vector of 512 bits, which all CPUs with such a unit have.
LANES = 16

Epilogue = Callable[[Any, Any, Any], Any]


def packed_weights(weights: np.ndarray, places: int = 1) -> np.ndarray:
    """Return a constant right operand in parts, as tiles read it.

    Parameters
    ----------
    weights : array of float32, (terms, columns)
    places : int
        Of a convolution's windows; the terms of each follow one another, and are filled up on their own.

    Returns
    -------
    array of uint16, (columns / 32, terms / 32, 3, 2, 16, 16, 2)
        Blocks of columns, of terms, the last filled up with zeros; parts; halves of the columns; pairs of terms;
        columns; terms of a pair.

    Examples
    --------
    >>> packed_weights(np.ones((64, 32), "float32")).shape
    (1, 2, 3, 2, 16, 16, 2)
    """
    weights = weights.reshape(places, -1, weights.shape[-1])
    weights = np.pad(weights, [(0, 0), (0, -weights.shape[1] % DEPTH), (0, -weights.shape[2] % BLOCK)])
    terms, columns = places * weights.shape[1], weights.shape[2]
    weights = weights.reshape(terms, columns)
    parts, rest = [], np.ascontiguousarray(weights)
    for _ in range(PARTS):
        bits = rest.view(np.uint32)
        part = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint32)
        parts.append(part.astype(np.uint16))
        rest = rest - (part << 16).view(np.float32)
    tiles = np.stack(parts).reshape(PARTS, terms // DEPTH, ROWS, 2, columns // BLOCK, 2, ROWS)
    return np.ascontiguousarray(tiles.transpose(4, 1, 0, 5, 2, 6, 3))


def is_splittable(weights: np.ndarray) -> bool:
    """Return whether three numbers of bfloat16 make up each element."""
    return bool((weights.view(np.uint32) & 0x7FFFFFFF < TOO_LARGE).all())


def asked_of_panel(depth: int, passes: int, line: int) -> tuple[list[int], int]:
    """Return which elements of the next panel the first step asks for, and how many further on each later step does.

    A core's own prefetchers follow each of several stripes of the panel, some lines ahead of what is asked for, and a
    single stripe no faster than a few lines for each latency of memory. Measured on two cores of a Granite Rapids class
    server, 206 ns: ten products of 128 rows by 768 x 3072, each with weights of its own, take 1.39 to 1.65 ms in one
    stripe, 1.23 to 1.40 in two, 1.20 to 1.22 in four, 1.10 to 1.24 in eight, and 1.50 to 1.69 unasked. Products on
    vectors take as long in one (0.95 to 1.03 times, ResNet-50, BERT, RegNet, MobileNet v3).

    Parameters
    ----------
    depth : int
        Blocks of the sum in a panel.
    passes : int
        Passes through the present panel, of as many steps each.
    line : int
        Elements of a line.

    Examples
    --------
    >>> asked_of_panel(4, 25, 32)
    ([0, 3200, 6400, 9600], 32)
    """
    lines = -(-OPERAND // (line * passes))  # of a step
    each = -(-lines // min(lines, STRIPES))  # of a stripe
    stripe = depth * passes * each
    stripes = -(-lines // each)
    return [(number * stripe + n) * line for n in range(each) for number in range(stripes)], each * line


class MatrixKernel:
    """The loops of a product.

    Parameters
    ----------
    tiles : MatrixTiles
    left : function of (row, term)
        Returns an element of the left operand; its rows are those of the result, and as many as its `beyond`.
    right : Buffer
        `packed_weights`, of one dimension.
    epilogue : function of (row, column, sum)
        Returns the statement that stores what follows from an element of the product.
    units : int
        Cores.
    emulated : bool
        Write products of tiles as loops, for CPUs without a matrix unit: tests of all but the unit itself.
    within : function of a row, optional
        Returns whether a row of the result is one that is wanted; by default all are.
    rows : Expr, optional
        Number of rows where it is known at each call; `tiles` are those of any number then, without windows.
    """

    def __init__(
        self,
        tiles: MatrixTiles,
        left: Callable[[Any, Any], Any],
        right: Any,
        epilogue: Epilogue,
        units: int,
        emulated: bool = False,
        within: Callable[[Any], Any] | None = None,
        rows: Any = None,
    ) -> None:
        self.dialect = dialect_here()
        self.tir = tir = self.dialect.tir
        self.tiles, self.left, self.right = tiles, left, right
        self.epilogue, self.units, self.emulated, self.within = epilogue, units, emulated, within
        height, width, _ = tiles.blocks
        self.open, self.rows = rows is not None, tiles.rows if rows is None else rows
        #: Blocks of rows, and those that a core multiplies together; blocks of rows and of terms whose parts are kept.
        self.height = tir.Var("height", "int64") if self.open else height
        busiest = tiles.row_blocks if self.open else -(-height // units)
        self.together = min(tiles.row_blocks, busiest) if tiles.by_rows else tiles.row_blocks
        self.behind = -(-tiles.beyond // BLOCK)
        deep = tiles.depth_blocks if tiles.by_rows and not tiles.taps else tiles.deep
        self.kept = (self.together if tiles.by_rows else self.height) + self.behind, deep
        self.parts = tir.decl_buffer([self.kept[0] * self.kept[1] * OPERAND], "uint16", "parts")
        self.largest = tir.decl_buffer([self.kept[0] * LANES], "uint32", "largest")
        self.above = tir.decl_buffer([LANES], "uint32", "above")
        #: Blocks of columns of a core.
        self.across = width if tiles.by_rows else -(-width // units)
        blocks = 1 if tiles.chunks == 1 else self.together * self.across
        self.sums = tir.decl_buffer([blocks * BLOCK * BLOCK], "float32", "sums")
        self.unit = TileUnit(tir, emulated)

    def body(self) -> Any:
        """The statement of the whole kernel."""
        rest = [self.tir.Bind(self.height, self.blocks_of(self.rows, BLOCK))] if self.open else []
        if not self.tiles.by_rows:
            rest += [*self.parts_allocated(), self.loop("p", self.kept[0], self.split, PARALLEL)]
        return self.in_order([*self.unit.asked(), *rest, self.loop("t", self.units, self.share, PARALLEL)])

    def parts_allocated(self) -> list[Any]:
        return [self.tir.AllocBuffer(self.parts), self.tir.AllocBuffer(self.largest)]

    # Splitting ---------------------------------------------------------------------------------------------------

    def split(self, block: Any, slot: Any = None, chunk: Any = 0) -> Any:
        """Write a block of the left operand's rows in parts; the last has zeros for rows and terms that are none.

        Parameters
        ----------
        slot : Expr, optional
            Number of the block among those that are kept; by default all are.
        chunk : Expr
            Of the sum, of which parts are kept.
        """
        tir, deep, slot = self.tir, self.kept[1], block if slot is None else slot
        top, per_chunk = slot * LANES, self.tiles.by_rows and not self.tiles.taps
        clear = self.vector(lambda v: tir.BufferStore(self.largest, self.u32(0), [top + v]))
        if per_chunk and self.tiles.chunks > 1:
            clear = tir.IfThenElse(chunk == 0, clear, None)

        def one(k: Any, r: Any, h: Any) -> Any:
            row = block * BLOCK + r
            at = self.part(k, 0, slot, r) + h * LANES
            start = ((chunk * deep if per_chunk else 0) + k) * DEPTH + h * LANES

            def element(v: Any) -> Any:
                value = self.left(row, start + v)
                bits = tir.reinterpret("uint32", value)
                large = tir.BufferLoad(self.largest, [top + v])
                magnitude = bits & self.u32(0x7FFFFFFF)
                stores = [tir.BufferStore(self.largest, tir.Max(magnitude, large), [top + v])]
                for part in range(PARTS):
                    bits = tir.reinterpret("uint32", value)
                    rounded = (bits + self.u32(0x7FFF) + ((bits >> self.u32(16)) & self.u32(1))) >> self.u32(16)
                    stores.append(tir.BufferStore(self.parts, tir.Cast("uint16", rounded), [at + part * plane + v]))
                    value = value - tir.reinterpret("float32", rounded << self.u32(16))
                return self.in_order(stores)

            def nothing(v: Any) -> Any:
                zero = tir.const(0, "uint16")
                return self.in_order([tir.BufferStore(self.parts, zero, [at + p * plane + v]) for p in range(PARTS)])

            some = self.vector(element)
            if self.tiles.terms % DEPTH:
                some = tir.IfThenElse(start < self.tiles.terms, some, self.vector(nothing))
            whole = not self.behind and self.divides(BLOCK, rows)
            return some if whole else tir.IfThenElse(row < rows, some, self.vector(nothing))

        rows, plane = self.rows + self.tiles.beyond, self.part(0, 1, 0)
        halves = self.loop(
            "k", deep, lambda k: self.loop("r", BLOCK, lambda r: self.loop("h", 2, lambda h: one(k, r, h)))
        )
        return self.in_order([clear, halves])

    def part(self, block: Any, part: int, slot: Any, row: Any = 0) -> Any:
        """Return the place of a part of a row's first term, of a block of its terms; `slot` is the rows' kept block.

        Rows of windows begin anywhere in a block, so all rows lie together; others have all terms of a block together.
        """
        if self.behind:
            return ((block * PARTS + part) * (self.kept[0] * BLOCK) + slot * BLOCK + row) * DEPTH
        return ((slot * self.kept[1] + block) * PARTS + part) * (BLOCK * DEPTH) + row * DEPTH

    # Products ----------------------------------------------------------------------------------------------------

    def share(self, thread: Any) -> Any:
        """The blocks of one core: chunks of rows, in them chunks of the sum, in them columns, in them rows."""
        tir, tiles = self.tir, self.tiles
        height, width, columns, together = self.height, tiles.blocks[1], self.across, self.together
        rows = self.blocks_of(height, self.units) if tiles.by_rows else height

        def within(first: Any, ii: Any, made: Callable[[Any], Any], j: Any = None) -> Any:
            """Return the statement of a block of rows, behind checks of its number and of the columns'."""
            inside = first * together + ii
            i = thread * rows + inside if tiles.by_rows else inside
            limits = [] if self.divides(together, rows) else [inside < rows]
            limits += [i < height] if tiles.by_rows and not self.divides(self.units, height) else []
            limits += [j < width] if j is not None and not tiles.by_rows and width % self.units else []
            found = made(i)
            for limit in limits:
                found = tir.IfThenElse(limit, found, None)
            return found

        def pass_(first: Any, chunk: Any) -> Any:
            def column(jj: Any) -> Any:
                j = jj if tiles.by_rows else thread * columns + jj
                return self.loop("i", together, lambda ii: within(
                    first, ii, lambda i: self.block(i, j, chunk, ii, jj), j))  # fmt: skip

            products = self.loop("j", columns, column)
            if not tiles.by_rows:
                return products
            if not tiles.taps:
                split = self.loop("p", together, lambda ii: within(first, ii, lambda i: self.split(i, ii, chunk)))
                return self.in_order([split, products])
            split = self.loop("p", self.kept[0], lambda ii: self.split(thread * rows + first * together + ii, ii))
            return self.in_order([tir.IfThenElse(chunk == 0, split, None) if tiles.chunks > 1 else split, products])

        loops = self.loop(
            "first", self.blocks_of(rows, together),
            lambda first: self.loop("chunk", tiles.chunks, lambda chunk: pass_(first, chunk)),
        )  # fmt: skip
        own_memory = self.parts_allocated() if tiles.by_rows else []
        own_memory += self.sums_allocated()
        own_memory += [tir.AllocBuffer(self.above)] if self.behind else []
        return self.in_order([*own_memory, *self.unit.configured(), loops, *self.unit.released()])

    def sums_allocated(self) -> list[Any]:
        """The memory of sums. TVM narrows a buffer to the elements that it sees used; tiles are stored beyond them."""
        tir, last = self.tir, int(self.sums.shape[0]) - 1
        return [tir.AllocBuffer(self.sums), tir.BufferStore(self.sums, tir.const(0.0, "float32"), [last])]

    def block(self, i: Any, j: Any, chunk: Any, number: Any, across: Any) -> Any:
        """Add a chunk of the sum of one block, and compute what follows after the last.

        The block is the one of that `number` of those that follow one another and read the same panel of the constant,
        the panel one of those of a core.
        """
        tir, chunks, height = self.tir, self.tiles.chunks, self.tiles.blocks[0]
        base = 0 if chunks == 1 else (number * self.across + across) * (BLOCK * BLOCK)
        whole = self.products(i, j, chunk, base, 2, number, self.together)
        if self.open or self.tiles.last_rows <= ROWS:
            half = self.products(i, j, chunk, base, 1, number, self.together)
            more = self.rows - i * BLOCK > ROWS if self.open else i < height - 1
            whole = half if not self.open and height == 1 else tir.IfThenElse(more, whole, half)
        after = self.in_order([self.exact_again(i, j, base, number), self.followed(i, j, base)])
        return self.in_order([whole, after if chunks == 1 else tir.IfThenElse(chunk == chunks - 1, after, None)])

    def products(self, i: Any, j: Any, chunk: Any, base: Any, halves: int, number: Any, passes: int) -> Any:
        """One block's tiles, over a chunk of the sum."""
        tir, depth, own = self.tir, self.tiles.blocks[2], self.tiles.depth_blocks
        slot = number if self.tiles.by_rows else i
        tiles = [(TOTALS[a][b], base + a * ROWS * BLOCK + b * ROWS) for a in range(halves) for b in range(2)]
        zero = self.in_order([self.unit.zero(tile) for tile, _ in tiles])
        if self.tiles.chunks > 1:
            loaded = self.in_order([self.unit.load(tile, self.sums, at, 4 * BLOCK) for tile, at in tiles])
            zero = tir.IfThenElse(chunk == 0, zero, loaded)

        def step(k: Any) -> Any:
            at = chunk * own + k
            right = (j * depth + at) * OPERAND

            def left(ahead: int, part: int) -> Any:
                """Return the place of the rows' parts, of a step ahead."""
                if not self.tiles.taps:
                    return self.part((k if self.tiles.by_rows else at) + ahead, part, slot)
                place, block = tir.floordiv(at + ahead, self.tiles.deep), tir.floormod(at + ahead, self.tiles.deep)
                return self.part(block, part, slot, self.shifted(place))

            found: list[Any] = []
            panel = ((j + 1) * depth + chunk * own) * OPERAND
            next_rows = [left(1, part) for part in range(PARTS)]
            ahead = self.ahead(next_rows, right, panel, number * own + k, passes)
            each = -(-len(ahead) // (len(PAIRS) * 2 * halves))  # after each product of tiles
            before: tuple[int | None, int | None] = (None, None)
            for a, b in PAIRS:
                if a != before[0]:
                    own_at = [(h, left(0, a) + h * TILE) for h in range(halves)]
                    found += [self.unit.load(LEFT[h], self.parts, place, ROW_BYTES) for h, place in own_at]
                if b != before[1]:
                    found += [
                        self.unit.load(RIGHT[h], self.right, right + (2 * b + h) * TILE, ROW_BYTES) for h in range(2)
                    ]
                for h in range(halves):
                    for g in range(2):
                        found.append(self.unit.multiply(TOTALS[h][g], LEFT[h], RIGHT[g]))
                        found += ahead[:each]
                        ahead = ahead[each:]
                before = a, b
            return self.in_order(found)

        stored = [self.unit.store(tile, self.sums, at, 4 * BLOCK) for tile, at in tiles]
        return self.in_order([zero, self.loop("k", own, step), *stored])

    def followed(self, i: Any, j: Any, base: Any) -> Any:
        """Compute what follows the product, of one block."""

        def row(r: Any) -> Any:
            at = i * BLOCK + r

            def half(h: Any) -> Any:
                first = j * BLOCK + h * LANES

                def element(v: Any) -> Any:
                    found = self.tir.BufferLoad(self.sums, [base + r * BLOCK + h * LANES + v])
                    return self.epilogue(at, first + v, found)

                stored, columns = self.vector(element), self.tiles.columns
                if not columns % BLOCK:
                    return stored
                last = columns % LANES
                rest = self.tir.IfThenElse(first < columns, self.loop("v", last, element), None) if last else None
                return self.tir.IfThenElse(first + LANES <= columns, stored, rest)

            return self.where_a_row(at, self.loop("h", 2, half))

        return self.loop("r", BLOCK, row)

    def exact_again(self, i: Any, j: Any, base: Any, number: Any) -> Any:
        """Sum up a block by multiply-adds, if its rows have elements that are no numbers of bfloat16."""
        tir, depth, top = self.tir, self.tiles.blocks[2], (number if self.tiles.by_rows else i) * LANES
        largest, found = self.largest, []
        if self.behind:
            found, largest = [self.largest_of(top)], self.above
            top = 0
        large = tir.BufferLoad(largest, [top])
        for lane in range(1, LANES):
            large = tir.Max(large, tir.BufferLoad(largest, [top + lane]))

        def row(r: Any) -> Any:
            at = base + r * BLOCK

            def term(tap: Any, k: Any) -> Any:
                def half(h: Any) -> Any:
                    def element(v: Any) -> Any:
                        place = (j * depth + tap * self.tiles.deep + tir.floordiv(k, DEPTH)) * OPERAND + h * TILE
                        place = place + tir.floordiv(tir.floormod(k, DEPTH), 2) * DEPTH + v * 2 + tir.floormod(k, 2)
                        parts = [widened(self.tir, self.right, place + part * 2 * TILE) for part in range(PARTS)]
                        value = self.left(i * BLOCK + r + self.shifted(tap), k)
                        index, weight = [at + h * LANES + v], parts[0] + parts[1] + parts[2]
                        return tir.BufferStore(self.sums, tir.BufferLoad(self.sums, index) + value * weight, index)

                    return self.vector(element)

                return self.loop("h", 2, half)

            clear = self.loop(
                "h", 2, lambda h: self.vector(
                    lambda v: tir.BufferStore(self.sums, tir.const(0.0, "float32"), [at + h * LANES + v]))
            )  # fmt: skip
            sums = self.loop("tap", self.tiles.places, lambda tap: self.loop(
                "k", self.tiles.terms, lambda k: term(tap, k)))  # fmt: skip
            return self.where_a_row(i * BLOCK + r, self.in_order([clear, sums]))

        again = tir.IfThenElse(large >= self.u32(TOO_LARGE), self.loop("r", BLOCK, row), None)
        return self.in_order([*found, again])

    def shifted(self, place: Any) -> Any:
        """Return the rows from a row of the result to the row of the left operand at a place of the window."""
        counts = [count for count, _ in self.tiles.taps]
        return sum(digit * step for digit, (_, step) in zip(digits(place, counts), self.tiles.taps, strict=True))

    def largest_of(self, top: Any) -> Any:
        """Take the largest magnitudes of all blocks that a block of the result reads together."""
        tir = self.tir

        def larger(n: Any, v: Any) -> Any:
            found = tir.BufferLoad(self.largest, [top + n * LANES + v])
            return tir.BufferStore(self.above, tir.Max(tir.BufferLoad(self.above, [v]), found), [v])

        first = self.vector(lambda v: tir.BufferStore(self.above, tir.BufferLoad(self.largest, [top + v]), [v]))
        return self.in_order([first, self.loop(
            "n", self.behind, lambda n: self.vector(lambda v: larger(n + 1, v)))])  # fmt: skip

    def ahead(self, left: list[Any], right: Any, panel: Any, step: Any, passes: int) -> list[Any]:
        """Return prefetches of both operands' next blocks (to the nearest cache) and of the constant's next panel.

        Parameters
        ----------
        left : list of Expr
            Where the next step's rows begin, of each part.
        panel : Expr
            Where the next panel begins.
        step : Expr
            Number of the step among all that read the present panel, in `passes` passes: each asks for its share.
        """
        if self.emulated:
            return []
        line = int(estimate("line")) // 2  # elements of two bytes
        first, further = asked_of_panel(self.tiles.depth_blocks, passes, line)
        asked = [(self.right, panel + step * further + at, SECOND_LEVEL) for at in first]
        each = OPERAND // PARTS // line
        asked += [one for n in range(OPERAND // line) for one in (
            (self.parts, left[n // each] + n % each * line, FIRST_LEVEL),
            (self.right, right + OPERAND + n * line, FIRST_LEVEL))]  # fmt: skip
        return [self.dialect.asking_at(self.address(buffer, at), level) for buffer, at, level in asked]

    def address(self, buffer: Any, at: Any) -> Any:
        """Return where an element of two bytes is, without a read of it, which TVM would bound by all loops around."""
        start = self.tir.address_of(self.tir.BufferLoad(buffer, [0]))
        return self.tir.handle_add_byte_offset(start, at * 2)

    # Words -------------------------------------------------------------------------------------------------------

    def in_order(self, parts: list[Any]) -> Any:
        return in_order(parts, self.tir)

    def where_a_row(self, row: Any, found: Any) -> Any:
        """Return a statement for rows that are wanted: the last block may have fewer."""
        if self.within is not None:
            found = self.tir.IfThenElse(self.within(row), found, None)
        if self.divides(BLOCK, self.rows):
            return found
        return self.tir.IfThenElse(row < self.rows, found, None)

    def blocks_of(self, count: Any, size: int) -> Any:
        """Return how many blocks of a size a number makes up, the last one perhaps in part."""
        return -(-count // size) if isinstance(count, int) else self.tir.floordiv(count + (size - 1), size)

    @staticmethod
    def divides(size: int, count: Any) -> bool:
        """Return whether a number is known to make up whole blocks."""
        return size == 1 or (isinstance(count, int) and count % size == 0)

    def loop(self, name: str, extent: Any, body: Callable[[Any], Any], kind: int | None = None) -> Any:
        return loop_of(self.tir, name, extent, body, kind, "int64")

    def vector(self, body: Callable[[Any], Any]) -> Any:
        return self.loop("v", LANES, body, self.tir.ForKind.VECTORIZED)

    def u32(self, value: int) -> Any:
        return self.tir.const(value, "uint32")
