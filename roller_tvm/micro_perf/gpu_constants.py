"""Fitted numbers of the GPU's micro-performance models: each with its unit, and what it was measured on.

"By hand" stands where no measurement is on record. Numbers of a device stand in its spec (``device/data``), breadths of
a search beside the search.
"""

from __future__ import annotations

# --- arithmetic and pipes --------------------------------------------------------------------------------------------

#: Issue slots of one operation: special functions run on a quarter of the lanes, a division is a handful of
#: instructions (CUDA C++ Programming Guide, throughput of arithmetic instructions).
OPERATION_SLOTS = {"fma": 1, "mul": 1, "add": 1, "cmp": 1, "cast": 1, "div": 8, "exp": 4, "sqrt": 4, "special": 4}
#: Share of the other pipes' time that the slowest does not hide, in kernels that stage nothing and in the quick
#: estimate: of two plans with one bottleneck, the one with less of everything else is faster. By hand.
PIPE_OVERLAP_LOSS = 0.05
#: The same in staged kernels, whose steps meet at barriers. By hand, beside recorded schedules of Ansor for V100, K80
#: and MI50 (as are STAGED_BLOCK_CYCLES, FMA_SHARE and DRAM_SHARE).
STAGED_OVERLAP_LOSS = 0.1
#: Share of shared memory's time, or of the issue slots', that the other does not hide where multiply-adds take every
#: slot: an SM of 128 lanes. Measured on an H200 by the GPU kit, 2026-11-26: 536 staged products and convolutions.
CROWDED_OVERLAP_LOSS = 0.45
#: Multiply-adds crowd the issue slots if they can take this share of them (a profile measures 0.95 of an SM's 128).
CROWDED_SHARE = 0.9
#: Cycles for which a block's threads issue nothing at each step's barriers; other blocks do. Measured likewise.
STEP_CYCLES = 100
#: Cycles of a unit for starting and retiring a block that stages nothing, and in the quick estimate. By hand.
BLOCK_CYCLES = 25
#: Cycles for starting and retiring a block of a staged kernel: its addresses, the first fetch, the drained pipes.
STAGED_BLOCK_CYCLES = 400
#: Loads that a thread has in flight before it needs the first: of a loop, by hand; of an unrolled window, measured on
#: an H200 by the GPU kit, 2026-11-26 (186 depthwise convolutions and pools that stage nothing).
IN_FLIGHT, WINDOW_IN_FLIGHT = 8, 12
#: Shares of the peak that code reaches: multiply-adds between other instructions, memory between pages.
FMA_SHARE, DRAM_SHARE = 0.9, 0.85
#: Most lanes that wait for one bank in the quick estimate. By hand: ``gpu_access`` counts them.
QUICK_CONFLICTS_MOST = 4.0

# --- issue slots -----------------------------------------------------------------------------------------------------

#: Issue slots that one fetched vector costs beside its load and store in the quick estimate: its coordinates in the
#: tile, divisions by constants. A padding guard adds comparisons and a branch. Counted in the main loops of ten
#: compiled plans (sm_80).
FETCH_OVERHEAD, FETCH_GUARD_OVERHEAD = 5, 18
#: The same, effect by effect: of a fetched vector; of each further coordinate of an element (division by a constant);
#: of an element's padding guard. Counted in the same plans; more if nothing is unrolled.
FETCH_SLOTS, COORDINATE_SLOTS, GUARD_SLOTS = 6, 4, 8
#: Issue slots of a loop around an unrolled body: counter, comparison, branch, address.
LOOP_SLOTS = 4
#: Issue slots of an output's own address, and of one load's, in a kernel that stages nothing; a padding guard's share
#: of comparisons per load once the window is unrolled. By hand.
OUTPUT_OVERHEAD, LOAD_OVERHEAD, LOAD_GUARD_OVERHEAD = 20, 1, 5
#: Issue slots of a step of the tree in which threads share a reduction: a shuffle, its mask, an operation. Measured on
#: an H200 by the GPU kit, 2026-11-26: sums of 49 and 121 elements.
TREE_SLOTS = 20
#: Elements of a thread's fetch that are in flight at a time: compilers unroll a copying loop by four; one behind a
#: padding guard is a branch of its own.
FETCHES_IN_FLIGHT, GUARDED_IN_FLIGHT = 4, 1
#: Statements that a compiler unrolls by itself, inner loops first: full unrolling stops at a few hundred instructions.
COMPILER_STATEMENTS = 256
#: Cycles that a thread waits for its values in local memory (L1 hits: 28 on V100, 35 on K80; Jia et al., table 3.1).
LOCAL_CYCLES = 30
#: A step of at least so many times its busiest pipe's cycles is bound by latency (gpu.tensor). By hand.
WAITING = 1.1

# --- tensor cores: gpu.tensor, measured on an H200 by the GPU kit, 2026-11-26 (604 plans whose copies run ahead, 355
# others; least squares of the times' logarithms) ---------------------------------------------------------------------

