"""The share of the FMA peak that Roller's kernels reach, on either line."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from roller_bench.cases import Case
from roller_bench.relay_operators import relay_function
from roller_tvm.device import DeviceSpec, cpu_device, default_cpu_target
from roller_tvm.errors import WrongAnswer
from roller_tvm.stats import geomean
from roller_tvm.tvm_env import line
from roller_tvm.tvm_env.pin import pinned_calling_thread
from roller_tvm.tvm_env.threads import set_threads


def fma_share(parser: argparse.ArgumentParser) -> None:
    """Measure the share of the FMA peak that Roller's kernels reach: products, and ResNet-50's convolutions.

        .venv/relay/bin/python -m roller_bench fma-share [--plans 10] [--only matmul]
        .venv/relax/bin/python -m roller_bench fma-share --kernels build/fma [--only 3x3] [--layout NHWC]

    Relay line: a 1024^3 product and the 3x3 convolutions, each a one-operator model in NCHW, tuned by measuring the top
    plans, its answer checked. Relax line: every operator is one PrimFunc, in the layout that PlanLayout gives such a
    layer inside a network, with bias and ReLU, weights packed as the pipeline packs them; each of the best plans is
    checked with numpy and timed. The peak is measured in the same run, before and after; the larger figure counts.
    """
    parser.add_argument("--plans", type=int, help="plans per operator; default 10 on the Relay line, 6 on the other")
    parser.add_argument("--only", default="", help="choose operators with this text in their name")
    told = "folder of built kernels (Relax line); default %(default)s"
    parser.add_argument("--kernels", type=Path, default=Path("build/fma"), help=told)
    parser.add_argument("--layout", choices=["blocked", "NHWC", "NCHW"], default="blocked",
                        help="layout of convolutions (Relax line); default %(default)s")  # fmt: skip
    parser.add_argument("--build", action="store_true", help="only build, without timing (Relax line)")
    parser.set_defaults(run=_run)


#: Name of an operator -> GFLOP/s of the model's own plan and of the best one measured.
Rates = dict[str, Mapping[str, float]]


def _run(args: argparse.Namespace) -> int:
    before = cpu_device(refresh=not args.build)
    set_threads(before.units)
    rates = (relay_rates if line() == "relay" else relax_rates)(args, before)
    if args.build:
        return 0
    after = cpu_device(refresh=True)
    peak = max(before.peak("float32"), after.peak("float32"))
    print(f"\nFMA peak {before.peak('float32'):.0f} before, {after.peak('float32'):.0f} after, "
          f"GFLOP/s on {before.units} cores")  # fmt: skip
    for name, own in rates.items():
        print(f"{name:<32} " + "   ".join(f"{what} {rate / peak:6.1%}" for what, rate in own.items()))
    for what in next(iter(rates.values()), {}):
        print(f"geometric mean, {what:<16} {geomean(own[what] / peak for own in rates.values()):6.1%}")
    return 0


# -- Relay --

#: ResNet-50's 3x3 convolutions at batch 1: channels, image, stride.
WINDOWS = ((64, 56, 1), (128, 56, 2), (128, 28, 1), (256, 28, 2), (256, 14, 1), (512, 14, 2), (512, 7, 1))


def relay_rates(args: argparse.Namespace, device: DeviceSpec) -> Rates:
    """Return the rates of one-operator models, tuned."""
    from roller_tvm.relay import tune

    cases = [Case("matmul 1024^3", "matmul", "m=1024 n=1024 k=1024")]
    for c, image, stride in WINDOWS:
        words = f"n=1 c={c} h={image} w={image} f={c} k=3 stride={stride} padding=1 bias=1 relu=1"
        cases.append(Case(f"conv 3x3 {c}x{image}x{image} /{stride}", "conv2d_nchw", words))
    rates: Rates = {}
    for case in cases:
        if args.only in (name := case.id):
            mod, params = relay_function(case)
            target = default_cpu_target(threads=device.units)
            result = tune(mod, params, target, trials=args.plans or 10, device=device)
            heavy = max(result.tasks, key=lambda t: t.task.flops)
            rates[name] = {"best plan": heavy.gflops}
            print(f"{name:<28} {heavy.seconds * 1e6:9.1f} us {heavy.gflops:7.1f} GFLOP/s  checked {heavy.checked}",
                  flush=True)  # fmt: skip
    return rates


# -- Relax --

PRODUCTS = (512, 1024, 2048)
#: ResNet-50's convolutions at batch 1: kernel, channels, image, outputs, stride.
CONVOLUTIONS = (
    (1, 64, 56, 64, 1), (3, 64, 56, 64, 1), (1, 64, 56, 256, 1), (1, 256, 56, 64, 1),
    (1, 256, 56, 128, 2), (3, 128, 56, 128, 2), (1, 256, 56, 512, 2), (1, 128, 28, 512, 1), (1, 512, 28, 128, 1),
    (3, 128, 28, 128, 1), (1, 512, 28, 1024, 2), (3, 256, 28, 256, 2), (1, 256, 14, 1024, 1), (1, 1024, 14, 256, 1),
    (3, 256, 14, 256, 1), (1, 1024, 14, 2048, 2), (3, 512, 14, 512, 2), (1, 512, 7, 2048, 1), (1, 2048, 7, 512, 1),
    (3, 512, 7, 512, 1),
)  # fmt: skip
#: Of the reference's largest magnitude: sums of thousands of products in float32.
TOLERANCE = 1e-4
ROUNDS, CALLS = 15, 4


@dataclass(frozen=True)
class Operator:
    """One operator: its TE tensors, the positions of its constants, and the answer."""

    tensors: list[Any]
    constants: tuple[int, ...]
    values: list[np.ndarray]
    answer: np.ndarray
    flops: float


def cases(layout: str) -> Iterator[tuple[str, Callable[[], Operator]]]:
    """Yield operator names and the functions that make them (their data are large)."""
    for n in PRODUCTS:
        yield f"matmul {n}", partial(matmul, n)
    for shape in CONVOLUTIONS:
        kernel, channels, image, outputs, stride = shape
        name = f"conv {kernel}x{kernel} {channels}x{image}x{image} -> {outputs}" + (f" /{stride}" if stride > 1 else "")
        yield name, partial(convolution, *shape, layout, np.random.default_rng(0))


def matmul(n: int) -> Operator:
    from tvm import te, topi

    rng = np.random.default_rng(0)
    a, b = (te.placeholder((n, n), name=name) for name in "AB")
    values = [rng.standard_normal((n, n), np.float32) for _ in range(2)]
    return Operator([a, b, topi.matmul(a, b)], (), values, values[0] @ values[1], 2.0 * n**3)


def convolution(kernel: int, channels: int, image: int, outputs: int, stride: int, layout: str, rng: Any) -> Operator:
    from tvm import te, topi

    from roller_tvm.relax.arrangement import Arrangement, Convolution

    arrangement = {"NCHW": None, "NHWC": Arrangement(), "blocked": Arrangement(16)}[layout]
    conv = Convolution(
        (1, channels, image, image), (outputs, channels, kernel, kernel), (stride,) * 2, (kernel // 2,) * 4, (1, 1), 1,
        "float32", "float32",
    )  # fmt: skip
    (data, weights), out = conv.compute(arrangement)
    x = rng.standard_normal(conv.data, np.float32)
    w = rng.standard_normal(conv.weights, np.float32) * 0.05
    b = rng.standard_normal((1, outputs, 1, 1), np.float32)
    stored = b if arrangement is None else arrangement.array(b)
    bias = te.placeholder(stored.shape, name="bias")
    answer = np.maximum(reference(x, w, stride, kernel // 2) + b, 0)
    kept = w.transpose(0, 2, 3, 1) if layout == "NHWC" else w
    values = [x if arrangement is None else arrangement.array(x), np.ascontiguousarray(kept), stored]
    size = answer.shape[2]
    return Operator(
        [data, weights, bias, topi.nn.relu(topi.add(out, bias))], (1,), values,
        answer if arrangement is None else arrangement.array(answer),
        2.0 * outputs * size * size * channels * kernel * kernel,
    )  # fmt: skip


def reference(x: np.ndarray, w: np.ndarray, stride: int, padding: int) -> np.ndarray:
    """Compute a convolution by shifted products."""
    padded = np.pad(x, [(0, 0), (0, 0), (padding,) * 2, (padding,) * 2])
    size = (padded.shape[2] - w.shape[2]) // stride + 1
    total = np.zeros((w.shape[0], size * size), np.float32)
    for p in range(w.shape[2]):
        for q in range(w.shape[3]):
            rows = padded[0, :, p : p + stride * size : stride, q : q + stride * size : stride][:, :size, :size]
            total += w[:, :, p, q] @ np.ascontiguousarray(rows).reshape(w.shape[1], -1)
    return total.reshape(1, w.shape[0], size, size)


def build(name: str, case: Operator, folder: Path, plans: int, target: Any, device: Any) -> None:
    """Build kernels of the best plans; write them, their arguments and the answer to files."""
    import tvm
    from tvm import te

    from roller_tvm.relax.candidates import make_candidates
    from roller_tvm.relax.kernels import split_packing
    from roller_tvm.relax.rewrites import cpu_code

    folder.mkdir(parents=True, exist_ok=True)
    func = te.create_prim_func(case.tensors, index_dtype_override="int64")
    found = make_candidates(func, device, plans, case.constants)
    notes = []
    for number, (candidate, schedule) in enumerate(found.schedules()):
        kernel, packed = split_packing(schedule.mod["main"], dict(enumerate(case.values)), target)
        tvm.compile(cpu_code()(tvm.IRModule({"main": kernel})), target).export_library(str(folder / f"{number}.so"))
        np.savez(folder / f"{number}.npz", *[packed[n] for n in range(len(case.values))])
        notes.append([number, candidate.ranked.seconds, str(candidate.ranked.plan.programs[-1])])
    np.save(folder / "answer.npy", case.answer)
    (folder / "case.json").write_text(json.dumps({"name": name, "flops": case.flops, "plans": notes}, indent=1))


class Kernel:
    """A built kernel with its arguments in memory."""

    def __init__(self, folder: Path, number: int, answer: np.ndarray) -> None:
        import tvm

        module = tvm.runtime.load_module(str(folder / f"{number}.so"))
        with np.load(folder / f"{number}.npz") as file:
            values = [file[name] for name in file.files]
        self.args = [tvm.runtime.tensor(v) for v in values] + [tvm.runtime.tensor(np.zeros_like(answer))]
        self.run = module["main"]
        self.run(*self.args)
        worst = float(np.abs(self.args[-1].numpy() - answer).max() / np.abs(answer).max())
        if not worst <= TOLERANCE:
            raise WrongAnswer(f"plan {number} is wrong by {worst:.1e} of the largest element", folder.name)

    def seconds(self) -> float:
        start = time.perf_counter()
        for _ in range(CALLS):
            self.run(*self.args)
        return (time.perf_counter() - start) / CALLS


def relax_rates(args: argparse.Namespace, device: DeviceSpec) -> Rates:
    """Return the rates of operators as they stand in a network, built unless the folder has them."""
    import tvm

    from roller_tvm.relax.devices import device_of
    from roller_tvm.relax.targets import make_target

    target = make_target(default_cpu_target(threads=device.units))
    folders = []
    for name, make in cases(args.layout):
        folder = args.kernels / args.layout / name.replace(" ", "_").replace("/", "s").replace("->", "to")
        if args.only in name:
            folders.append(folder)
            if not (folder / "case.json").is_file():
                build(name, make(), folder, args.plans or 6, target, device_of(None, target))
    rates: Rates = {}
    if args.build:
        return rates
    print(f"TVM {tvm.__version__}, {device.units} threads, {args.layout}, medians of {ROUNDS} rounds\n")
    for folder in folders:
        about = json.loads((folder / "case.json").read_text())
        answer = np.load(folder / "answer.npy")
        kernels = [Kernel(folder, number, answer) for number, _, _ in about["plans"]]
        with pinned_calling_thread():
            times = [[k.seconds() for k in kernels] for _ in range(ROUNDS)]
        medians = [statistics.median(column) for column in zip(*times, strict=True)]
        first, best = (about["flops"] / t / 1e9 for t in (medians[0], min(medians)))
        rates[about["name"]] = {"model's plan": first, "best plan": best}
        predicted = about["plans"][0][1]
        print(f"{about['name']:<32} model's plan {medians[0] * 1e6:8.1f} us ({predicted * 1e6:8.1f} predicted) "
              f"{first:6.1f} GFLOP/s, best of {len(kernels)} {best:6.1f} (plan {medians.index(min(medians))})",
              flush=True)  # fmt: skip
    return rates
