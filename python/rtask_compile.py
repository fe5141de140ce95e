#!/usr/bin/env python3
"""Compile fused kernels of whole models: registers, spills, shared memory, and a check that all blocks are resident.

    python python/rtask_compile.py                                     # six branchy models, sm_80 and sm_90
    python python/rtask_compile.py inception attention --archs sm_90

Needs the Relax line of TVM (0.27 or later) and nvcc or NVRTC; no GPU. The kernels are those of ``FuseRTasks``. It
compiles kernels with waits to choose their launch bounds (``roller_tvm.rammer.without_spills``), and plans anew if all
bounds spill. Blocks that wait for one another must all be on the device at once, so the compiled resources are compared
with the plan's. Exit code 1 if a kernel spills, or would wait for blocks that cannot start.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from roller_tvm.codegen import KernelResources, compile_cuda, kernel_resources  # noqa: E402
from roller_tvm.device import DeviceSpec, load_device  # noqa: E402
from roller_tvm.kit.build import DEVICES  # noqa: E402
from roller_tvm.micro_perf.occupancy import occupancy  # noqa: E402
from roller_tvm.planner.explain.words import table  # noqa: E402
from roller_tvm.rammer import Part  # noqa: E402
from roller_tvm.rammer.fused_kernel import FusedKernel  # noqa: E402
from roller_tvm.relax.branchy import MODELS, PARTS, build  # noqa: E402

BRANCHY = ("resnext", "nasnet_cell", "inception", "lstm", "seq2seq", "attention")


@dataclass(frozen=True)
class Compiled:
    """A compiled fused kernel."""

    model: str
    arch: str
    part: Part
    kernel: FusedKernel
    resources: KernelResources
    fits: int

    @property
    def good(self) -> bool:
        return self.fits >= max(1, self.kernel.resident)


def compiled(model: str, device: DeviceSpec, arch: str, launch: str, compiler: str) -> tuple[list[Compiled], str]:
    """Return every fused kernel of a model, and a note on the model's fusion."""
    from roller_tvm.relax import FuseRTasks
    from roller_tvm.tir.cuda import cuda_target

    start = time.perf_counter()
    fused = FuseRTasks(cuda_target(arch, device), device, launch=launch)
    fused(build(model)[0])
    rows = []
    for region in fused.report.regions:
        for part, name in zip(region.plan.parts, region.functions, strict=True):
            if not name:
                continue
            kernel = fused.report.kernels[name]
            (launched,) = kernel.host.launches
            found = kernel.compiled or kernel_resources(
                compile_cuda(kernel.source, arch, compiler, f"{model}, {name}"))[launched.kernel]
            shared = kernel.shared_bytes if kernel.compiled else found.shared_bytes + int(launched.dynamic_shared)
            fits, _ = occupancy(device, int(launched.block[0]), found.registers, shared)
            rows.append(Compiled(model, arch, part, kernel, found, fits))
    plans = [region.plan for region in fused.report.regions]
    refused = [line for region in fused.report.regions for line in region.refused]
    words = (f"{model} {arch}: {sum(p.launches for p in plans)} kernels, {sum(p.seconds for p in plans) * 1e6:.0f} us "
             f"predicted, {time.perf_counter() - start:.0f} s")
    return rows, "\n".join([words, *(f"  re-planned: {line[:240]}" for line in refused)])


def row(one: Compiled) -> tuple[str, ...]:
    program = one.part.program
    assert program is not None
    r, planned = one.resources, program.device
    (launched,) = one.kernel.host.launches
    bounds = one.kernel.bounds  # of which TensorIR says how many blocks, not how many threads
    return (one.model, one.arch, str(len(one.part.kernels)), str(program.tasks), str(program.barriers),
            f"{launched.grid[0]} x {launched.block[0]}", str(bounds if bounds and bounds.blocks else launched.block[0]),
            f"{r.registers} of {planned.registers}", str(max(r.local_bytes, r.spill_bytes or 0)),
            f"{one.kernel.shared_bytes} of {planned.shared_bytes}", f"{one.fits} of {one.kernel.resident or '-'}",
            f"{r.code_bytes / 1024:.0f}", "" if one.good else "NOT RESIDENT")


def report(rows: Sequence[Compiled]) -> str:
    head = ("model", "arch", "operators", "rTasks", "barriers", "blocks", "bounds", "registers", "spills B", "shared B",
            "a unit holds", "code KiB", "")
    lines = table([head, *map(row, rows)], left=2, indent="")
    good, spilling = sum(r.good for r in rows), sum(r.resources.spills for r in rows)
    lines += ["", f"{good} of {len(rows)} fused kernels have all their blocks on the device at once; {spilling} spill"]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=list(BRANCHY), help=f"some of {', '.join([*MODELS, *PARTS])}")
    parser.add_argument("--archs", nargs="+", default=list(DEVICES), choices=list(DEVICES))
    parser.add_argument("--launch", default="graph", choices=("stream", "graph"))
    parser.add_argument("--compiler", default="auto", choices=("auto", "nvrtc", "nvcc"))
    parser.add_argument("--out", type=Path, help="also write the table to this file")
    args = parser.parse_args()
    if strange := [m for m in args.models if m not in {**MODELS, **PARTS}]:
        parser.error(f"no model {strange[0]!r}: there are {', '.join([*MODELS, *PARTS])}")
    rows: list[Compiled] = []
    told = []
    for model in args.models:
        for arch in args.archs:
            found, words = compiled(model, load_device(DEVICES[arch]), arch, args.launch, args.compiler)
            rows += found
            told.append(words)
            print("\n".join([*("  ".join(filter(None, row(one))) for one in found), words]), flush=True)
    words = f"{' '.join(args.models)} --archs {' '.join(args.archs)} --launch {args.launch}"
    text = "\n".join([f"python python/rtask_compile.py {words}", "", report(rows), "", *told])
    print(f"\n{text}")
    if args.out:
        args.out.write_text(text + "\n", encoding="utf-8")
    return 0 if rows and all(r.good and not r.resources.spills for r in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
