"""Products by a constant beside onnxruntime's and torch's, and beside the FMA peak or the memory's rate."""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from roller_bench.figures import LEFT, append_lines, names, read_lines
from roller_bench.latency import medians_in_turns
from roller_bench.machine import commit, cpu_kind
from roller_bench.peers_graph import session_of
from roller_bench.running import Arrays, Runnable, Running, keep_inputs, relative_error
from roller_bench.torch_running import opened_module
from roller_tvm.device import DeviceSpec, cpu_device
from roller_tvm.errors import UsageError, WrongAnswer
from roller_tvm.stats import geomean
from roller_tvm.tvm_env.pin import pin_calling_thread

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
#: Seconds in which the implementations of a product take turns.
SECONDS = 1.0
OURS = "ours"
#: Implementation -> what opens it, as `Runnable` has it, and the kind of file.
OPENERS = {
    OURS: ("roller_bench.running:open_built", "so"), "onnxruntime": (f"{__name__}:open_onnxruntime", "onnx"),
    "torch": (f"{__name__}:open_torch", "onnx"),
}  # fmt: skip
#: Of the reference's largest magnitude: sums of thousands of products in float32.
TOLERANCE = 1e-4


def products(parser: argparse.ArgumentParser) -> None:
    """Time products of 60 shapes by a constant: as Roller builds them, onnxruntime and torch.

        .venv/relax/bin/python -m roller_bench products --build            # compile the products, time nothing
        .venv/relax/bin/python -m roller_bench products --seconds 20       # time some; the same command goes on
        ... products --shapes 197x768x3072,197x3072x768 --again
        ... products --peers onnxruntime,torch --torch ~/torch/bin/python

    Relax line. Shapes are rows x K x N. Each is an ONNX model of one product, built with nothing measured. Each
    implementation runs in a process of its own, in turns; medians of the rounds. A share of 1 is the FMA peak, or the
    rate of the nearest memory that holds the operands, whichever binds. Answers are compared with numpy's. Prints each
    shape, with the kind of CPU, then geometric means and extremes.
    """
    parser.add_argument("--folder", type=Path, default=Path("build/products"), help="default %(default)s")
    parser.add_argument("--shapes", type=names, help="only these, as ROWSxKxN with commas")
    parser.add_argument("--build", action="store_true", help="only build")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no new shape after this time")
    parser.add_argument("--again", action="store_true", help="forget earlier times of these shapes")
    told = "onnxruntime and torch, with commas; default those that are installed"
    parser.add_argument("--peers", type=names, help=told)
    parser.add_argument("--torch", default=sys.executable, help="Python with torch and onnx; default this one")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    begun, device = time.monotonic(), cpu_device()
    shapes = [_shape(text) for text in args.shapes] if args.shapes else list(SHAPES)
    peers = args.peers or [name for name in OPENERS if name != OURS and importlib.util.find_spec(name)]
    args.folder.mkdir(parents=True, exist_ok=True)
    file, kind = args.folder / "times.jsonl", cpu_kind(device)
    for shape in shapes:
        if not _file(args, shape, "json").is_file():
            _build(args, shape, device.units)
    if args.build:
        return 0
    known = {tuple(r["shape"]): r for r in read_lines(file) if r["cpu"] == kind}
    left = [s for s in shapes if args.again or s not in known]

    def timed() -> Iterator[dict[str, Any]]:
        for shape in left:
            if time.monotonic() - begun < args.seconds:
                about = {"shape": shape, "cpu": kind, "date": str(datetime.date.today()), "commit": commit()}
                yield {**about, **_times(args, shape, peers, device)}

    for row in append_lines(file, timed()):
        known[tuple(row["shape"])] = row
    print(_table([known[s] for s in shapes if s in known]))
    return LEFT if any(s not in known for s in shapes) else 0


