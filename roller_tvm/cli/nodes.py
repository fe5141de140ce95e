"""Several machines: ``compile --nodes``, ``run --mpi`` and ``profile --mpi``."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from roller_tvm.cli.arrays import check_writable, write_arrays
from roller_tvm.cli.inputs import inputs_of
from roller_tvm.cli.line import models_of
from roller_tvm.cli.model import say
from roller_tvm.cli.reference import compare, expected
from roller_tvm.cli.shown import print_outputs, statistics_of, summary
from roller_tvm.device import DeviceSpec, FrozenMap, Network, cpu_device, load_device
from roller_tvm.errors import BadInput, RollerError, UsageError, last_line
from roller_tvm.folders import work_folder
from roller_tvm.models import parse_shapes
from roller_tvm.models.line import Request
from roller_tvm.progress import progress_line
from roller_tvm.scale.mpi import Disagreement, Ranks, check_ranks, command, launched, ranks_here
from roller_tvm.scale.package import SUFFIX, Package
from roller_tvm.version import __version__

AUTO = "auto"
#: How often a thread of TVM's pool without work looks for some before it sleeps.
SPIN = "TVM_THREAD_POOL_SPIN_COUNT"
#: Sizes and counts of the messages that are timed.
SMALL, LARGE, TIMES = 8, 1 << 22, 20


def add_nodes_arguments(parser: argparse.ArgumentParser) -> None:
    """--nodes and --states of ``compile``."""
    told = (
        f"share an ONNX model among so many machines, or '{AUTO}': as many as are predicted to be done first; writes a "
        f"{SUFFIX} file for 'run --mpi'. --device names a file with a [network] table"
    )
    parser.add_argument("--nodes", metavar="N", help=told)
    told = "with --nodes: outputs that are inputs of the next run and stay where they lie"
    parser.add_argument("--states", metavar='"INPUT=OUTPUT ..."', help=told)
    told = "with --nodes: axes to share operators along ('none': each node computes all); default: the model chooses"
    parser.add_argument("--along", metavar='"OPERATOR=AXIS ..."', help=told)


def compile_for_nodes(args: argparse.Namespace) -> int:
    """Build a model for several nodes and write it."""
    from roller_tvm.models.onnx_file import read_onnx
    from roller_tvm.scale.building import build, check_output, planned

    if args.FILE.suffix != ".onnx":
        raise UsageError(f"{args.FILE} is no .onnx file", "--nodes", "export the model to ONNX")
    for name in ("tuning_records", "fuse_rtasks", "on_pocl", "timeline", "prove", "buckets", "bounds", "likely"):
        if getattr(args, name):
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"{option} does not go with --nodes", remedy=f"leave {option} out")
    nodes = None if args.nodes == AUTO else _number(args.nodes)
    output = check_output(args.output or args.FILE.with_suffix(SUFFIX))
    device = load_device(args.device) if args.device else cpu_device()
    line = models_of(args, "compiling a model")
    request = Request(args.target, schedules=args.schedules, device=device, winograd=not args.no_winograd,
                      fast_math=args.fast_math, strict=args.strict)  # fmt: skip
    model = read_onnx(args.FILE, "pip install onnx", "no other file is shared among nodes")
    shapes = parse_shapes(args.input_shapes) if args.input_shapes is not None else {}
    start = time.perf_counter()
    source, made = planned(model, str(args.FILE), device, nodes, shapes, _pairs(args.states, "--states"),
                           _pairs(args.along, "--along"))  # fmt: skip
    if args.json:
        print(json.dumps({"output": str(output), "nodes": made.program.nodes, "bytes_sent": made.program.bytes_sent,
                          "predicted": [vars(p) for p in made.program.predicted]}, indent=1))  # fmt: skip
    else:
        print(made.program)
    with progress_line() as progress:
        build(source, made, line, request, output, progress)
    if not args.json:
        size = output.stat().st_size
        print(f"{output}: {size / 1e6:.1f} MB, planned and built in {time.perf_counter() - start:.1f} s")
        say(f"next: roller-tvm run {output} --mpi")
    return 0


def _number(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise UsageError(f"--nodes must be a number from 1, or {AUTO} (got {text!r})", remedy=f"give --nodes {AUTO}")
    return int(text)


def _pairs(text: str | None, option: str) -> dict[str, str]:
    found = {}
    for word in (text or "").split():
        name, _, value = word.rpartition("=")
        if not (name and value):
            raise UsageError(f"{word!r} is not NAME=VALUE", option, 'write "a=b c=d"')
        found[name] = value
    return found


# run ---------------------------------------------------------------------------------------------------------------


def add_mpi_arguments(parser: argparse.ArgumentParser) -> None:
    """--mpi and what belongs to it, of ``run``."""
    told = f"run a {SUFFIX} file on as many ranks as it is for: those of mpirun; without it they are started here"
    parser.add_argument("--mpi", action="store_true", help=told)
    told = "with --mpi: give up when another rank is silent for so long; default 60"
    parser.add_argument("--time-limit", type=float, metavar="SECONDS", help=told)
    told = "with --mpi: runs one after the other, each with the states of the one before; outputs are stacked"
    parser.add_argument("--steps", type=int, metavar="N", help=told)


def check_mpi_arguments(args: argparse.Namespace) -> None:
    """Mistakes that need no rank to be found."""
    if not args.mpi:
        for name in ("time_limit", "steps"):
            if getattr(args, name) is not None:
                raise UsageError(f"--{name.replace('_', '-')} goes with --mpi", remedy="give --mpi too")
        if args.PATH.suffix == SUFFIX:
            raise UsageError("is for several nodes", str(args.PATH), "give --mpi too")
        return
    for name in ("emulate", "profile", "device"):
        if getattr(args, name):
            raise UsageError(f"--{name} does not go with --mpi", remedy=f"leave --{name} out")
    if args.time_limit is not None and not args.time_limit > 0:
        raise UsageError(f"--time-limit must be above 0 (got {args.time_limit})", remedy="leave it out")
    if args.steps is not None and args.steps < 1:
        raise UsageError(f"--steps must be 1 or more (got {args.steps})", remedy="leave it out")


def _launch(ranks: int) -> int:
    """Go on as `mpirun`, with this command as each rank."""
    words = command(ranks, "roller_tvm.cli", *sys.argv[1:])
    sys.stdout.flush()
    os.execvp(words[0], words)


def _as_rank(ranks: Ranks, work: Callable[[], int]) -> int:
    """Do a rank's work; whatever happens to it alone ends all ranks, each with its reason."""
    try:
        with ranks.listening():
            return work()
    except Disagreement:  # raised by all of them
        raise
    except RollerError as error:
        ranks.leave(error)
    except Exception as error:  # a defect, ours or of a package below
        ranks.leave(RollerError(f"{type(error).__name__}: {last_line(error)}", ranks.name, "report it"))
    return RollerError.exit_code


