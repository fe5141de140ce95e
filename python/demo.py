#!/usr/bin/env python3
"""Demonstration: two real models tuned for this CPU, and one planned and compiled for an H200 that is not here.

python python/demo.py              # what `make demo` runs, under eight minutes on two cores
python python/demo.py --quick      # text detection alone, no H200

Every output is compared with onnxruntime's on the same input; all run on the same number of threads, in turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np  # noqa: E402
from models import Prepared, light, text_detection, text_lines  # noqa: E402

from roller_tvm.errors import RollerError, WrongAnswer  # noqa: E402

H200 = "cuda -arch=sm_90 -model=h200"
#: Largest error allowed, relative to the largest magnitude of onnxruntime's output.
TOLERANCE = 1e-3
MEASURE_S = 10.0
STARTED = time.perf_counter()


def say(text: str = "") -> None:
    """A line with the time since the start."""
    print(f"[{time.perf_counter() - STARTED:5.0f} s] {text}" if text else "", flush=True)


@dataclass
class Variant:
    """One way to run a model, and what it took to get there."""

    name: str
    run: Callable[[], list[np.ndarray]]
    library: Path | None = None
    tune_s: float | None = None
    build_s: float | None = None
    times: list[float] = field(default_factory=list)
    error: float = 0.0

    @property
    def latency(self) -> float:
        return statistics.median(self.times)


def onnxruntime_variant(model: Prepared, threads: int) -> Variant:
    """onnxruntime's session; also the reference. Made before any thread is pinned."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(model.path), options, providers=["CPUExecutionProvider"])

    def run() -> list[np.ndarray]:
        return list(session.run(None, model.inputs))

    return Variant(f"onnxruntime {onnxruntime.__version__}", run)


def tvm_variant(name: str, library: Path, model: Prepared, tune_s: float | None, build_s: float) -> Variant:
    """A built Relay module, loaded from its file as a deployment does."""
    import tvm
    from tvm.contrib import graph_executor

    module = graph_executor.GraphModule(tvm.runtime.load_module(str(library))["default"](tvm.cpu()))
    module.set_input(**model.inputs)

    def run() -> list[np.ndarray]:
        module.run()
        return [module.get_output(i).numpy() for i in range(module.get_num_outputs())]

    return Variant(name, run, library, tune_s, build_s)


