"""
Describe your own device
========================

To roller_tvm a device is a file of numbers: units, memory levels, limits, peaks. This tutorial writes such files, for a
GPU that differs from a known one and for an accelerator that nobody has built, sees what mistakes say, plans for them,
and lets the machine at hand measure itself.

Run it with ``python tutorials/describe_your_device.py``; it takes some seconds and needs neither TVM nor a GPU.
"""

import tempfile
from pathlib import Path

from roller_tvm.device import cpu_report, load_device, spec_text
from roller_tvm.errors import SpecError
from roller_tvm.ir.operators import operator
from roller_tvm.planner import construct

folder = Path(tempfile.mkdtemp())


def chapter(title):
    """A heading in the output."""
    print(f"\n{title}\n{'-' * len(title)}")


convolution = operator("conv2d_nchw", n=16, c=64, h=56, w=56, f=64, k=3, padding=1)


def plan(device):
    """A line for each kernel of the best plan of a convolution."""
    best = construct(convolution, device, top=1).best
    print(f"{device.name:<13} {best.seconds * 1e6:8.1f} us predicted, {best.estimate.bound} bound")
    for program in best.plan.programs:
        print(f"   {program.recipe}", *(tile for tile in program.tiles))


# %%
# A variant of a known device
# ---------------------------
# ``base`` names a device, or another file; the rest says what differs. Every number has its unit, and may have its
# source. This is half of an H200, as a MIG slice has it.

chapter("A variant")
half = folder / "half.toml"
half.write_text("""
base = "h200"
name = "h200-half"
units = { value = 66, unit = "SM", source = "half of the GPU" }

[level.dram]
bandwidth = { value = 2.4, unit = "TB/s", source = "half of the memory" }
capacity = { value = 70, unit = "GB" }

[level.l2]
capacity = { value = 25, unit = "MiB" }
bandwidth = { value = 2.7, unit = "TB/s" }

[level.shared]
bandwidth = { value = 128, unit = "B/clk/unit" }

[level.register]
bandwidth = { value = 1536, unit = "B/clk/unit" }

[peak]
float32 = { value = 33.5, unit = "TFLOP/s", source = "half of H200's" }
""")
h200, h200_half = load_device("h200"), load_device(half)
plan(h200)
plan(h200_half)

# %%
# From the command line the same file goes where a name would: ``roller-tvm plan conv2d_nchw ... --device half.toml``,
# ``roller-tvm tune model.onnx --target "cuda -arch=sm_90" --device half.toml ...``.
#
# What if?
# --------
# A file is a way to ask questions about hardware. What would less shared memory cost, a slower cache, fewer threads?
# (``dataclasses.replace`` asks without a file.)

chapter("What if?")
for name, change in {
    "small-shared": '[limits]\nshared_per_block = { value = 4, unit = "KiB" }',
    "slow-l2": '[level.l2]\nbandwidth = { value = 4.9, unit = "TB/s" }',
    "few-threads": '[limits]\nmax_threads_per_block = { value = 64, unit = "threads" }',
}.items():
    file = folder / f"{name}.toml"
    file.write_text(f'base = "h200"\nname = "{name}"\n{change}\n')
    plan(load_device(file))

# %%
# A device of one's own
# ---------------------
# Without a base everything that a plan may ask for must be there. Levels run from far to near; ``scope`` says who
# shares one instance of a level: the whole device, a unit (multiprocessor, core), or a thread. Rates may be given by
# clock and unit, as documents have them; they are turned with the device's own clock and number of units.

