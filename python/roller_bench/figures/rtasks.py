"""rTask fusion of branchy models (Relax line): predicted, compiled, and executed on PoCL."""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roller_bench.branchy import MODELS, PARTS, build
from roller_bench.figures import add_out, tell
from roller_bench.kit.build import DEVICES
from roller_check import Checked
from roller_tvm.codegen import KernelResources, compile_cuda, kernel_resources
from roller_tvm.codegen.errors import NotEmulated
from roller_tvm.device import DeviceSpec, load_device
from roller_tvm.errors import RollerError, UsageError, WrongAnswer
from roller_tvm.micro_perf.occupancy import occupancy
from roller_tvm.planner.explain.words import table
from roller_tvm.rammer import POLICIES, DataFlowGraph, FusionPlan, Part, explain_fusion, plan_graph
from roller_tvm.rammer.cuda_functions import CannotFuse
from roller_tvm.rammer.fused_kernel import FusedKernel
from roller_tvm.rammer.veu import LAUNCHES

BRANCHY = ("resnext", "nasnet_cell", "inception", "lstm", "seq2seq", "attention")


def _add_models(parser: argparse.ArgumentParser, default: Sequence[str]) -> None:
    known = [*MODELS, *PARTS]
    parser.add_argument("models", nargs="*", default=list(default), help=f"some of {', '.join(known)}")
    add_out(parser)


def _known(models: Sequence[str]) -> None:
    """Check names of branchy models.

    Raises
    ------
    UsageError
    """
    if strange := [m for m in models if m not in {**MODELS, **PARTS}]:
        raise UsageError(f"no model {strange[0]!r}", remedy=f"choose from {', '.join([*MODELS, *PARTS])}")


# -- predicted --

#: What is wanted (issue 7): geometric means over the six models, and kernels of the three that are named.
WANTED = {"stream": 1.8, "graph": 1.3}
FEWER, FEWER_OF = 3.0, ("nasnet", "resnext", "lstm")
SCHEDULING_S, SCHEDULED_OPERATORS = 10.0, 1000


@dataclass(frozen=True)
class Row:
    """A model planned for a device, launched in one way."""

    model: str
    device: str
    launch: str
    operators: int
    plans: tuple[FusionPlan, ...]
    scheduling_s: float

    @property
    def unfused(self) -> int:
        return sum(p.sequential_launches for p in self.plans)

    @property
    def fused(self) -> int:
        return sum(p.launches for p in self.plans)

    @property
    def unfused_us(self) -> float:
        return sum(p.sequential_seconds for p in self.plans) * 1e6

    @property
    def fused_us(self) -> float:
        return sum(p.seconds for p in self.plans) * 1e6

    @property
    def faster(self) -> float:
        return self.unfused_us / self.fused_us


def graphs_of(model: str, device: str) -> list[DataFlowGraph]:
    """Return the parts of a model that can be planned; print a note if some are left out."""
    from roller_tvm.relax.fuse_rtasks import rtask_graph

    found = rtask_graph(build(model)[0], device=device)
    for name, reason in found.outside:
        print(f"{model}: {name} stays outside: {reason}", file=sys.stderr)
    return [found.graph(region) for region in found.regions]


def rows_of(model: str, device: str, policy: str) -> list[Row]:
    spec, graphs = load_device(device), graphs_of(model, device)
    rows = []
    for launch in LAUNCHES:
        start = time.process_time()  # of one thread
        plans = tuple(plan_graph(graph, spec, policy, launch) for graph in graphs)
        seconds = time.process_time() - start
        rows.append(Row(model, device, launch, sum(len(g.operators) for g in graphs), plans, seconds))
    return rows


def lines_of(rows: Sequence[Row]) -> list[str]:
    head = ("model", "device", "launched from", "operators", "kernels", "fused", "fewer", "us", "fused", "faster",
            "scheduling s")
    body = [
        (r.model, r.device, r.launch, str(r.operators), str(r.unfused), str(r.fused), f"{r.unfused / r.fused:.1f}x",
         f"{r.unfused_us:.0f}", f"{r.fused_us:.0f}", f"{r.faster:.2f}x", f"{r.scheduling_s:.1f}") for r in rows
    ]  # fmt: skip
    return table([head, *body], left=3, indent="")


