"""Products by a constant beside onnxruntime's and torch's, and beside the FMA peak or the memory's rate."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import multiprocessing
import os
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from roller_bench.figures import append_lines, names, read_lines
from roller_bench.figures.fma_share import Kernel, Operator, build
from roller_bench.machine import cpu_id
from roller_bench.timing import runs_to_fill
from roller_tvm.device import DeviceSpec, cpu_device, default_cpu_target
from roller_tvm.errors import MeasureError, UsageError
from roller_tvm.stats import geomean
from roller_tvm.tvm_env.pin import pinned_calling_thread
from roller_tvm.tvm_env.threads import set_threads

LEFT = 1
Shape = tuple[int, int, int]  # rows, K, N
#: Rows, and (K, N) of layers: BERT-base, GPT-2 and ViT-B/16; ViT-L; Llama-7B; an audio encoder; GPT-2's words.
SHAPES: tuple[Shape, ...] = (
    *product((1, 7, 49, 77, 128, 197, 577, 1500, 2048), (768,), (768, 2304, 3072)),
    *product((1, 7, 49, 77, 128, 197, 577, 1500, 2048), (3072,), (768,)),
    *product((1, 128, 197, 577), (1024,), (1024, 4096)),
    *product((1, 128, 197, 577), (4096,), (1024,)),
    *product((1, 7, 128), (4096,), (4096, 11008)),
    *product((1, 7, 128), (11008,), (4096,)),
    (1500, 512, 2048), (1, 768, 50257), (7, 768, 50257),
)  # fmt: skip
#: Rounds in turns, and seconds of a round.
ROUNDS, ROUND_S = 9, 0.01
OURS = "ours"


def products(parser: argparse.ArgumentParser) -> None:
    """Time products of 60 shapes by a constant: Roller's first plan, onnxruntime, and torch where it is installed.

        .venv/relax/bin/python -m roller_bench products --build            # compile the kernels, time nothing
        .venv/relax/bin/python -m roller_bench products --seconds 20       # time some; the same command goes on
        ... products --shapes 197x768x3072,197x3072x768 --again
        ... products --target "llvm -mcpu=znver3 -num-cores=2" --simd avx2

    Relax line. Shapes are rows x K x N. Each implementation runs in a process of its own, in turns; medians of the
    rounds. A share of 1 is the FMA peak, or the rate of the nearest memory that holds the operands, whichever binds.
    Answers are compared with numpy's. Prints each shape, with the kind of CPU, then geometric means and extremes.
    """
    parser.add_argument("--kernels", type=Path, default=Path("build/products"), help="folder; default %(default)s")
    parser.add_argument("--shapes", type=names, help="only these, as ROWSxKxN with commas")
    parser.add_argument("--target", help="target; default: this CPU")
    parser.add_argument("--build", action="store_true", help="only build")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no new shape after this time")
    parser.add_argument("--plans", type=int, default=1, help="plans to time; the first is the model's; default 1")
    parser.add_argument("--again", action="store_true", help="forget earlier times of these shapes")
    parser.add_argument("--peers", type=names, default=["onnxruntime", "torch"], help="default onnxruntime,torch")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    begun = time.monotonic()
    device, target = _machine(args.target)
    shapes = [_shape(text) for text in args.shapes] if args.shapes else list(SHAPES)
    args.kernels.mkdir(parents=True, exist_ok=True)
    file = args.kernels / "times.jsonl"
    for shape in shapes:
        if not (_folder(args.kernels, shape) / "case.json").is_file():
            build(_name(shape), _operator(shape), _folder(args.kernels, shape), args.plans, target, device)
    if args.build:
        return 0
    kind = f"{cpu_id()}, {device.vector_bytes * 8} bit, {device.units} cores"
    known = {tuple(r["shape"]): r for r in read_lines(file) if r["cpu"] == kind}
    left = [s for s in shapes if args.again or s not in known]

    def timed() -> Iterator[dict[str, Any]]:
        with contextlib.ExitStack() as stack:
            asked = [OURS, *(name for name in args.peers if importlib.util.find_spec(name))] if left else []
            peers = {name: Peer(name, args, device.units) for name in asked}
            for peer in peers.values():
                stack.callback(peer.close)
            for shape in left:
                if time.monotonic() - begun < args.seconds:
                    yield {"shape": shape, "cpu": kind, **_times(peers, args.kernels, shape, device)}

    for row in append_lines(file, timed()):
        known[tuple(row["shape"])] = row
    print(_table([known[s] for s in shapes if s in known]))
    return LEFT if any(s not in known for s in shapes) else 0


def _machine(target: str | None) -> tuple[DeviceSpec, Any]:
    from roller_tvm.relax.devices import device_of
    from roller_tvm.relax.targets import make_target

    units = cpu_device().units
    set_threads(units)
    made = make_target(target or default_cpu_target(threads=units))
    return device_of(None, made), made


def _folder(kernels: Path, shape: Shape) -> Path:
    return kernels / _name(shape)


def _shape(text: str) -> Shape:
    try:
        m, k, n = map(int, text.split("x"))
    except ValueError:
        raise UsageError(f"a shape is ROWSxKxN (got '{text}')", "--shapes", "for instance 197x768x3072") from None
    return m, k, n


def _name(shape: Shape) -> str:
    return "x".join(map(str, shape))


def _operator(shape: Shape) -> Operator:
    from tvm import te, topi

    values, (m, k, n) = _values(shape), shape
    a, b = (te.placeholder(v.shape, name=name) for v, name in zip(values, "AB", strict=True))
    return Operator([a, b, topi.matmul(a, b)], (1,), list(values), values[0] @ values[1], 2.0 * m * k * n)


class Peer:
    """A process of its own that times one implementation, stopped while another has its turn.

    In one process they would disturb one another: idle threads spin, and pinned ones share a CPU (``latency``).
    """

    def __init__(self, name: str, args: argparse.Namespace, threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._ours, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(name, args.kernels, args.plans, threads, theirs))
        self._process.start()
        theirs.close()

    def ask(self, shape: Shape | None) -> list[float]:
        """Return seconds of a run of each plan: of the shape that was opened, or none once this shape is opened."""
        self._signal(signal.SIGCONT)
        self._ours.send(shape)
        answer = self._ours.recv()
        self._signal(signal.SIGSTOP)
        if isinstance(answer, str):
            raise MeasureError(answer, "products")
        return list(answer)

    def close(self) -> None:
        self._process.kill()
        self._process.join()

    def _signal(self, number: int) -> None:
        os.kill(self._process.pid or 0, number)


def _serve(name: str, kernels: Path, plans: int, threads: int, pipe: Any) -> None:
    """Open shapes and time what is open, as asked."""
    runs: list[Callable[[], object]] = []
    numbers: list[int] = []
    while True:
        shape = pipe.recv()
        try:
            if shape is not None:
                runs, numbers = _opened(name, kernels, plans, threads, shape), []
                pipe.send([])
                continue
            with pinned_calling_thread() if name == OURS else contextlib.nullcontext():
                numbers = numbers or [runs_to_fill(run, ROUND_S) for run in runs]
                pipe.send([_seconds(run, number) for run, number in zip(runs, numbers, strict=True)])
        except Exception as error:  # whatever it is, the process that asked tells it
            pipe.send(f"{name}: {error}")


def _seconds(run: Callable[[], object], number: int) -> float:
    run()
    start = time.perf_counter()
    for _ in range(number):
        run()
    return (time.perf_counter() - start) / number


def _opened(name: str, kernels: Path, plans: int, threads: int, shape: Shape) -> list[Callable[[], object]]:
    """Return functions that run a product: Roller's plans, or another's own."""
    if name != OURS:
        return [PEERS[name](*_values(shape), threads)]
    set_threads(threads)
    folder = _folder(kernels, shape)
    answer = np.load(folder / "answer.npy")
    about = json.loads((folder / "case.json").read_text())
    made = [Kernel(folder, number, answer) for number, _, _ in about["plans"][:plans]]
    return [partial(kernel.run, *kernel.args) for kernel in made]


def _times(peers: dict[str, Peer], kernels: Path, shape: Shape, device: DeviceSpec) -> dict[str, Any]:
    """Return the median seconds of everything that computes a product, and what was predicted."""
    about = json.loads((_folder(kernels, shape) / "case.json").read_text())
    for peer in peers.values():
        peer.ask(shape)
    taken: dict[str, list[list[float]]] = {name: [] for name in peers}
    for _ in range(ROUNDS):
        for name, peer in peers.items():
            taken[name].append(peer.ask(None))
    medians: dict[str, float] = {}
    for name, times in taken.items():
        for n, column in enumerate(zip(*times, strict=True)):
            medians[f"plan {n}" if n else name] = statistics.median(column)
    return {"seconds": medians, "predicted": about["plans"][0][1], "roof": roof(shape, device),
            "plan": about["plans"][0][2]}  # fmt: skip


def _values(shape: Shape) -> tuple[np.ndarray, np.ndarray]:
    m, k, n = shape
    rng = np.random.default_rng(0)
    return rng.standard_normal((m, k), np.float32), rng.standard_normal((k, n), np.float32)


def onnxruntime_product(left: np.ndarray, right: np.ndarray, threads: int) -> Callable[[], object]:
    """Return onnxruntime's MatMul by a constant, into memory of its own."""
    import onnx
    import onnxruntime
    from onnx import helper, numpy_helper

    kind, shape = onnx.TensorProto.FLOAT, [left.shape[0], right.shape[1]]
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["A", "B"], ["C"])], "product",
        [helper.make_tensor_value_info("A", kind, left.shape)], [helper.make_tensor_value_info("C", kind, shape)],
        [numpy_helper.from_array(right, "B")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    value = onnxruntime.OrtValue.ortvalue_from_numpy
    binding.bind_ortvalue_input("A", value(left))
    binding.bind_ortvalue_output("C", value(np.zeros(shape, np.float32)))
    return lambda: session.run_with_iobinding(binding)


def torch_product(left: np.ndarray, right: np.ndarray, threads: int) -> Callable[[], object]:
    """Return torch's product into memory of its own."""
    import torch

    torch.set_num_threads(threads)
    a, b = torch.from_numpy(left), torch.from_numpy(right)
    out = torch.zeros(left.shape[0], right.shape[1])
    return lambda: torch.mm(a, b, out=out)


def roof(shape: Shape, device: DeviceSpec) -> float:
    """Return the least seconds of a product (rows, K, N) in float32.

    It takes the longer of its multiply-adds at the FMA peak, and its operands' way from the nearest memory that holds
    them all.

    Examples
    --------
    >>> from roller_tvm.device import device_for_target
    >>> device = device_for_target("llvm -mcpu=haswell -num-cores=2")
    >>> roof((1024, 1024, 1024), device) == 2 * 1024**3 / device.peak("float32") / 1e9
    True
    >>> far = device.far.bandwidth_gbps
    >>> roof((1, 4096, 4096), device) == 4 * (4096 * 4097 + 4096) / far / 1e9
    True
    """
    m, k, n = shape
    size = 4 * (m * k + k * n + m * n)

    def held(level: Any) -> bool:
        return level.capacity_bytes * (1 if level.scope == "device" else device.units) >= size

    nearest = next((level for level in reversed(device.levels[:-1]) if held(level)), device.far)
    return max(2 * m * k * n / device.peak("float32"), size / nearest.bandwidth_gbps) / 1e9


PEERS: dict[str, Callable[[np.ndarray, np.ndarray, int], Callable[[], object]]] = {
    "onnxruntime": onnxruntime_product, "torch": torch_product,
}  # fmt: skip


def _table(rows: list[dict[str, Any]]) -> str:
    """Return a line a shape, and geometric means with the extremes of each column."""
    lines: list[str] = []
    columns: dict[str, list[float]] = {}
    for row in rows:
        seconds, (m, k, n) = row["seconds"], row["shape"]
        ours = seconds[OURS]
        ratios = {"of the roof": row["roof"] / ours, "predicted/measured": row["predicted"] / ours}
        ratios |= {f"against {name}": s / ours for name, s in seconds.items() if name != OURS}
        for name, ratio in ratios.items():
            columns.setdefault(name, []).append(ratio)
        told = "  ".join(f"{name} {ratio:5.2f}" for name, ratio in ratios.items())
        rate = f"{ours * 1e6:10.1f} us {2e-9 * m * k * n / ours:7.1f} GFLOP/s"
        lines.append(f"{_name((m, k, n)):<16} {rate}  {told}  {row['cpu']}")
    for name, found in columns.items():
        mean = f"geometric mean {geomean(found):.2f}, least {min(found):.2f}, most {max(found):.2f}"
        lines.append(f"{name:<20} {len(found)} shapes: {mean}")
    return "\n".join(lines)