def timed(action: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    return action(), time.perf_counter() - start


def tune_on_cpu(model: Prepared, imported: Any, import_s: float, threads: int, folder: Path) -> list[Variant]:
    """Untuned TVM, Roller without measuring, Roller with ten plans of each operator measured."""
    from tvm import autotvm

    from roller_tvm.device import default_cpu_target
    from roller_tvm.relay import build, tune

    target = default_cpu_target(threads)
    variants = []
    autotvm.GLOBAL_SCOPE.silent = True  # it would say that untuned is untuned

    def built(name: str, records: Path | None = None) -> Path:
        path = folder / f"{model.path.stem}.{name}.so"
        build(imported.mod, imported.params, target, records).export_library(str(path))
        return path

    library, build_s = timed(lambda: built("untuned"))
    variants.append(tvm_variant("untuned TVM", library, model, None, build_s))
    say(f"untuned TVM built in {build_s:.1f} s")
    for name, trials in (("Roller top-1", 0), ("Roller top-10", 10)):
        form = f"top{max(1, trials)}"
        records = folder / f"{model.path.stem}.{form}.json"
        records.unlink(missing_ok=True)
        arguments = (imported.mod, imported.params, target, records)
        result, tune_s = timed(lambda a=arguments, t=trials: tune(*a, trials=t))
        library, build_s = timed(lambda n=form, r=records: built(n, r))
        variants.append(tvm_variant(name, library, model, tune_s, build_s))
        states = {s: sum(t.status == s for t in result.tasks) for s in ("measured", "planned", "fallback")}
        told = ", ".join(f"{n} {s}" for s, n in states.items() if n)
        say(f"{name}: {len(result.tasks)} operators ({told}) tuned in {tune_s:.1f} s, built in {build_s:.1f} s; "
            f"from ONNX file to built model {import_s + tune_s + build_s:.0f} s; records {records}")
        for reason, number in Counter(t.reason.split(":")[0] for t in result.fallbacks).most_common():
            say(f"  TVM's own schedule for {number}: {reason}")
        if result.failures:
            say("  failed candidates: " + ", ".join(f"{n} {kind}" for kind, n in result.failures.items()))
    return variants


def compare(model: Prepared, variants: list[Variant], reference: Variant) -> None:
    """Every output against onnxruntime's; stop at the first wrong one."""
    expected = reference.run()
    scales = [float(np.abs(e).max()) for e in expected]
    say(f"{reference.name}: output " + ", ".join(f"{list(e.shape)} of magnitude {s:.3g}"
                                                 for e, s in zip(expected, scales, strict=True)))  # fmt: skip
    if model.title.startswith("PP-OCR"):
        lines = [text_lines(v.run()[0]) for v in [reference, *variants]]
        say(f"lines of text found in the picture: {lines[0]} by onnxruntime, {lines[1:]} by the others")
    for variant in variants:
        got = variant.run()
        pairs = zip(got, expected, scales, strict=True)
        variant.error = max(float(np.abs(g - e).max()) / scale for g, e, scale in pairs)
        if not variant.error <= TOLERANCE:
            what = f"{variant.name} differs from onnxruntime by {variant.error:.3g} (allowed {TOLERANCE:g})"
            raise WrongAnswer(what, model.title, "report it with the record file")


def measure(model: Prepared, variants: list[Variant], threads: int, folder: Path) -> None:
    """Latencies, taken in turns by a process of its own (see latency.py)."""
    inputs = folder / f"{model.path.stem}.inputs.npz"
    np.savez(inputs, **model.inputs)
    libraries = [str(v.library) for v in variants if v.library]
    script = Path(__file__).with_name("latency.py")
    command = [sys.executable, str(script), str(model.path), *libraries, "--inputs", str(inputs), "--threads",
               str(threads), "--seconds", str(MEASURE_S), "--json"]  # fmt: skip
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    times = json.loads(done.stdout.splitlines()[-1])
    for v in variants:
        v.times = times[v.library.name if v.library else "onnxruntime"]


def table(results: list[tuple[Prepared, list[Variant]]], threads: int) -> str:
    """One table of everything, ratios side by side."""
    head = (f"{'model':<18} {'implementation':<20} {'tune s':>7} {'build s':>8} {'latency ms':>11} "
            f"{'untuned/this':>13} {'ort/this':>9} {'max error':>10}")  # fmt: skip
    told = (f"latency: median of runs in turns, {threads} threads each; ratios above 1 are faster; "
            "error relative to onnxruntime's largest output")  # fmt: skip
    lines = [told, "", head, "-" * len(head)]
    for model, variants in results:
        untuned, reference = variants[0].latency, variants[-1].latency
        for v in variants:
            tune_s = "-" if v.tune_s is None else f"{v.tune_s:.1f}"
            build_s = "-" if v.build_s is None else f"{v.build_s:.1f}"
            error = "-" if v is variants[-1] else f"{v.error:.1e}"
            lines.append(f"{model.title:<18} {v.name:<20} {tune_s:>7} {build_s:>8} {v.latency * 1e3:>11.2f} "
                         f"{untuned / v.latency:>12.2f}x {reference / v.latency:>8.2f}x {error:>10}")  # fmt: skip
        lines.append("")
    return "\n".join(lines)


def plan_for_h200(model: Prepared, imported: Any, folder: Path) -> str:
    """Plan and compile a model for sm_90 without a GPU: kernels, resources, predicted times."""
    import tvm
    from tvm import auto_scheduler, relay
    from tvm.relay.backend import te_compiler

    from roller_tvm.relay import tune
    from roller_tvm.toolchain import compile_cuda, kernel_resources

    records = folder / f"{model.path.stem}.h200.json"
    records.unlink(missing_ok=True)
    result, plan_s = timed(lambda: tune(imported.mod, imported.params, H200, records, trials=0))
    say(f"{len(result.tasks)} operators planned and compiled one by one for {result.device.name} in {plan_s:.1f} s")
    resources: dict[str, Any] = {}

    def compiled(source: str, _target: Any = None) -> bytearray:
        cubin = compile_cuda(source, "sm_90", where=model.title)
        resources.update(kernel_resources(cubin))
        return bytearray(cubin.data)

    # Plain TVM with the records: what a user without roller_tvm would write, but for the CUDA compiler.
    tvm.register_func("tvm_callback_cuda_compile", compiled, override=True)
    te_compiler.get().clear()
    start = time.perf_counter()
    with (auto_scheduler.ApplyHistoryBest(str(records)),
          tvm.transform.PassContext(opt_level=3, config={"relay.backend.use_auto_scheduler": True})):
        relay.build(imported.mod, tvm.target.Target(H200, host="llvm"), params=imported.params)
    say(f"whole model built for sm_90 by plain relay.build in {time.perf_counter() - start:.1f} s")
    return h200_table(result, resources)


def h200_table(result: Any, resources: dict[str, Any]) -> str:
    """Predicted times of the operators, and what the compiler made of the kernels."""
    planned = sorted((t for t in result.tasks if t.plan is not None), key=lambda t: -t.seconds * t.task.weight)
    total = sum(t.seconds * t.task.weight for t in planned)
    flops = sum(t.task.flops * t.task.weight for t in planned)
    head = (f"{'operator':<46} {'times':>5} {'predicted us':>13} {'TFLOP/s':>8} {'bound':>8}  "
            "tiles of a block / a thread")  # fmt: skip
    lines = [f"predicted on {result.device}", "", head, "-" * len(head)]
    for t in planned[:12]:
        pairs = zip(t.plan.plan.programs, t.plan.estimate.programs, strict=True)
        program = max(pairs, key=lambda p: p[1].seconds)[0]
        tiles = " / ".join("x".join(str(e) for _, e in tile.extents) for tile in program.tiles)
        lines.append(f"{t.task.name[:46]:<46} {t.task.weight:>5} {t.seconds * 1e6:>13.1f} {t.gflops / 1e3:>8.2f} "
                     f"{t.plan.estimate.bound:>8}  {tiles}")  # fmt: skip
    rest = planned[12:]
    if rest:
        together = sum(t.seconds * t.task.weight for t in rest)
        lines.append(f"and {len(rest)} more operators, {together * 1e6:.1f} us together")
    lines.append(f"a run: {total * 1e6:.0f} us predicted, {flops / total / 1e12:.2f} TFLOP/s; operators left to TVM: "
                 f"{len(result.fallbacks)}")  # fmt: skip
    lines += [f"  {n}: {why}" for why, n in Counter(t.reason.split(":")[0] for t in result.fallbacks).most_common()]
    kernels = sorted(resources.items(), key=lambda k: (-k[1].local_bytes, -k[1].registers))
    spills = [name for name, k in kernels if k.spills]
    head = f"{'kernel':<64} {'registers':>9} {'shared B':>9} {'local B':>8}"
    lines += ["", f"{len(kernels)} kernels compiled for sm_90; register spills in {len(spills)}"]
    lines += [head, "-" * len(head)]
    for name, k in kernels[: max(8, len(spills))]:
        own = name.removeprefix("tvmgen_default_")[:64]
        lines.append(f"{own:<64} {k.registers:>9} {k.shared_bytes:>9} {k.local_bytes:>8}")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Entry point; 0 if every output is right."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--folder", type=Path, default=Path("demo-out"), help="models, records and the picture")
    parser.add_argument("--quick", action="store_true", help="text detection alone, no H200")
    args = parser.parse_args(argv)
    try:
        return demonstrate(args)
    except RollerError as error:
        print(f"demo: error: {error}", file=sys.stderr)
        return error.exit_code