def _shape(text: str) -> Shape:
    try:
        m, k, n = map(int, text.split("x"))
    except ValueError:
        raise UsageError(f"a shape is ROWSxKxN (got '{text}')", "--shapes", "for instance 197x768x3072") from None
    return m, k, n


def _name(shape: Shape) -> str:
    return "x".join(map(str, shape))


def _file(args: argparse.Namespace, shape: Shape, suffix: str) -> Path:
    return Path(args.folder, f"{_name(shape)}.{suffix}")


def _build(args: argparse.Namespace, shape: Shape, threads: int) -> None:
    """Write the model of a product and its input; build it as its user does, and note what is predicted."""
    import onnx
    from onnx import helper, numpy_helper

    import roller_tvm

    left, right = _values(shape)
    number, out = onnx.TensorProto.FLOAT, [shape[0], shape[2]]
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["A", "B"], ["C"])], "product",
        [helper.make_tensor_value_info("A", number, left.shape)], [helper.make_tensor_value_info("C", number, out)],
        [numpy_helper.from_array(right, "B")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(_file(args, shape, "onnx")))
    keep_inputs({"A": left}, _file(args, shape, "npz"))
    built = roller_tvm.compile(str(_file(args, shape, "onnx")), threads=threads)
    built.save(_file(args, shape, "so"))
    plans = built.report().plans
    told = {"predicted": sum(p.calls * (p.predicted_s or 0.0) for p in plans), "plans": [p.plan for p in plans]}
    _file(args, shape, "json").write_text(json.dumps(told, indent=1))


def _times(args: argparse.Namespace, shape: Shape, peers: Sequence[str], device: DeviceSpec) -> dict[str, Any]:
    """Return the median seconds of everything that computes a product, and what was predicted."""
    left, right = _values(shape)
    made = partial(Runnable, inputs=str(_file(args, shape, "npz").resolve()), threads=device.units)
    asked = {}
    for name in (OURS, *peers):
        opener, suffix = OPENERS[name]
        asked[name] = made(opener, str(_file(args, shape, suffix).resolve()), python=args.torch * (name == "torch"))
    taken, outputs = medians_in_turns(asked, SECONDS)
    for name, found in outputs.items():
        if not (error := relative_error(found, [left @ right])) <= TOLERANCE:
            raise WrongAnswer(f"{name} is wrong by {error:.1e} of the largest element", _name(shape))
    told = json.loads(_file(args, shape, "json").read_text())
    return {"seconds": taken, "roof": roof(shape, device), **told}


def _values(shape: Shape) -> tuple[np.ndarray, np.ndarray]:
    m, k, n = shape
    rng = np.random.default_rng(0)
    return rng.standard_normal((m, k), np.float32), rng.standard_normal((k, n), np.float32)


def open_onnxruntime(file: Path, arrays: Arrays, threads: int) -> Running:
    """Open onnxruntime's product into memory of its own."""
    import onnxruntime

    session = session_of(file, threads)
    binding = session.io_binding()
    value = onnxruntime.OrtValue.ortvalue_from_numpy
    out = value(np.zeros(session.get_outputs()[0].shape, np.float32))
    binding.bind_ortvalue_input("A", value(arrays["A"]))
    binding.bind_ortvalue_output("C", out)

    def run() -> object:
        return session.run_with_iobinding(binding)

    pin_calling_thread()
    return Running(run, lambda: [run(), out.numpy()][1:])


def open_torch(file: Path, arrays: Arrays, threads: int) -> Running:
    """Open torch's product into memory of its own."""

    def made() -> tuple[Any, tuple[Any, ...]]:
        import onnx
        import torch
        from onnx import numpy_helper

        right = numpy_helper.to_array(onnx.load(str(file)).graph.initializer[0]).copy()
        a, b = torch.from_numpy(arrays["A"]), torch.from_numpy(right)
        return partial(torch.mm, out=torch.zeros(a.shape[0], b.shape[1])), (a, b)

    return opened_module(made, threads)


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
