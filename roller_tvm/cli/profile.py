"""``roller-tvm profile``: this machine's CPU or a CUDA card, measured once and kept. Imports no TVM."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from roller_tvm.cli.line import add_tracker_arguments
from roller_tvm.device import (
    CpuReport,
    CudaReport,
    DeviceSpec,
    cpu_report,
    cuda_report,
    default_cpu_target,
    parse_target,
    spec_text,
)
from roller_tvm.errors import BadInput, UsageError, cannot_write
from roller_tvm.folders import beside


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the verb."""
    parser.add_argument(
        "--device", default="cpu", help="cpu, or a CUDA card of this machine: cuda:0, cuda:1, ...; default cpu"
    )
    parser.add_argument("--refresh", action="store_true", help="measure again, even if there is a profile")
    parser.add_argument(
        "-o", "--out", type=Path, metavar="FILE.toml", help="write a spec file too, for --device of other commands"
    )
    told = "measure latency and bandwidth between the ranks of mpirun (or two here) too: the device's network"
    parser.add_argument("--mpi", action="store_true", help=told)
    add_tracker_arguments(parser, "profile the CPU of a server of TVM's RPC tracker there, instead of this machine's")
    told = "with --rpc-tracker: the server's target, if it is another machine: 'llvm -mtriple=aarch64-linux-gnu'"
    parser.add_argument("--target", metavar="TARGET", help=told)
    parser.add_argument("--json", action="store_true", help="print the device as JSON")
    parser.epilog = "The profile is kept in the user's cache folder; plan, tune and compile use it from then on.\n"
    parser.epilog += "The CPU is profiled by itself where it is first needed."


def run(args: argparse.Namespace) -> int:
    """Profile and print; ProfileError if what was measured cannot be believed."""
    card = re.fullmatch(r"cuda(?::(\d+))?", args.device)
    if args.device != "cpu" and not card:
        raise UsageError(f"{args.device!r} cannot be profiled", "--device", "give cpu, or cuda:0 for the first card")
    if args.out is not None and not args.out.resolve().parent.is_dir():
        raise BadInput("no such folder", str(args.out.parent), f"mkdir -p {args.out.parent}")
    if args.mpi:
        return _network(args)
    if args.rpc_tracker or args.rpc_key or args.target:
        report: CpuReport | CudaReport = _remote(args)
    else:
        report = cuda_report(int(card[1] or 0), args.refresh) if card else cpu_report(refresh=args.refresh)
    if args.json:
        print(report.spec.to_json(indent=1))
    else:
        print(cpu_table(report) if isinstance(report, CpuReport) else cuda_table(report))
    if args.out is not None:
        _write(args.out, report.spec)
        if not args.json:
            print(f"use it elsewhere: roller-tvm plan ... --device {args.out}")
    if report.refused is not None:
        raise report.refused
    return 0


def _write(path: Path, spec: DeviceSpec) -> None:
    """Write a spec file, whole or not at all."""
    try:
        with beside(path) as made:
            made.write_text(spec_text(spec), encoding="utf-8")
    except OSError as error:
        raise cannot_write(error, path) from error


def _remote(args: argparse.Namespace) -> CpuReport:
    """Profile the CPU of a server."""
    from roller_tvm.tuning.remote import Tracker
    from roller_tvm.tuning.remote_profile import remote_cpu_report

    tracker = Tracker.of(args.rpc_tracker, args.rpc_key)
    if tracker is None:
        raise UsageError("this machine needs no target", "--target", "give --rpc-tracker and --rpc-key too")
    if args.device != "cpu":
        raise UsageError("servers are profiled as CPUs", "--device", "leave it out, or profile the card where it is")
    words = parse_target(args.target).attrs if args.target else {}
    return remote_cpu_report(tracker, str(words.get("mtriple", "")), str(words.get("mcpu", "")), args.refresh)


def _network(args: argparse.Namespace) -> int:
    """Profile the CPU and the network; rank 0 prints and writes."""
    from roller_tvm.cli.nodes import profile_network

    if args.device != "cpu":
        raise UsageError("a network links CPUs", "--mpi", "leave --device out")
    spec = profile_network(args.refresh)
    if spec is None:
        return 0
    print(spec.to_json(indent=1) if args.json else spec.describe())
    if args.out is not None:
        _write(args.out, spec)
    return 0


def cpu_table(report: CpuReport) -> str:
    """A CPU's report as text."""
    facts, profile = report.facts, report.profile
    measured = "assumed" if report.reason else "measured"
    lines = [
        report.spec.describe(),
        "",
        f"detected: {facts.machine_logical} CPUs, {facts.logical} ours, {facts.cores} cores",
        f"vectors: {facts.simd.name}",
        f"quota: {facts.quota if facts.quota is not None else 'none'}",
        f"clock: {facts.clock_ghz:.2f} GHz told, {profile.clock_ghz:.2f} GHz {measured}",
        f"FMA: {profile.fma_per_cycle:.2f} vectors a cycle, latency {profile.fma_latency_cycles:.1f} cycles",
        f"instructions begun a cycle: {profile.dispatch_per_cycle:.1f}",
        f"parallel region: {profile.launch_us:.2f} us on {profile.units} threads that spin",
        "",
        f"{'float32 by threads':<20} {'GFLOP/s':>9} {'of one':>7}",
    ]
    one = profile.scaling[1]
    for threads, rate in profile.scaling.items():
        mark = "  <- as far as threads scale" if threads == profile.units else ""
        lines.append(f"{threads:<20} {rate:>9.1f} {rate / one:>6.2f}x{mark}")
    lines += ["", f"{'':<20} {'1 thread':>9} {f'{profile.units} threads':>10} {'median below best':>18}"]
    for title, unit, rates in (("peak", "GFLOP/s", profile.peak), ("read", "GB/s", profile.bandwidth)):
        for key, (single, full) in rates.items():
            spread = profile.spread.get(key)
            told = f"{spread:.0%}" if spread is not None else "-"
            lines.append(f"{f'{title} {key}, {unit}':<20} {single:>9.1f} {full:>10.1f} {told:>18}")
    if report.reason:
        lines += ["", "assumed, not measured"]
    else:
        lines += ["", f"{_how(report)}; {report.path}"]
    lines.append(f"target: {default_cpu_target(profile.units, facts)}")
    return "\n".join(lines)


def cuda_table(report: CudaReport) -> str:
    """A card's report as text."""
    facts, profile = report.facts, report.profile
    lines = [report.spec.describe(sources=profile is not None), ""]
    if profile is not None:
        lines.append(f"{'read, MiB':<12} {'GB/s':>9}")
        lines += [f"{size >> 20:<12} {rate:>9.1f}" for size, rate in profile.by_size.items()]
        lines.append("")
    kept = report.spec.source == "profiled"
    lines.append(f"{_how(report)}; {report.path}" if kept else "the driver's limits, speeds assumed")
    lines.append(f"target: cuda -arch={facts.arch}")
    return "\n".join(lines)


def _how(report: CpuReport | CudaReport) -> str:
    return "read from the cache" if report.cached else f"measured in {report.seconds:.1f} s"
