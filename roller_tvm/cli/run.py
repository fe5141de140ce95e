"""``roller-tvm run``."""

from __future__ import annotations

import argparse
import json
from contextlib import nullcontext
from pathlib import Path

from roller_tvm.cli.arrays import check_writable, write_arrays
from roller_tvm.cli.inputs import inputs_of
from roller_tvm.cli.line import add_line_argument, models_of
from roller_tvm.cli.model import say
from roller_tvm.cli.nodes import add_mpi_arguments, check_mpi_arguments, run_on_ranks
from roller_tvm.cli.reference import compare, expected
from roller_tvm.cli.shown import print_outputs, statistics_of, summary
from roller_tvm.errors import UsageError
from roller_tvm.tuning.kernel_times import KernelTime, kernel_table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the verb."""
    parser.add_argument("PATH", type=Path, help="a model built by 'roller-tvm compile' or tvmc (.tar, .so)")
    parser.add_argument(
        "-i",
        "--inputs",
        default="random",
        metavar="FILE.npz",
        help="arrays by input name; inputs that are not in the file are filled (--fill-mode); default: random values",
    )
    parser.add_argument(
        "--fill-mode",
        choices=["random", "zeros", "ones"],
        default="random",
        help="values of the inputs that are not given (random ones are seeded)",
    )
    parser.add_argument(
        "-o", "--outputs", type=Path, metavar="FILE.npz", help="write the outputs to this .npz file (output_0, ...)"
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], help="default: what the model was built for")
    parser.add_argument(
        "--emulate",
        action="store_true",
        help="run the kernels of a model built for cuda on this CPU, every access to memory checked; no GPU is needed",
    )
    parser.add_argument("--unchecked", action="store_true", help="with --emulate: several times faster, values alone")
    parser.add_argument(
        "--expect",
        type=Path,
        metavar="FILE",
        help="compare the outputs with those of an .npz file, or of a model (ONNX: by onnxruntime) on the same inputs",
    )
    told = "read a model for --expect that is a program (.pt2, .json, .relay): it can do whatever you can do"
    parser.add_argument("--trust-model", action="store_true", help=told)
    parser.add_argument("--print-time", action="store_true", help="measure and print the execution times")
    told = "measure each kernel's share of a run (--repeat runs) and print a table"
    parser.add_argument("--profile", action="store_true", help=told)
    parser.add_argument("--print-top", type=int, metavar="N", help="print the N largest values and their indices")
    parser.add_argument("--repeat", type=int, default=10, metavar="N", help="repeats of the measurement; default 10")
    parser.add_argument("--number", type=int, default=10, metavar="N", help="runs in each repeat; default 10")
    parser.add_argument("--threads", type=int, metavar="N", help="default: what this CPU scales to")
    add_mpi_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print outputs' statistics and times as JSON")
    add_line_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Run the model once, and measure it if asked."""
    for name in ("repeat", "number", "print_top", "threads"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name.replace('_', '-')} must be 1 or more (got {value})", remedy="leave it out")
    if args.emulate and (args.print_time or args.profile or args.device):
        which = "--print-time" if args.print_time else "--profile" if args.profile else "--device"
        raise UsageError("--emulate says nothing about time, and is its own device", which, f"leave {which} out")
    if args.unchecked and not args.emulate:
        raise UsageError("--unchecked goes with --emulate", remedy="leave it out")
    check_mpi_arguments(args)
    if args.mpi:
        return run_on_ranks(args)
    from roller_tvm.device import cpu_device
    from roller_tvm.tvm_env import use_threads
    from roller_tvm.tvm_env.pin import pinned_calling_thread

    if args.outputs is not None:
        check_writable(args.outputs)
    line = models_of(args, "running a model")
    threads = use_threads(args.threads, cpu_device().units)
    if args.emulate:
        model = line.emulate(args.PATH, not args.unchecked, say)
    else:
        model = line.open(args.PATH, args.device or "")
    inputs = inputs_of(args, model.inputs)
    outputs = model.run(inputs)
    if args.outputs is not None:
        write_arrays(args.outputs, outputs)
    agreed = ""
    if args.expect is not None:
        who, wanted = expected(args.expect, inputs, line, args.threads, args.trust_model)
        agreed = compare(outputs, wanted, who)
    elif args.emulate:
        say("the outputs were compared with nothing: --expect model.onnx, or --expect outputs.npz")
    times: list[float] = []
    kernels: list[KernelTime] = []
    with pinned_calling_thread() if args.print_time or args.profile else nullcontext():
        if args.print_time:
            times = model.times(inputs, args.number, args.repeat)
        if args.profile:
            kernels = model.kernel_times(inputs, args.repeat)
    if args.json:
        told = {
            "outputs": [statistics_of(o) for o in outputs], "times_s": times, "kernels": [k.to_json() for k in kernels],
            "device": model.kind, "threads": threads, "agrees": agreed or None,
        }  # fmt: skip
        print(json.dumps(told, indent=1))
        return 0
    print_outputs(outputs, args.print_top)
    if agreed:
        print(agreed)
    if times:
        say(f"{model.kind}, {threads} threads, {args.repeat} repeats of {args.number} runs")
        print(summary(times))
    if args.profile:
        print(kernel_table(kernels))
    return 0
