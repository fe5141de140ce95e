#!/usr/bin/env python3
"""Demonstration: two real models tuned for this CPU, and one planned and compiled for an H200 that is not here.

python python/demo_full_relay.py              # the part of `make demo-full` on the Relay line
python python/demo_full_relay.py --quick      # text detection alone, no H200

Every output is compared with onnxruntime's on the same input; all run on the same number of threads, in turns.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from side_by_side import (  # noqa: E402
    Variant,
    compare,
    measure,
    onnxruntime_variant,
    table,
    timed,
    tvm_variant,
)

from roller_tvm.compare.whole.ocr import text_lines  # noqa: E402
from roller_tvm.compare.whole.zoo import Prepared, find_model  # noqa: E402
from roller_tvm.errors import RollerError  # noqa: E402

H200 = "cuda -arch=sm_90 -model=h200"
MEASURE_S = 10.0
STARTED = time.perf_counter()


def say(text: str = "") -> None:
    """A line with the time since the start."""
    print(f"[{time.perf_counter() - STARTED:5.0f} s] {text}" if text else "", flush=True)


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


def text_found(variants: list[Variant]) -> str:
    """What text detection finds, onnxruntime first."""
    lines = [text_lines(v.run()[0]) for v in variants]
    return f"lines of text found in the picture: {lines[0]} by onnxruntime, {lines[1:]} by the others"


def plan_for_h200(model: Prepared, imported: Any, folder: Path) -> str:
    """Plan and compile a model for sm_90 without a GPU: kernels, resources, predicted times."""
    import tvm
    from tvm import auto_scheduler, relay
    from tvm.relay.backend import te_compiler

    from roller_tvm.codegen import compile_cuda, kernel_resources
    from roller_tvm.relay import tune

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
    flops = sum((t.candidates.flops or t.task.flops) * t.task.weight for t in planned)
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
    models = [find_model("detection", args.folder)]
    if not args.quick:
        models.append(find_model("resnet50", args.folder))
    results: list[tuple[Prepared, list[Variant]]] = []
    imported: Any = None
    for model in models:
        shape = ", ".join(f"{n} {'x'.join(map(str, s))}" for n, s in model.shapes.items())
        say()
        say(f"{model.title} ({shape}): {model.path}")
        reference = onnxruntime_variant(model, threads)
        imported, import_s = timed(lambda m=model: load_model(m.path, m.shapes))
        variants = tune_on_cpu(model, imported, import_s, threads, args.folder)
        expected = reference.run()
        told = (f"{list(e.shape)} of magnitude {float(abs(e).max()):.3g}" for e in expected)
        say(f"{reference.name}: output " + ", ".join(told))
        if model.title.startswith("PP-OCR"):
            say(text_found([reference, *variants]))
        compare(model, variants, expected)
        variants.append(reference)
        measure(model, variants, threads, args.folder, MEASURE_S)
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
