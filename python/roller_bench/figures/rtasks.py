"""rTask fusion of branchy models (Relax line), as predicted."""

from __future__ import annotations

import argparse
import sys
import time

from roller_bench.branchy import MODELS, PARTS, build
from roller_bench.figures import add_out, tell
from roller_tvm.device import load_device
from roller_tvm.errors import UsageError
from roller_tvm.planner.explain.words import table
from roller_tvm.rammer import POLICIES, DataFlowGraph, explain_fusion, plan_graph
from roller_tvm.rammer.veu import LAUNCHES
from roller_tvm.stats import geomean

HEAD = ("model", "device", "launched from", "operators", "kernels", "fused", "fewer", "us", "fused", "faster",
        "scheduling s")  # fmt: skip


def rtask_figures(parser: argparse.ArgumentParser) -> None:
    """Predict rTask fusion of whole models at batch 1: kernels launched, makespan, seconds of scheduling.

        python -m roller_bench rtask-figures                                  # six models, h200 and v100
        python -m roller_bench rtask-figures lstm --devices a100 --explain    # the plan in words

    Needs the Relax line of TVM (0.25 or later); no GPU, and nothing is compiled. Both sides run Roller's kernels: one
    by one, and fused by ``roller_tvm.rammer``; launched from a stream, and as nodes of a CUDA graph. The costs of a
    launch and a barrier are in ``roller_tvm/device/data/_cuda.toml``, with their source. The GPU kit compiles and runs
    such kernels.
    """
    known = [*MODELS, *PARTS]
    parser.add_argument("models", nargs="*", default=[*MODELS, "lstm_long"], help=f"some of {', '.join(known)}")
    parser.add_argument("--devices", nargs="+", default=["h200", "v100"])
    parser.add_argument("--policy", default="best", choices=POLICIES)
    parser.add_argument("--explain", action="store_true", help="also explain every plan in words")
    add_out(parser)
    parser.set_defaults(run=_run)


def graphs_of(model: str, device: str) -> list[DataFlowGraph]:
    """Return the parts of a model that can be planned; print a note if some are left out."""
    from roller_tvm.relax.fuse_rtasks import rtask_graph

    found = rtask_graph(build(model)[0], device=device)
    for name, reason in found.outside:
        print(f"{model}: {name} stays outside: {reason}", file=sys.stderr)
    return [found.graph(region) for region in found.regions]


def _run(args: argparse.Namespace) -> int:
    if strange := [m for m in args.models if m not in {**MODELS, **PARTS}]:
        raise UsageError(f"no model {strange[0]!r}", remedy=f"choose from {', '.join([*MODELS, *PARTS])}")
    rows, faster = [HEAD], dict[tuple[str, str], list[float]]()
    for device in args.devices:
        for model in args.models:
            graphs = graphs_of(model, device)
            for launch in LAUNCHES:
                start = time.process_time()  # of one thread
                plans = [plan_graph(graph, load_device(device), args.policy, launch) for graph in graphs]
                spent = time.process_time() - start
                many, few = sum(p.sequential_launches for p in plans), sum(p.launches for p in plans)
                slow, fast = sum(p.sequential_seconds for p in plans), sum(p.seconds for p in plans)
                faster.setdefault((device, launch), []).append(slow / fast)
                rows.append((model, device, launch, str(sum(len(g.operators) for g in graphs)), str(many), str(few),
                             f"{many / few:.1f}x", f"{slow * 1e6:.0f}", f"{fast * 1e6:.0f}", f"{slow / fast:.2f}x",
                             f"{spent:.1f}"))  # fmt: skip
                print("  ".join(rows[-1]), flush=True)
                if args.explain:
                    print("\n\n".join(map(explain_fusion, plans)))
    means = [f"{device}, launched from a {launch}: {geomean(found):.2f}x faster (geometric mean of {len(found)} models)"
             for (device, launch), found in faster.items()]  # fmt: skip
    words = [*args.models, "--devices", *args.devices, "--policy", args.policy]
    tell("\n".join([f"python -m roller_bench rtask-figures {' '.join(words)}", "", *table(rows, left=3, indent=""), "",
                    *means]), args.out)  # fmt: skip
    return 0
