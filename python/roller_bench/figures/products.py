"""Products by a constant beside onnxruntime's and torch's, and beside the FMA peak or the memory's rate."""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import time
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from roller_bench.figures import LEFT, append_lines, names, read_lines
from roller_bench.latency import medians_in_turns
from roller_bench.machine import cpu_kind
from roller_bench.peers_graph import session_of
from roller_bench.running import Arrays, Runnable, Running, keep_inputs, relative_error
from roller_tvm.device import DeviceSpec, cpu_device, default_cpu_target
from roller_tvm.errors import UsageError, WrongAnswer
from roller_tvm.folders import work_folder
from roller_tvm.stats import geomean
from roller_tvm.tvm_env.pin import pin_calling_thread
from roller_tvm.tvm_env.threads import set_threads

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
#: Files of a product's folder beside its kernels and their arguments.
CASE, ANSWER = "case.json", "answer.npy"
#: Of the reference's largest magnitude: sums of thousands of products in float32.
TOLERANCE = 1e-4


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
        if not (args.kernels / _name(shape) / CASE).is_file():
            build(shape, args.kernels / _name(shape), args.plans, target, device)
    if args.build:
        return 0
    kind = cpu_kind(device)
    known = {tuple(r["shape"]): r for r in read_lines(file) if r["cpu"] == kind}
    left = [s for s in shapes if args.again or s not in known]

    def timed() -> Iterator[dict[str, Any]]:
        for shape in left:
            if time.monotonic() - begun < args.seconds:
                yield {"shape": shape, "cpu": kind, **_times(args, shape, device)}

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


def _shape(text: str) -> Shape:
    try:
        m, k, n = map(int, text.split("x"))
    except ValueError:
        raise UsageError(f"a shape is ROWSxKxN (got '{text}')", "--shapes", "for instance 197x768x3072") from None
    return m, k, n


def _name(shape: Shape) -> str:
    return "x".join(map(str, shape))


def kernel_of(scheduled: Any, arrays: Sequence[np.ndarray], target: Any) -> tuple[Any, list[np.ndarray]]:
    """Return a scheduled function's kernel as the pipeline builds it, and its operands, those that it packs packed."""
    import tvm

    from roller_tvm.relax.kernels import split_packing
    from roller_tvm.relax.rewrites import cpu_code

    kernel, packed = split_packing(scheduled, dict(enumerate(arrays)), target)
    mod = tvm.IRModule({"main": kernel.with_attr("global_symbol", "main")})
    return tvm.compile(cpu_code()(mod), target), [packed[n] for n in range(len(arrays))]


def build(shape: Shape, folder: Path, plans: int, target: Any, device: Any) -> None:
    """Build kernels of the best plans; write them, their arguments and the answer to files."""
    from tvm import te, topi

    from roller_tvm.relax.candidates import make_candidates

    folder.mkdir(parents=True, exist_ok=True)
    values = _values(shape)
    a, b = (te.placeholder(v.shape, name=name) for v, name in zip(values, "AB", strict=True))
    func = te.create_prim_func([a, b, topi.matmul(a, b)], index_dtype_override="int64")
    notes = []
    for number, (candidate, schedule) in enumerate(make_candidates(func, device, plans, (1,)).schedules()):
        built, operands = kernel_of(schedule.mod["main"], values, target)
        built.export_library(str(folder / f"{number}.so"))
        np.savez(folder / f"{number}.npz", *operands)
        notes.append([number, candidate.ranked.seconds, str(candidate.ranked.plan.programs[-1])])
    np.save(folder / ANSWER, values[0] @ values[1])
    about = {"name": _name(shape), "flops": 2.0 * math.prod(shape), "plans": notes}
    (folder / CASE).write_text(json.dumps(about, indent=1))


def open_ours(file: Path, arrays: Arrays, threads: int) -> Running:
    """Open a kernel that `build` wrote, on its arguments; the last one is the answer."""
    import tvm

    set_threads(threads)
    module, shape = tvm.runtime.load_module(str(file))["main"], np.load(file.with_name(ANSWER), mmap_mode="r").shape
    args = [*map(tvm.runtime.tensor, arrays.values()), tvm.runtime.tensor(np.zeros(shape, np.float32))]
    module(*args)  # the pool exists from here on
    pin_calling_thread()
    return Running(lambda: module(*args), lambda: [module(*args), args[-1].numpy()][1:])


def _times(args: argparse.Namespace, shape: Shape, device: DeviceSpec) -> dict[str, Any]:
    """Return the median seconds of everything that computes a product, and what was predicted."""
    folder, answer = args.kernels / _name(shape), [np.load(args.kernels / _name(shape) / ANSWER)]
    plans = json.loads((folder / CASE).read_text())["plans"]
    made = partial(Runnable, threads=device.units)
    with work_folder() as place:
        values = Path(place, "values.npz")
        keep_inputs(dict(zip("AB", _values(shape), strict=True)), values)
        asked = {f"plan {n}" if n else OURS: made(f"{__name__}:open_ours", str(folder / f"{n}.so"),
                                                  str(folder / f"{n}.npz")) for n, _, _ in plans[: args.plans]}
        asked |= {name: made(f"{__name__}:open_{name}", str(values), str(values))
                  for name in args.peers if importlib.util.find_spec(name)}
        taken, outputs = medians_in_turns(asked, SECONDS)
    for name, found in outputs.items():
        if not (error := relative_error(found, answer)) <= TOLERANCE:
            raise WrongAnswer(f"{name} is wrong by {error:.1e} of the largest element", _name(shape))
    return {"seconds": taken, "predicted": plans[0][1], "roof": roof(shape, device), "plan": plans[0][2]}


def _values(shape: Shape) -> tuple[np.ndarray, np.ndarray]:
    m, k, n = shape
    rng = np.random.default_rng(0)
    return rng.standard_normal((m, k), np.float32), rng.standard_normal((k, n), np.float32)


def open_onnxruntime(_file: Path, arrays: Arrays, threads: int) -> Running:
    """Open onnxruntime's MatMul by a constant, into memory of its own."""
    import onnx
    import onnxruntime
    from onnx import helper, numpy_helper

    left, right = arrays.values()
    kind, shape = onnx.TensorProto.FLOAT, [left.shape[0], right.shape[1]]
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["A", "B"], ["C"])], "product",
        [helper.make_tensor_value_info("A", kind, left.shape)], [helper.make_tensor_value_info("C", kind, shape)],
        [numpy_helper.from_array(right, "B")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = session_of(model.SerializeToString(), threads)
    binding = session.io_binding()
    value = onnxruntime.OrtValue.ortvalue_from_numpy
    out = value(np.zeros(shape, np.float32))
    binding.bind_ortvalue_input("A", value(left))
    binding.bind_ortvalue_output("C", out)

    def run() -> object:
        return session.run_with_iobinding(binding)

    pin_calling_thread()
    return Running(run, lambda: [run(), out.numpy()][1:])


def open_torch(_file: Path, arrays: Arrays, threads: int) -> Running:
    """Open torch's product into memory of its own."""
    import torch

    torch.set_num_threads(threads)
    a, b = map(torch.from_numpy, arrays.values())
    out = torch.zeros(a.shape[0], b.shape[1])
    return Running(lambda: torch.mm(a, b, out=out), lambda: [torch.mm(a, b, out=out).numpy()])


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