chapter("A device of one's own")
whole = """
name = "acme-1"
title = "Acme One, an accelerator that nobody has built"
kind = "gpu"
arch = "acme1"
units = { value = 16, unit = "units", source = "this tutorial" }
vector_width = { value = 64, unit = "lanes" }
vector_load = { value = 16, unit = "B" }
clock = { value = 1.2, unit = "GHz" }
launch_overhead = { value = 4, unit = "us" }

[level.dram]
scope = "device"
capacity = { value = 8, unit = "GiB" }
bandwidth = { value = 100, unit = "GB/s" }
transaction = { value = 64, unit = "B" }
line = { value = 64, unit = "B" }
latency = { value = 500, unit = "ns" }

[level.l2]
scope = "device"
capacity = { value = 2, unit = "MiB" }
bandwidth = { value = 400, unit = "GB/s" }
transaction = { value = 64, unit = "B" }
line = { value = 64, unit = "B" }
latency = { value = 200, unit = "cycles" }

[level.shared]
scope = "unit"
capacity = { value = 128, unit = "KiB" }
bandwidth = { value = 256, unit = "B/clk/unit" }
transaction = { value = 4, unit = "B" }
line = { value = 256, unit = "B" }
banks = { value = 64, unit = "banks" }
bank_width = { value = 4, unit = "B" }
latency = { value = 20, unit = "cycles" }

[level.register]
scope = "thread"
capacity = { value = 512, unit = "B" }
bandwidth = { value = 1536, unit = "B/clk/unit" }
transaction = { value = 4, unit = "B" }
line = { value = 4, unit = "B" }

[limits]
max_threads_per_block = { value = 1024, unit = "threads" }
max_threads_per_unit = { value = 2048, unit = "threads" }
max_blocks_per_unit = { value = 16, unit = "blocks" }
registers_per_unit = { value = 65536, unit = "registers" }
max_registers_per_block = { value = 65536, unit = "registers" }
max_registers_per_thread = { value = 128, unit = "registers" }
register_granularity = { value = 512, unit = "registers" }
schedulers_per_unit = { value = 2, unit = "schedulers" }
shared_per_block = { value = 64, unit = "KiB" }
shared_reserved = { value = 0, unit = "B" }
shared_granularity = { value = 256, unit = "B" }
fma_latency = { value = 5, unit = "cycles" }
fma_per_cycle = { value = 2, unit = "FMA/cycle" }

[peak]
float32 = { value = 256, unit = "FLOP/clk/unit" }
"""
acme = folder / "acme.toml"
acme.write_text(whole)
device = load_device(acme)
print(device.describe())
print()
plan(device)

# %%
# Mistakes
# --------
# A number that cannot be is refused where it stands, with what was expected: nothing is guessed, nothing ignored.

chapter("Mistakes")
mistakes = {
    "a misspelled key": ("launch_overhead", "launch_overheads"),
    "a unit of another kind": ('{ value = 100, unit = "GB/s" }', '{ value = 100, unit = "GB" }'),
    "a number without unit": ('clock = { value = 1.2, unit = "GHz" }', "clock = 1.2"),
    "a level slower than the one farther away": ("value = 400", "value = 40"),
    "a transaction that does not divide the line": ("transaction = { value = 64", "transaction = { value = 48"),
    "something missing": ('[peak]\nfloat32 = { value = 256, unit = "FLOP/clk/unit" }', ""),
}
for what, (old, new) in mistakes.items():
    assert old in whole
    acme.write_text(whole.replace(old, new, 1))
    try:
        load_device(acme)
    except SpecError as error:
        print(f"{what}:\n  {error}".replace(str(folder), "FOLDER"))
    else:
        raise AssertionError(f"{what} was not refused")

# %%
# Every number of a device, as a file
# -----------------------------------
# ``spec_text`` writes any device out: a start for a file of one's own, and a way to see where numbers come from.

chapter("A device as a file")
print("\n".join(spec_text(load_device("a100")).splitlines()[:14]), "\n...")

# %%
# Let the machine measure itself
# ------------------------------
# ``roller-tvm profile`` measures this machine's CPU; ``roller-tvm profile --device cuda:0`` a CUDA card, which it asks
# for its limits. Both keep what they find in the user's cache, where plans for ``--device cpu`` and for targets of the
# card's architecture find it. On a busy machine numbers that others disturbed are measured again, and refused if that
# does not help: an earlier profile then stays. ``--out FILE`` writes the device for use elsewhere.

chapter("This machine")
report = cpu_report()
print(report.spec)
print("measured" if not report.reason else f"not measured: {report.reason}")
for name, (one, full) in report.profile.bandwidth.items():
    print(f"  {name:<5} {one:8.1f} GB/s on one thread, {full:8.1f} on {report.profile.units}")

mine = folder / "mine.toml"
mine.write_text(spec_text(report.spec))
assert load_device(mine) == report.spec
print(f"\nthe file and the device agree: {load_device(mine).digest()}")