def verdicts(rows: Sequence[Row]) -> list[tuple[bool, str]]:
    """Return (True if met, a sentence) for each figure that the rows cover."""
    found = []
    for device in dict.fromkeys(r.device for r in rows):
        for launch, wanted in WANTED.items():
            mine = [r.faster for r in rows if (r.device, r.launch) == (device, launch) and r.model in MODELS]
            if len(mine) == len(MODELS):
                mean = math.exp(statistics.fmean(map(math.log, mine)))
                found.append((mean >= wanted, f"{device}, launched from a {launch}: {mean:.2f}x faster by geometric "
                                              f"mean, wanted {wanted}x"))
        for r in rows:
            if r.device == device and r.launch == "stream" and r.model in FEWER_OF:
                found.append((r.unfused >= FEWER * r.fused, f"{device}: {r.model} {r.unfused / r.fused:.1f}x fewer "
                                                            f"kernels, wanted {FEWER:g}x"))
    for r in rows:
        if r.operators >= SCHEDULED_OPERATORS:
            found.append((r.scheduling_s <= SCHEDULING_S, f"{r.model} on {r.device}: {r.operators} operators scheduled "
                                                          f"in {r.scheduling_s:.1f} s, wanted {SCHEDULING_S:g} s"))
    return found


def rtask_figures(parser: argparse.ArgumentParser) -> None:
    """Predict rTask fusion of whole models at batch 1: kernels launched, makespan, seconds of scheduling.

        python -m roller_bench rtask-figures                                  # six models, h200 and v100
        python -m roller_bench rtask-figures lstm --devices a100 --explain    # the plan in words

    Needs the Relax line of TVM (0.25 or later); no GPU, and nothing is compiled. Both sides run Roller's kernels: one
    by one, and fused by ``roller_tvm.rammer``; launched from a stream, and as nodes of a CUDA graph. The costs of a
    launch and a barrier are in ``roller_tvm/device/data/_cuda.toml``, with their source. Exit code 1 if a figure is
    missed.
    """
    _add_models(parser, [*MODELS, "lstm_long"])
    parser.add_argument("--devices", nargs="+", default=["h200", "v100"])
    parser.add_argument("--policy", default="best", choices=POLICIES)
    parser.add_argument("--explain", action="store_true", help="also explain every plan in words")
    parser.set_defaults(run=_figures)


def _figures(args: argparse.Namespace) -> int:
    _known(args.models)
    rows: list[Row] = []
    for device in args.devices:
        for model in args.models:
            made = rows_of(model, device, args.policy)
            rows += made
            print("\n".join(lines_of(made)[-len(made):]), flush=True)
            if args.explain:
                for row in made:
                    print("\n\n".join(map(explain_fusion, row.plans)))
    said = verdicts(rows)
    words = [*args.models, "--devices", *args.devices, "--policy", args.policy]
    verdict = [f"{'met' if met else 'MISSED'}: {what}" for met, what in said]
    tell("\n".join([f"python -m roller_bench rtask-figures {' '.join(words)}", "", *lines_of(rows), "", *verdict]),
         args.out)  # fmt: skip
    return 0 if all(met for met, _ in said) else 1


# -- compiled --


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
    from roller_tvm.relax.cuda import cuda_target

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


def _compiled_row(one: Compiled) -> tuple[str, ...]:
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
    lines = table([head, *map(_compiled_row, rows)], left=2, indent="")
    good, spilling = sum(r.good for r in rows), sum(r.resources.spills for r in rows)
    lines += ["", f"{good} of {len(rows)} fused kernels have all their blocks on the device at once; {spilling} spill"]
    return "\n".join(lines)


def rtask_compile(parser: argparse.ArgumentParser) -> None:
    """Compile fused kernels of whole models: registers, spills, shared memory, and whether all blocks are resident.

        python -m roller_bench rtask-compile                                     # six branchy models, sm_80 and sm_90
        python -m roller_bench rtask-compile inception attention --archs sm_90

    Needs the Relax line of TVM (0.27 or later) and nvcc or NVRTC; no GPU. The kernels are those of ``FuseRTasks``. It
    compiles kernels with waits to choose their launch bounds (``roller_tvm.rammer.launch_bounds``), and plans anew if
    all bounds spill. Blocks that wait for one another must all be on the device at once, so the compiled resources are
    compared with the plan's. Exit code 1 if a kernel spills, or would wait for blocks that cannot start.
    """
    _add_models(parser, BRANCHY)
    parser.add_argument("--archs", nargs="+", default=list(DEVICES), choices=list(DEVICES))
    parser.add_argument("--launch", default="graph", choices=LAUNCHES)
    parser.add_argument("--compiler", default="auto", choices=("auto", "nvrtc", "nvcc"))
    parser.set_defaults(run=_compile)


