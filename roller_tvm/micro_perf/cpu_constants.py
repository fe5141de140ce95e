"""Fitted numbers of the CPU's micro-performance model: each with its unit, and what it was measured on.

Numbers of a device (rates, sizes, latencies) are measured on it and stand in its ``DeviceSpec`` instead.
"""

from __future__ import annotations

# --- Loops -----------------------------------------------------------------------------------------------------------
#: Cycles to enter and leave a register tile's loop nest: index arithmetic, branch misprediction at the loop exit.
TILE_OVERHEAD = 30
#: Cycles to enter and leave a row's loop: addresses, the trips that are left, a misprediction now and then (measured on
#: Zen 3: rows of 521 elements).
ROW_OVERHEAD = 12
#: Cycles to begin a stage of a chunk: its address, and loops whose trips are known (measured on Zen 3, LLVM 10: copies
#: in chunks of 4 and 8 elements take 5 cycles each, rows of 32 elements of softmax, in five stages, 115).
STAGE_OVERHEAD = 4
#: Seconds to enter a function that runs on the calling thread alone.
SERIAL_LAUNCH = 0.2e-6
#: Seconds that the threads of a parallel region take to wait for one another (measured on Sapphire Rapids, two threads
#: of TVM 0.27, loaded: an LSTM of 128 units, one row, takes 1.79 us a step on one thread and 1.18 on two).
BARRIER = 0.3e-6

# --- Instructions ----------------------------------------------------------------------------------------------------
#: Slots of a vector instruction. 'exp' is a polynomial or a quotient of two, 'sqrt' with the division by it (measured
#: on Zen 3, LLVM 10 and 22: 16 to 25, and 10 to 17); calls are counted apart.
INSTRUCTIONS = {
    "fma": 1.0, "mul": 1.0, "add": 1.0, "cmp": 1.0, "cast": 1.0, "div": 8.0, "exp": 20.0, "sqrt": 16.0, "special": 0.0,
}  # fmt: skip
#: Instructions of a step that adds (or compares) the halves of a vector, and the most lanes that are merged so.
HALVED, MERGED_LANES = 2, 64
#: Cycles of log, sin and the like, an element: calls, whatever the vectors around them (measured: 5 to 12).
CALL = 8.0
#: Load slots that one element behind a bounds check costs.
GUARDED_LOADS = 4
#: Load slots of an element that is put into a vector on its own: its load and its insertion (measured on Zen 3,
#: LLVM 22: A B^T of 12 x 128x128x64, gathered, 436 us; the loads alone would take 263).
GATHERED_SLOTS = 2
#: How sharply throughput and latency of the multiply-adds change over: the exponent of their norm (measured on Zen 3,
#: LLVM 10 and 22: 8 accumulators, just enough at a latency of 4 cycles and 2 a cycle, reach 92% of the peak).
OVERLAP = 8
#: The same for multiply-adds and loads that are both near their limit, by the bytes of a vector (measured on Zen 3,
#: LLVM 10 and 22: 14 vectors with one load more take 1.28 of the multiply-adds' cycles, 7 with 8 loads 1.35; with
#: vectors of 512 bits, LLVM 22: 28 and 14 with one load more 1.09 and 1.12, with 16 and 9 loads 1.03 and 1.04).
PORTS = {16: 4, 32: 4, 64: 10}

#: Instructions that a trip of a sum's loop takes beside its steps, and the steps of a trip where rows have several
#: vectors (`codegen.rewrites.unrolled_sums`).
TRIP_INSTRUCTIONS, TRIP_STEPS = 3, 4
#: Vector registers from which multiply-adds take a value for all lanes from memory themselves (AVX-512, NEON).
EMBEDS = 32

# --- LLVM's own vectors ----------------------------------------------------------------------------------------------
#: Vectors that LLVM computes side by side in a loop that it vectorises itself; the rest of a row is computed one by
#: one.
SIDE_BY_SIDE = 4
#: Elements of the shortest loop in which LLVM computes several vectors side by side (TinyTripCountInterleaveThreshold).
LONG_LOOP = 128

