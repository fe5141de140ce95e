"""The effects that the micro-performance model of a GPU kernel consists of: each has a name, a source and a switch."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace


@dataclass(frozen=True)
class Effects:
    """Switches of the effects to count; all are on by default.

    Examples
    --------
    >>> Effects().without("spilling").spilling
    False
    """

    occupancy: bool = True
    wave_tail: bool = True
    coalescing: bool = True
    bank_conflicts: bool = True
    spilling: bool = True
    rolled_tiles: bool = True
    latency: bool = True
    index_arithmetic: bool = True
    issue_rate: bool = True
    l2_reuse: bool = True
    block_starts: bool = True

    def without(self, name: str) -> Effects:
        """Return a copy with one effect switched off."""
        if name not in EFFECTS:
            raise ValueError(f"no effect is called {name!r}; there are {', '.join(EFFECTS)}")
        return replace(self, **{name: False})


#: Each effect with its meaning and its source.
EFFECTS = {
    "occupancy": "registers and shared memory limit the blocks of a unit, and so the latency that they hide "
    "(CUDA Occupancy Calculator)",
    "wave_tail": "the last round of blocks leaves units idle: the busiest unit counts (Roller, 3.4)",
    "coalescing": "a warp's fetch or store moves whole sectors, enumerated lane by lane "
    "(CUDA C++ Programming Guide, device memory accesses)",
    "bank_conflicts": "lanes that read different words of one bank of shared memory wait for one another "
    "(CUDA C++ Programming Guide, shared memory)",
    "spilling": "accumulators that find no register live in local memory: a store and a load at each use "
    "(CUDA C++ Best Practices Guide, local memory)",
    "rolled_tiles": "an array that a loop indexes cannot live in registers: a register tile that neither TVM nor the "
    "compiler unrolls is local memory (CUDA C++ Programming Guide, device memory accesses, local memory)",
    "latency": "a step waits for its fetches, its barriers and its first operands; other blocks of the unit hide it "
    "(Volkov, Better performance at lower occupancy, 2010)",
    "index_arithmetic": "coordinates of fetched elements: divisions by constants, a padding guard's comparisons "
    "(counted in compiled kernels, recipes/gpu_tile_candidates.py)",
    "issue_rate": "loads, addresses and loops take issue slots beside the multiply-adds (CUDA C++ Programming Guide, "
    "arithmetic instructions)",
    "l2_reuse": "data shared by the blocks of a round comes from memory once (Ladder, rasterization)",
    "block_starts": "a device starts one block after the other, however many units wait "
    "(recorded kernels of few threads a block, device/data)",
}
assert list(EFFECTS) == [f.name for f in fields(Effects)]
ALL = Effects()