def _compile(args: argparse.Namespace) -> int:
    _known(args.models)
    rows: list[Compiled] = []
    told = []
    for model in args.models:
        for arch in args.archs:
            found, words = compiled(model, load_device(DEVICES[arch]), arch, args.launch, args.compiler)
            rows += found
            told.append(words)
            print("\n".join([*("  ".join(filter(None, _compiled_row(one))) for one in found), words]), flush=True)
    words = f"{' '.join(args.models)} --archs {' '.join(args.archs)} --launch {args.launch}"
    tell("\n".join([f"python -m roller_bench rtask-compile {words}", "", report(rows), "", *told]), args.out)
    return 0 if rows and all(r.good and not r.resources.spills for r in rows) else 1


# -- executed on PoCL --

#: What a kernel's result is counted by; WRONG for all others.
STATES = ((Checked, "agree"), (CannotFuse, "wait, or cannot be fused so"), (NotEmulated, "not of PoCL's types"))
WRONG = "WRONG"


def module_of(model: str, scale: int) -> Any:
    """Return a branchy model by its name, or a model from a file."""
    from roller_bench.branchy import MODELS, PARTS, build
    from roller_tvm.relax import load_model

    return build(model, scale)[0] if model in {**MODELS, **PARTS} else load_model(model).mod


def state(result: Checked | RollerError) -> str:
    return next((name for kind, name in STATES if isinstance(result, kind)), WRONG)


def _pocl_row(model: str, found: Mapping[str, Checked | RollerError], seconds: float) -> tuple[str, ...]:
    states = [*map(state, found.values())]
    told = [f"{states.count(name)}" for name in (*(name for _, name in STATES), WRONG)]
    elements = sum(r.elements for r in found.values() if isinstance(r, Checked))
    return (model, f"{len(found)}", *told, f"{elements}", f"{seconds:.0f}")


def rtask_on_pocl(parser: argparse.ArgumentParser) -> None:
    """Execute fused kernels without waits in OpenCL on PoCL, and compare them operator by operator (Relax line).

        .venv/relax/bin/python -m roller_bench rtask-on-pocl                   # branchy models, sizes divided by 16
        .venv/relax/bin/python -m roller_bench rtask-on-pocl lstm model.onnx --arch sm_90 --policy best

    Needs PoCL but no GPU. Code generator, compiler and barriers differ from the emulator's. With another policy than
    'horizontal' most kernels have waits and are not executed. Exit code 1 if a kernel is wrong. A model may be a file.
    """
    _add_models(parser, BRANCHY)
    parser.add_argument("--arch", default="sm_80", help="architecture that is planned for; default sm_80")
    parser.add_argument("--scale", type=int, default=16, help="divisor of the branchy models' sizes; default 16")
    parser.add_argument("--policy", default="horizontal", choices=POLICIES)
    parser.add_argument("--launch", default="stream", choices=LAUNCHES)
    parser.add_argument("--top", type=int, default=10, help="plans per operator; default 10")
    parser.set_defaults(run=_on_pocl)


def _on_pocl(args: argparse.Namespace) -> int:
    from roller_tvm.relax import check_fusion_on_pocl

    rows, wrong = [], False
    for model in args.models:
        start = time.perf_counter()
        found = check_fusion_on_pocl(module_of(model, args.scale), {"kind": "cuda", "arch": args.arch},
                                     policy=args.policy, launch=args.launch, top=args.top)  # fmt: skip
        rows.append(_pocl_row(Path(model).stem, found, time.perf_counter() - start))
        wrong = wrong or any(state(r) == WRONG for r in found.values())
        for name, result in found.items():
            print(f"{model} {name}: {result}", flush=True)
    head = ("model", "fused kernels", *(name for _, name in STATES), WRONG, "elements compared", "s")
    options = {n: getattr(args, n) for n in ("arch", "scale", "policy", "launch", "top")}
    given = " ".join([*args.models, *(f"--{name} {value}" for name, value in options.items())])
    lines = table([head, *rows], left=1, indent="")
    tell("\n".join([f"python -m roller_bench rtask-on-pocl {given}", "", *lines]), args.out)
    return WrongAnswer.exit_code if wrong else 0