def run_on_ranks(args: argparse.Namespace) -> int:
    """Run a model for several nodes, as one of the ranks; outside of mpirun, start them."""
    if not launched():
        return _launch(Package.open(args.PATH).program.nodes)
    ranks = Ranks(args.time_limit) if args.time_limit is not None else Ranks()
    return _as_rank(ranks, lambda: _run(args, ranks))


def _run(args: argparse.Namespace, ranks: Ranks) -> int:
    from roller_tvm.scale.running import Node
    from roller_tvm.tvm_env import use_threads

    mine = {"error": "", "version": __version__}
    beside = max(1, ranks_here())
    if beside > 1:  # threads of TVM's pool that spin would take the cores of the other ranks
        os.environ.setdefault(SPIN, "0")
    pieces: list[Any] = []
    with work_folder() as folder:
        try:
            if args.outputs is not None:
                check_writable(args.outputs)
            package = Package.open(args.PATH)
            program = package.program
            check_ranks(ranks, program.nodes, str(args.PATH))
            inputs = inputs_of(args, {n: (program.buffer(b).shape, program.buffer(b).dtype)
                                      for n, b in program.inputs.items()})  # fmt: skip
            line = models_of(args, "running a model")
            if line.folder != package.line:
                raise BadInput(f"was built on the {package.line} line", str(args.PATH), "run it on that line")
            mine |= {"device": package.device_digest(), "build": package.digest(), "inputs": _digest(inputs)}
            use_threads(args.threads, max(1, cpu_device().units // beside))
            pieces = [line.open(path, "") for path in package.take(ranks.rank, Path(folder))]
        except RollerError as error:
            mine["error"] = error.one_line()
        words = {"version": "version of roller-tvm", "device": "device file of the plan", "build": "build of the model",
                 "inputs": "inputs"}  # fmt: skip
        ranks.agree(mine, words, f"give all ranks the same {SUFFIX} file and inputs")
        node = Node(program, pieces, ranks)
        made = [node.run(inputs) for _ in range(args.steps or 1)]
        size = node.check_bytes()  # all ranks have come this far
        outputs = [] if made[0] is None else [
            made[0][n] if args.steps is None else np.stack([one[n] for one in made if one is not None]) for n in made[0]
        ]  # fmt: skip
        events = node.events
        times = _times(node, inputs, args.number, args.repeat) if args.print_time else []
    if ranks.rank == 0:
        waited = sum(e.seconds for e in events if e.instruction.kind == "finish")
        computed = sum(e.seconds for e in events if e.instruction.kind == "compute")
        overlapped = sum(e.instruction.kind == "compute" and e.under_way > 0 for e in events)
        told_of = {"nodes": program.nodes, "bytes_sent": size, "computed_s": computed, "waited_s": waited,
                   "overlapped_pieces": overlapped, "times_s": times}  # fmt: skip
        _tell(args, inputs, outputs, told_of)
    return 0


def _digest(arrays: Mapping[str, Any]) -> str:
    made = hashlib.sha256()
    for name in sorted(arrays):
        made.update(f"{name} {arrays[name].dtype} {arrays[name].shape}".encode())
        made.update(np.ascontiguousarray(arrays[name]).tobytes())
    return made.hexdigest()[:16]


def _times(node: Any, inputs: Mapping[str, Any], number: int, repeat: int) -> list[float]:
    found = []
    for _ in range(repeat):
        node.ranks.told({})  # all begin at the same time
        start = time.perf_counter()
        for _ in range(number):
            node.run(inputs)
        found.append((time.perf_counter() - start) / number)
    return found


def _tell(args: argparse.Namespace, inputs: Mapping[str, Any], outputs: list[Any], told: dict[str, Any]) -> None:
    """Write and print the outputs, on rank 0 alone."""

    agreed = ""
    if args.expect is not None:
        line = models_of(args, "running a model")
        who, wanted = expected(args.expect, inputs, line, args.threads, args.trust_model)
        agreed = compare(outputs, wanted, who)
    if args.outputs is not None:
        write_arrays(args.outputs, outputs)
    if args.json:
        print(json.dumps({"outputs": [statistics_of(o) for o in outputs], **told, "agrees": agreed or None}, indent=1))
        return
    print_outputs(outputs, args.print_top)
    if agreed:
        print(agreed)
    print(f"{told['nodes']} ranks, {told['bytes_sent']} bytes sent a run, as planned; rank 0 computed "
          f"{told['computed_s'] * 1e3:.2f} ms and waited {told['waited_s'] * 1e3:.2f} ms")  # fmt: skip
    if told["times_s"]:
        print(summary(told["times_s"]))


# profile -----------------------------------------------------------------------------------------------------------


def profile_network(refresh: bool) -> DeviceSpec | None:
    """Return this machine's CPU with the network between the ranks of mpirun; None on other ranks than the first."""
    if not launched():
        _launch(2)
    ranks = Ranks()
    found: list[DeviceSpec | None] = [None]

    def work() -> int:
        if ranks.count < 2:
            raise UsageError("a network has two ranks at least", "--mpi", "mpirun -n 4 roller-tvm profile --mpi")
        latency, bandwidth = _measured(ranks)
        if ranks.rank == 0:
            from roller_tvm.device import cpu_report

            spec = cpu_report(refresh=refresh).spec
            how = f"measured between {ranks.count} ranks by roller-tvm profile --mpi, the slowest link"
            sources = {f"network.{key}": how for key in ("nodes", "bandwidth", "latency")}
            found[0] = replace(spec, network=Network(ranks.count, bandwidth, latency),
                               sources=FrozenMap({**spec.sources, **sources}))  # fmt: skip
        return 0

    if _as_rank(ranks, work):
        raise SystemExit(RollerError.exit_code)
    return found[0]


def _measured(ranks: Ranks) -> tuple[float, float]:
    """Return microseconds from a small send to its receive, and GB/s of large messages, of the slowest link."""
    latency, bandwidth = 0.0, float("inf")
    for peer in range(1, ranks.count):
        ranks.told({})
        if ranks.rank in (0, peer):
            other = peer if ranks.rank == 0 else 0
            small, large = (_one_way(ranks, other, size) for size in (SMALL, LARGE))
            latency = max(latency, small * 1e6)
            bandwidth = min(bandwidth, LARGE / max(large - small, 1e-9) / 1e9)
    return latency, bandwidth


def _one_way(ranks: Ranks, peer: int, size: int) -> float:
    """Return the median time of a message, half of the way there and back."""
    out, back, times = np.zeros(size, np.uint8), np.zeros(size, np.uint8), []
    for _ in range(TIMES):
        start = time.perf_counter()
        if ranks.rank == 0:
            ranks.wait([(peer, ranks.send(out, peer, size % 1000))], "profiling", received=False)
        ranks.wait([(peer, ranks.receive(back, peer, size % 1000))], "profiling")
        if ranks.rank > 0:
            ranks.wait([(peer, ranks.send(out, peer, size % 1000))], "profiling", received=False)
        times.append((time.perf_counter() - start) / 2)
    return statistics.median(times)
