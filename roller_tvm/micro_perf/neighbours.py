"""Elements near each other, picked out of vectors of neighbours (see ``codegen.rewrites.strided_vectors``)."""

from __future__ import annotations

from collections.abc import Iterator

from ..roller.candidates import Column
from .cpu_constants import GATHERED_SLOTS

#: Greatest distance of elements that are picked out of vectors of neighbours.
NEAR = 4
#: Shortest vector to pick so; elements of shorter ones are loaded one by one.
SHORTEST = 4
#: Neighbours of rows that are transposed at a time (``codegen.rewrites.turned_tiles``), and the most lanes.
TURNED, LONGEST_TURNED = 4, 16
#: Bytes of their elements: four of them fill the part of a register within which any CPU shuffles.
TURNED_BYTES = 4
#: Shuffles of each vector of theirs.
SHUFFLES = 2


def covering(run: int, lanes: int) -> Iterator[tuple[int, int]]:
    """Yield (begin, length) of vectors of one length, a power of two, that cover a run of elements.

    Examples
    --------
    >>> list(covering(31, 16)), list(covering(14, 14)), list(covering(5, 16))
    ([(0, 16), (15, 16)], [(0, 8), (6, 8)], [(0, 4), (1, 4)])
    """
    width = min(1 << (run.bit_length() - 1), 1 << (lanes - 1).bit_length())
    for begin in range(0, run, width):
        yield min(begin, run - width), width


def vector_slots(step: int, lanes: int) -> int:
    """Return the slots of a vector of elements at equal distances: loads of neighbours, and assembling them.

    A vector of neighbours that fills no register is loaded in powers of two (measured on Zen 5, LLVM 10 and 22,
    depthwise convolutions: 4 to 5 slots for 12 elements, 5 to 6 for 14; on an Emerald Rapids, LLVM 22, sums of rows: 3
    for 12, 4 for 15).

    Examples
    --------
    >>> vector_slots(1, 16), vector_slots(1, 12), vector_slots(2, 16), vector_slots(3, 14)
    (1, 4, 4, 6)
    """
    if step == 1:
        return 2 * pieces if (pieces := lanes.bit_count()) > 1 else 1
    return 2 * sum(1 for _ in covering(step * (lanes - 1) + 1, lanes))


def is_turnable(lanes: int) -> bool:
    """Return whether vectors of so many lanes, rows apart, are made by shuffles: of a power of two, as LLVM has them.

    Of others LLVM takes each element apart (measured on a Granite Rapids class server, AVX-512: 72 planes of 80 x 80
    pixels to rows of channels, in vectors of 12 lanes, 300 us, told 38).

    Examples
    --------
    >>> [lanes for lanes in range(1, 40) if is_turnable(lanes)]
    [4, 8, 16]
    """
    return TURNED <= lanes <= LONGEST_TURNED and lanes.bit_count() == 1


def turned_slots(lanes: int, registers: int, trips: Column) -> Column:
    """Return the slots of lanes rows apart, which fill so many registers, in a loop of so many trips along the rows.

    Trips that are left over take their lanes element by element.

    Examples
    --------
    >>> turned_slots(8, 1, 48), turned_slots(16, 2, 48), turned_slots(8, 1, 3), turned_slots(32, 2, 48)
    (4.0, 8.0, 16.0, 64.0)
    """
    alone = float(GATHERED_SLOTS * lanes)
    if not is_turnable(lanes):
        return alone
    left = trips % TURNED / trips
    return left * alone + (1 - left) * (lanes / TURNED + SHUFFLES * registers)
