#!/usr/bin/env python3
"""Demonstration on the TVM that pip installs: two real models tuned for this CPU, one compiled for an absent H200.

python python/demo_full_relax.py              # the part of `make demo-full` on the Relax line, minutes on two cores
python python/demo_full_relax.py --quick      # text detection alone, no H200

Every output is compared with onnxruntime's on the same input; all run on the same number of threads, in turns. The
records of the tuning are MetaSchedule's own files.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from demo_full_relay import H200, MEASURE_S, h200_table, say, text_found  # noqa: E402
from side_by_side import (  # noqa: E402
    Variant,
    compare,
    measure,
    onnxruntime_variant,
    table,
    timed,
    tvm_variant,
)

from roller_tvm.compare.relax.whole import roller_build, untuned_build  # noqa: E402
from roller_tvm.compare.whole.zoo import Prepared, find_model  # noqa: E402
from roller_tvm.errors import RollerError  # noqa: E402


def tune_on_cpu(
    model: Prepared, imported: Any, import_s: float, target: Any, folder: Path, trials: int
) -> list[Variant]:
    """Untuned TVM, Roller without measuring, Roller with the best plans of each operator measured."""
    from roller_tvm.relax import prepare
    from roller_tvm.relax.tuning import tune

    stem = model.path.stem
    library, build_s = timed(lambda: untuned_build(imported, target, folder / f"{stem}.relax-untuned.so"))
    variants = [tvm_variant("untuned TVM", library, model, None, build_s)]
    say(f"untuned TVM built in {build_s:.1f} s")
    library, build_s = timed(lambda: roller_build(imported, target, folder / f"{stem}.relax-top1.so", None))
    variants.append(tvm_variant("Roller, no measuring", library, model, 0.0, build_s))
    say(f"Roller without measuring: planned and built in {build_s:.1f} s; from ONNX file to built model "
        f"{import_s + build_s:.0f} s")  # fmt: skip
    records = folder / f"{stem}.relax-records"
    shutil.rmtree(records, ignore_errors=True)
    fused, prepare_s = timed(lambda: prepare(imported.mod, target))
    (_, result), tune_s = timed(lambda: tune(fused, None, target, records, max_trials_per_task=trials))
    library, build_s = timed(lambda: roller_build(imported, target, folder / f"{stem}.relax-tuned.so", records))
    variants.append(tvm_variant(f"Roller top-{trials}", library, model, prepare_s + tune_s, build_s))
    told = ", ".join(f"{n} {s}" for s, n in Counter(t.status for t in result.tasks).items())
    say(f"Roller top-{trials}: {len(result.tasks)} operators ({told}) tuned in {prepare_s + tune_s:.1f} s, built in "
        f"{build_s:.1f} s; from ONNX file to built model {import_s + prepare_s + tune_s + build_s:.0f} s; "
        f"records {records}")  # fmt: skip
    for reason, number in Counter(t.reason.split(":")[0] for t in result.fallbacks).most_common():
        say(f"  no record for {number}: {reason}")
    if result.failures:
        say("  failed candidates: " + ", ".join(f"{n} {kind}" for kind, n in result.failures.items()))
    return variants


def plan_for_h200(model: Prepared, imported: Any, folder: Path) -> str:
    """Plan and compile a model for sm_90 without a GPU: kernels, resources, predicted times."""
    from roller_tvm.codegen import find_compilers
    from roller_tvm.relax import build, prepare
    from roller_tvm.relax.resources import resources_of
    from roller_tvm.relax.targets import make_target
    from roller_tvm.relax.tuning import tune

    target, records = make_target(H200), folder / f"{model.path.stem}.relax-h200-records"
    shutil.rmtree(records, ignore_errors=True)
    (_, result), plan_s = timed(lambda: tune(prepare(imported.mod, target), None, target, records, 0))
    say(f"{len(result.tasks)} operators planned and compiled one by one for {result.device.name} in {plan_s:.1f} s")
    executable, build_s = timed(lambda: build(imported.mod, target, database=records))
    say(f"whole model built for sm_90 in {build_s:.1f} s")
    if not find_compilers():
        say("registers and spills need a CUDA compiler: pip install nvidia-cuda-nvrtc-cu12")
        return h200_table(result, {})
    resources, compile_s = timed(lambda: resources_of(executable.mod, target))
    say(f"its CUDA source compiled in {compile_s:.1f} s")
    return h200_table(result, dict(resources))


def main(argv: list[str] | None = None) -> int:
    """Entry point; 0 if every output is right."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--folder", type=Path, default=Path("demo-out"), help="models, records and the picture")
    parser.add_argument("--quick", action="store_true", help="text detection alone, no H200")
    parser.add_argument("--trials", type=int, default=10, help="plans measured, each operator")
    args = parser.parse_args(argv)
    try:
        return demonstrate(args)
    except RollerError as error:
        print(f"demo: error: {error}", file=sys.stderr)
        return error.exit_code


def demonstrate(args: argparse.Namespace) -> int:
    from roller_tvm.device import cpu_device
    from roller_tvm.relax import load_model
    from roller_tvm.relax.targets import local_target
    from roller_tvm.tvm_env import find_tvm, set_threads

    device = cpu_device()
    threads = set_threads(device.units)
    found, target = find_tvm(), local_target()
    say(f"{device}; TVM {found.version if found else 'missing'}; {threads} threads for everybody; target {target}")
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
        variants = tune_on_cpu(model, imported, import_s, target, args.folder, args.trials)
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
