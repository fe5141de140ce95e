"""
Read a plan
===========

An operator goes in, a plan comes out: which tiles live in which memory, how long that should take, and why. This
tutorial takes plans apart, line by line, for a GPU and for the CPU that it runs on, and counts by hand what the model
counts.

Run it with ``python tutorials/read_a_plan.py``; it takes some seconds and needs neither TVM nor a GPU.
"""

from math import ceil, prod

from roller_tvm.device import load_device
from roller_tvm.ir.operators import operator
from roller_tvm.planner import construct
from roller_tvm.planner.explain import explain, explain_steps, why_slower


def chapter(title):
    """A heading in the output."""
    print(f"\n{title}\n{'-' * len(title)}")


# %%
# The operator
# ------------
# A tensor expression is a loop nest without an order: axes (``r`` marks a reduction), what is computed at each point,
# and which elements are read there. Two of its numbers decide nearly everything: how many operations it takes, and how
# many bytes must move at the very least. Their quotient is the *intensity*.

chapter("The operator")
n = 1024
matmul = operator("matmul", m=n, n=n, k=n)
print(matmul)
print(f"{matmul.flops / 1e9:.2f} GFLOP; three matrices of {4 * n * n / 1e6:.1f} MB")
print(f"intensity at best: {matmul.flops / (3 * 4 * n * n):.0f} FLOP a byte")

# %%
# The device
# ----------
# What a plan may rely on. Memory levels run from far to near; the last column is the *machine balance*: FLOP that the
# units can do in the time in which one byte arrives from that level. An operator of less intensity waits for memory.

chapter("The device")
v100 = load_device("v100")
print(v100.describe())

# %%
# Candidates
# ----------
# ``construct`` grows tiles from the registers outwards, always along the axis that saves most traffic, drops what
# breaks a rule, and ranks the rest by predicted time. Nothing is run. Each line below is one plan.

chapter("Candidates")
found = construct(matmul, v100, top=10)
print(f"{len(found.plans)} plans of {found.considered} candidates")
for rank, ranked in enumerate(found.plans[:5], 1):
    program = ranked.plan.programs[0]
    print(f"#{rank}  {ranked.seconds * 1e6:7.1f} us  {ranked.estimate.bound:<8} ", *map(str, program.tiles))
print("What was dropped, by rule:")
print(found.rejected())

# %%
# One plan
# --------
# A plan is a list of rPrograms, one loop nest (on a GPU: one kernel) each; a matrix product needs one. An rProgram has
# a tile for each memory level. *One block* computes the shared tile's part of the output; to do so it walks the
# reduction in steps, and each step loads the inputs of the shared tile. *One thread* keeps the register tile.

chapter("One plan")
best = found.best
program = best.plan.programs[0]
print(program)


def picture(whole, tile, rows=8, columns=32):
    """Rectangles in m (down) and n (across): `#` where the first tile lies in the whole."""
    for row in range(rows):
        width = max(1, columns * tile["n"] // whole["n"]) if row * whole["m"] < rows * tile["m"] else 0
        print("   " + "#" * width + "." * (columns - width))


outer, inner = program.tiles[0], program.tiles[-1]
print(f"one block's tile of the output, {outer['m']} x {outer['n']} of {n} x {n}:")
picture({"m": n, "n": n}, outer)
print(f"one thread's tile of that, {inner['m']} x {inner['n']}:")
picture(outer, inner)

# %%
# Counting by hand
# ----------------
# Footprint is what a tile needs, traffic is footprint times how often it is fetched. For a product the shared tile
# needs ``m * k`` elements of A and ``k * n`` of B. There are as many blocks as tiles cover the output, and as many
# steps as tiles cover the reduction.

chapter("Counting by hand")
estimate = best.estimate.programs[0]
blocks = ceil(n / outer["m"]) * ceil(n / outer["n"])
steps = ceil(n / outer["k"])
footprint = 4 * (outer["m"] * outer["k"] + outer["k"] * outer["n"])
traffic = blocks * steps * footprint
print(f"{blocks} blocks x {steps} steps x {footprint} B = {traffic / 1e6:.1f} MB through L2")
print(f"the model says {estimate.level('l2').bytes / 1e6:.1f} MB, {estimate.level('l2').seconds * 1e6:.1f} us")
computing = matmul.flops / (v100.peak() * 1e9)
print(f"computing alone takes {computing * 1e6:.1f} us at the peak, the plan {best.seconds * 1e6:.1f} us")

# %%
# Where the time goes
# -------------------
# Levels work at the same time, so the slowest sets the pace: the plan is *bound* by it. What is left to gain is the
# distance between that bar and the end of the line.

chapter("Where the time goes")


def bars(estimate, width=40):
    """A bar for each part of a program's time."""
    parts = [("compute", estimate.compute_seconds), *((lv.level, lv.seconds) for lv in estimate.levels)]
    for name, seconds in [*parts, ("predicted", estimate.seconds)]:
        bar = "=" * max(1, round(width * seconds / estimate.seconds))
        print(f"   {name:<9} {seconds * 1e6:8.1f} us  {bar}")


bars(estimate)
print(f"{estimate.blocks} blocks on {v100.units} units, {estimate.occupancy} at a time on one, waves: {estimate.waves}")
print(f"{estimate.threads} threads a block, {estimate.registers} registers a thread")

# %%
# The whole text
# --------------
# ``explain`` puts all of this into one text (``roller-tvm plan matmul m=1024 n=1024 k=1024 --device v100 --explain``
# prints the same), with the reason for which each runner-up lost. ``why_slower`` compares any two.

chapter("The whole text")
print(explain(found, v100, runners_up=2))
print("first against last:", why_slower(best, found.plans[-1], v100))

# %%
# The schedule
# ------------
# Lowering turns the plan into steps, in the order in which they are applied to TVM's loops. Each axis is split into its
# tiles; the letters after the axis tell which: b(lock), v(irtual thread), t(hread), i(nner).

chapter("The schedule")
print("\n".join(explain_steps(best).splitlines()[:12]), "\n...")

# %%
# The same operator on this machine's CPU
# ---------------------------------------
# Other levels, the same words: chunks take the place of blocks, a register tile of vectors that of a thread's tile.
# The device is measured once, a few seconds, and kept.

chapter("This machine's CPU")
cpu = load_device("cpu")
print(cpu)
on_cpu = construct(matmul, cpu, top=3).best
print(on_cpu.plan.programs[0])
bars(on_cpu.estimate.programs[0])
registers = on_cpu.plan.programs[0].tiles[-1]
vectors = registers["m"] * ceil(registers["n"] / cpu.vector_width)
print(f"{vectors} vectors of accumulators, of {cpu.limits.vector_registers} registers")

# %%
# An operator that computes next to nothing
# -----------------------------------------
# Nothing is used twice, so no tile helps: the far memory sets the pace, and the plan only sees to whole transactions
# and enough of them in flight. The figure to look at is the share of the memory's bandwidth.

chapter("Bound by memory")
relu = operator("relu", shape=(64, 256, 56, 56))
flat = construct(relu, v100, top=1).best
moved = 2 * 4 * prod((64, 256, 56, 56))
print(flat.plan.programs[0])
bars(flat.estimate.programs[0])
print(f"{moved / flat.seconds / 1e9:.0f} of {v100.far.bandwidth_gbps:g} GB/s: {flat.estimate.bound} bound")

# %%
# Was the count right?
# --------------------

assert abs(traffic / estimate.level("l2").bytes - 1) < 0.05
assert best.seconds > computing and flat.seconds > moved / v100.far.bandwidth_gbps / 1e9
print("\nthe count by hand and the model agree")
