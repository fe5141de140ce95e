#!/usr/bin/env python3
"""Fused kernels of whole models compiled: registers, spills, shared memory, and whether all their blocks are resident.

    python python/rtask_compile.py                                     # six branchy models, sm_80 and sm_90
    python python/rtask_compile.py inception attention --archs sm_90

Needs the Relax line of TVM (0.25 or later) and nvcc or NVRTC; no GPU. Blocks that wait for one another have to be on
the device all at once: what the compiler took is held against what the plan counted on. Exit code 1 if a kernel is
refused, or would wait for blocks that cannot start.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from roller_tvm.device import DeviceSpec, load_device  # noqa: E402
from roller_tvm.errors import RollerError  # noqa: E402
from roller_tvm.explain.words import table  # noqa: E402
from roller_tvm.kit.build import DEVICES  # noqa: E402
from roller_tvm.model.occupancy import occupancy  # noqa: E402
from roller_tvm.rammer import Part  # noqa: E402
from roller_tvm.rammer.code import FusedKernel  # noqa: E402
from roller_tvm.relax.branchy import MODELS, PARTS, build  # noqa: E402
from roller_tvm.toolchain import KernelResources, compile_cuda, kernel_resources  # noqa: E402

BRANCHY = ("resnext", "nasnet_cell", "inception", "lstm", "seq2seq", "attention")


@dataclass(frozen=True)
class Compiled:
    """A fused kernel, or why there is none."""

    model: str
    arch: str
    part: Part
    kernel: FusedKernel | None
    resources: KernelResources | None
    fits: int
    seconds: float
    error: str = ""

    @property
    def good(self) -> bool:
        return not self.error and self.kernel is not None and self.fits >= max(1, self.kernel.resident)


def compiled(model: str, device: DeviceSpec, arch: str, launch: str, compiler: str) -> Iterator[Compiled]:
    """Every fused kernel of a model."""
    from roller_tvm.relax.rtasks import rtask_graph
    from roller_tvm.tir.rtasks import KernelMaker

    graph = rtask_graph(build(model)[0], device=device)
    maker = KernelMaker(graph.functions, graph.target)
    for region, plan in zip(graph.regions, graph.plans(launch=launch), strict=True):
        for number, part in enumerate(plan.parts):
            if part.program is None:
                continue
            start, kernel = time.perf_counter(), None
            try:
                kernel = maker.fused(f"rtasks_{number}", part, region.calls, region.kept)
                cubin = compile_cuda(kernel.source, arch, compiler, f"{model}, plan {number}")
                (launched,) = kernel.host.launches
                found = kernel_resources(cubin)[launched.kernel]
            except RollerError as error:
                what = str(error).splitlines()[0]
                yield Compiled(model, arch, part, kernel, None, 0, time.perf_counter() - start, what)
                continue
            threads, shared = launched.block[0], found.shared_bytes + int(launched.dynamic_shared)
            fits, _ = occupancy(device, threads, found.registers, shared)
            yield Compiled(model, arch, part, kernel, found, fits, time.perf_counter() - start)


def row(one: Compiled) -> tuple[str, ...]:
    program = one.part.program
    assert program is not None
    head = (one.model, one.arch, str(len(one.part.kernels)), str(program.tasks), str(program.barriers))
    if one.resources is None or one.kernel is None:
        return (*head, "", "", "", "", "", "", f"{one.seconds:.0f}", one.error[:100])
    r, planned = one.resources, program.device
    (launched,) = one.kernel.host.launches
    return (*head, f"{launched.grid[0]} x {launched.block[0]}", f"{r.registers} of {planned.registers}",
            str(r.spill_bytes if r.spill_bytes is not None else r.local_bytes),
            f"{r.shared_bytes + int(launched.dynamic_shared)} of {planned.shared_bytes}",
            f"{one.fits} of {one.kernel.resident or '-'}", f"{r.code_bytes / 1024:.0f}", f"{one.seconds:.0f}",
            "" if one.good else "NOT RESIDENT")


def report(rows: Sequence[Compiled]) -> str:
    head = ("model", "arch", "operators", "rTasks", "barriers", "blocks", "registers", "spills B", "shared B",
            "a unit holds", "code KiB", "s", "")
    lines = table([head, *map(row, rows)], left=2, indent="")
    good, spilling = sum(r.good for r in rows), sum(bool(r.resources and r.resources.spill_bytes) for r in rows)
    refused = sum(bool(r.error) for r in rows)
    lines += ["", f"{good} of {len(rows)} fused kernels compile and have all their blocks on the device at once; "
                  f"{refused} refused, {spilling} spill"]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=list(BRANCHY), help=f"of {', '.join([*MODELS, *PARTS])}")
    parser.add_argument("--archs", nargs="+", default=list(DEVICES), choices=list(DEVICES))
    parser.add_argument("--launch", default="graph", choices=("stream", "graph"))
    parser.add_argument("--compiler", default="auto", choices=("auto", "nvrtc", "nvcc"))
    parser.add_argument("--out", type=Path, help="write the table there too")
    args = parser.parse_args()
    if strange := [m for m in args.models if m not in {**MODELS, **PARTS}]:
        parser.error(f"no model {strange[0]!r}: there are {', '.join([*MODELS, *PARTS])}")
    rows: list[Compiled] = []
    for model in args.models:
        for arch in args.archs:
            for one in compiled(model, load_device(DEVICES[arch]), arch, args.launch, args.compiler):
                rows.append(one)
                print("  ".join(cell for cell in row(one) if cell), flush=True)
    words = f"{' '.join(args.models)} --archs {' '.join(args.archs)} --launch {args.launch}"
    text = "\n".join([f"python python/rtask_compile.py {words}", "", report(rows)])
    print(f"\n{text}")
    if args.out:
        args.out.write_text(text + "\n", encoding="utf-8")
    return 0 if rows and all(r.good for r in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