#: Share of mma.sync's peak that a warp reaches between its loads of fragments.
TENSOR_SHARE = 0.7
#: Cycles for which a block's warps wait for one another at each step: two barriers, and what they waited for.
MEETING_CYCLES = 250
#: Share of a step's own chain (its copies' way, its products one after the other) that copies that run ahead leave.
CHAIN_EXPOSED = 0.3
#: Cycles of a piece of neighbouring outputs that a warp stores, and the outputs of one: mma leaves four lanes a row,
#: two outputs each, 16 bytes of half types. Whether a lane stores one or two at a time makes no difference.
STORE_CYCLES, PIECE = 2.5, 8
#: Issue slots of the coordinates of an element that is copied alone: divisions by the product's own extents.
GATHER_SLOTS = 12
#: Guarded copies of a thread that the compiler unrolls; more of them are a loop, which waits for each, and computes
#: its coordinates anew: cycles and issue slots of one.
UNROLLED_COPIES, ROLLED_CYCLES, ROLLED_SLOTS = 8, 120, 35

# --- registers -------------------------------------------------------------------------------------------------------
# They describe the compiler, not a device: fitted once on the kernels of 380 random plans of matrix products and
# convolutions (``benchmarks/register_fit.csv``) and of 2400 constructed ones (``fit-registers`` of 5fb480d8
# prints the fit), compiled by NVRTC 12.9 for sm_75 to sm_90.

#: Addresses, loop counters and predicates beside accumulators and fragments. With fewer registers for them, 18 of 18
#: plans spilled.
ADDRESSES = 24
#: Share of the cap that a plan may need: ptxas aims below it for occupancy. Of constructed plans that needed more
#: than this, 15 of 60 spilled (loop-invariant addresses, a few bytes), of the others 18 of 408.
USABLE = 0.75
#: Registers that the compiler takes, at most the cap: accumulators, both fragments of a step, part of the unrolled
#: steps' reads, fetched values and their addresses, other addresses. The medians of 950 kernels of gpu.tiled compiled
#: by NVRTC 12.9 for sm_90 (the GPU kit's): a quarter take 0.9 of it or less, a quarter 1.1 or more.
BASE = 16
PER_ACCUMULATOR = 1.6
PER_FRAGMENT = 2.0
PER_PREFETCHED = 0.05
PREFETCHED_MOST = 128
PER_FETCH = 0.6
PER_FETCHED = 0.12
#: Registers are handed out by eights (ptxas rounds its targets for occupancy).
ROUNDED_TO = 8
#: Registers that a compiler takes at least, and as a multiple of the need: it uses some to run ahead.
REGISTERS_LEAST, REGISTERS_TAKEN = 32, 1.1
#: Registers of a fetched element (address, value, guard): the compiler prepares several, FETCHED_MOST at most.
PER_FETCHED_ELEMENT, FETCHED_MOST = 0.5, 32
#: Registers of a thread of gpu.tensor beside its sums and fragments (the median of 1010 plans compiled for sm_90; the
#: compiler holds addresses back so that more blocks fit).
FRAGMENT_ADDRESSES = 12
#: Registers of a thread that stages nothing (compiled for sm_75 to sm_90): without a reduction; with one that is
#: unrolled, loading all of it ahead, guards and all; with a loop.
POINTWISE_REGISTERS, UNROLLED_REGISTERS, LOOP_REGISTERS = 10, 14, 26
PER_GUARD = 1.8
#: Registers of a special function (exp, erf) beside its argument, one element at a time (compiled likewise).
SPECIAL = 8
#: Registers of a reduction shared by threads: the compiler unrolls a thread's rounds and loads ahead.
STREAMS, PER_ROUND = 20, 1.7

#: Registers of a thread of gpu.rows (40 candidates of five softmaxes, compiled for sm_75 and sm_90): the compiler
#: unrolls a lane's walk along the row and loads ahead. For longer walks it is unknown how far.
ROW_REGISTERS, PER_ELEMENT = 21, 1.2
#: Registers of a thread of gpu.transpose, and of each element that it has in flight (compiled for sm_75, 80 and 90, 1
#: to 256 elements a thread). The compiler loads at most AHEAD_MOST elements ahead, some with an address of their own.
TURN_REGISTERS, PER_ITEM, AHEAD_REGISTERS, AHEAD_MOST = 20, 2, 12, 64

# --- limits of unrolled code -----------------------------------------------------------------------------------------

#: Multiply-adds in the unrolled body of a thread: enough for vector loads and to hide the loop, and for a whole window
#: up to the second number. Beyond it lowering and compiling take seconds, and ptxas spills what it hoists.
STATEMENTS, WINDOW_STATEMENTS = 512, 1024
#: Accumulators of a thread, and vectors it fetches of one operand at a time: beyond these the share of spills grows.
ACCUMULATORS, FETCHES = 128, 16
#: Iterations of a reduction that gpu.direct unrolls.
UNROLL_MOST = 64