def demonstrate(args: argparse.Namespace) -> int:
    from roller_tvm.device import cpu_device
    from roller_tvm.relay.importers import load_model
    from roller_tvm.tvm_env import find_tvm, set_threads

    device = cpu_device()
    threads = set_threads(device.units)
    found = find_tvm()
    say(f"{device}; TVM {found.version if found else 'missing'}; {threads} threads for everybody")
    models = [text_detection(args.folder)]
    if not args.quick:
        models.append(light("resnet50", args.folder))
    results: list[tuple[Prepared, list[Variant]]] = []
    imported: Any = None
    for model in models:
        shape = ", ".join(f"{n} {'x'.join(map(str, s))}" for n, s in model.shapes.items())
        say()
        say(f"{model.title} ({shape}): {model.path}")
        reference = onnxruntime_variant(model, threads)
        imported, import_s = timed(lambda m=model: load_model(m.path, m.shapes))
        variants = tune_on_cpu(model, imported, import_s, threads, args.folder)
        compare(model, variants, reference)
        variants.append(reference)
        measure(model, variants, threads, args.folder)
        results.append((model, variants))
    text = ""
    if not args.quick:
        say()
        say(f"{models[-1].title} for an NVIDIA H200 ({H200}), no GPU needed")
        text = plan_for_h200(models[-1], imported, args.folder)
    print(f"\n{table(results, threads)}\n{text}", flush=True)
    say("done")
    return 0


if __name__ == "__main__":
    sys.exit(main())