# --- Caches ----------------------------------------------------------------------------------------------------------
#: Share of a cache that one nest can count on: the rest is the output, the stack, other operands' lines.
CACHE_SHARE = 0.75
#: Share of what a nest can count on of a cache above which some of its sets overflow, and the share of the lines that
#: are read again then. Pages fall on sets at random, but for those of the nearest cache (measured on two cores of an
#: Emerald Rapids, 2 MB in 16 ways: products of 197 rows, two panels of 48 columns read again and again beside one of
#: them. 0.8, 1.0, 1.2 and 1.4 MB take 1.02, 1.06, 1.12 and 1.18 times as long with 9 rows at a time, 1.06 to 1.27
#: with 8).
CROWDED, EVICTED = 2 / 3, 0.06
#: Times that a line written through the nearest cache takes of one that is read: it is read before, and written back
#: (measured on an Emerald Rapids: 64 kB to 1.5 MB, a core reads 140 GB/s, writes 48, copies 40 to 40).
STORED = 3
#: Times the latency of the last cache until a line arrives that another core has written: the cache asks that core
#: (measured on two cores of an Emerald Rapids, 49 ns: 165 ns).
FROM_ANOTHER_CORE = 3
#: Share of a cache level's time that prefetching does not hide behind arithmetic, and of arithmetic behind caches.
EXPOSED = 0.15
#: The same of stages in tiles, whose rows are many streams, and of transforms with a vector of each of many planes:
#: share of the shorter of arithmetic and traffic (measured on two cores of an Emerald Rapids: an unsharp mask of
#: 3 x 1500 x 2000, predicted to be bound by memory, takes 7.1 ms in tiles of 8 x 80, which compute twice as much, and
#: 3.3 in tiles of 20 x 2000).
TILES_EXPOSED = 0.5
#: Pages whose addresses a core knows at a time ([fog] 64 of Zen 3 and Skylake, 96 of Golden Cove).
PAGES = 64
#: Extra cost of starting a contiguous run, in bytes: prefetchers have to find it (measured on 40 tiles each of 23
#: convolutions).
RUN_START = 192

#: Lines of a run that a core waits for before prefetchers follow it, and the runs that these follow at a time: of twice
#: as many they follow none (Intel's optimization manual: 32 pages; measured on an Emerald Rapids: 64 to 256 channels at
#: 56 x 56, of 3 MB. Tiles of 1 x 14 pixels along whole rows take 645 us, along halves and quarters of rows 850 and 912,
#: tiles of 2 x 7 687, of 7 x 2 and 14 x 1, in 112 and 224 runs, 1050).
BEFORE_FOUND, RUNS_FOLLOWED = 2, 32

#: Most guarded loads in an unrolled body: with more, LLVM takes seconds.
UNROLLED_LOADS = 400

# --- Sliding windows, unrolled ---------------------------------------------------------------------------------------
#: Cycles of each vector beyond the registers: stored and loaded again, beside other work (measured on Zen 3, LLVM 10
#: and 22: 3x3 depthwise tiles of 1x7, 2x2, 2x4, 4x2 vectors, with 34, 20, 32, 32 where 16 fit, take 6.5 to 8.2 cycles
#: a vector, 0.3; on an Emerald Rapids, 3x3 and 5x5 windows of two networks, 0.8 to 3 order them best).
SPILLED = 0.8
#: Cycles of an element loaded on its own behind a check of bounds (measured on Zen 3: pooling and depthwise
#: convolutions, NCHW, 4 to 8 lanes, strides 1 and 2, tiles of 9 to 51 such vectors; the smallest take 0.8 to 1.2 cycles
#: with LLVM 10, 0.6 to 1.3 with LLVM 22, the largest 2.1 to 3.7 and 1.0 to 2.1).
CHECKED = 1.0
#: Cycles more of such an element if the vectors assembled from them do not all stay in registers (the same tiles).
REBUILT = 2.0
#: Registers for masks and addresses beside these vectors.
RESERVED = 6

# --- Matrix unit -----------------------------------------------------------------------------------------------------
#: Share of a matrix unit's measured peak that its products reach (this and the next, and the cycles below, fitted on
#: two cores of a Granite Rapids class server: 241 products of 17 networks, as they run there; off by 9 %, median).
MATRIX_SHARE = 0.93
#: Share of the lesser of both that the products of tiles and the constant's way from memory do not hide of each other.
MATRIX_EXPOSED = 0.7
#: Share of a core's cache for the rows' parts and a panel of the constant: the next panel comes meanwhile (measured on
#: one core of an Emerald Rapids, 24 blockings each of products of 128 to 1,024 rows: 0.3 to 0.5 are within 6 % of the
#: best, 0.7 takes 8 to 20 % longer).
MATRIX_CACHE = 0.5
#: Cycles to split a vector of float32 into three of bfloat16.
SPLIT_CYCLES = 21
#: Cycles to store a vector of sums from a tile, and to read it again for what follows the product.
SUM_CYCLES = 19
#: GB/s at which a core reads parts that another has just written (measured on two cores of an Emerald Rapids, the same
#: products shared by columns and by rows: 2 to 10 for 75 kB to 1.2 MB).
PASSED_GBPS = 6.0
