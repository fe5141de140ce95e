#!/usr/bin/env python3
"""Demonstration: two real models tuned for this CPU, and one planned and compiled for an H200 that is not here.

python python/demo_full.py              # the part of `make demo-full` on the line of the TVM that is here
python python/demo_full.py --quick      # text detection alone, no H200

Every output is compared with onnxruntime's on the same input; all run on the same number of threads, in turns.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from roller_bench.variants import (  # noqa: E402
    Variant,
    compare,
    measure,
    onnxruntime_variant,
    table,
    timed,
    tvm_variant,
)
from roller_bench.zoo import Prepared, find_model, text_lines  # noqa: E402
from roller_tvm.errors import RollerError  # noqa: E402
from roller_tvm.models.importing import Model  # noqa: E402
from roller_tvm.models.line import ModelLine, Request, model_line  # noqa: E402
from roller_tvm.models.package import KERNELS  # noqa: E402
from roller_tvm.session import Session  # noqa: E402

H200 = "cuda -arch=sm_90 -model=h200"
MEASURE_S = 10.0
STARTED = time.perf_counter()


def say(text: str = "") -> None:
    """Print a line with the time since the start."""
    print(f"[{time.perf_counter() - STARTED:5.0f} s] {text}" if text else "", flush=True)


class Demonstration:
    """One model on its way through a line.

    Parameters
    ----------
    line : ModelLine
    model : Prepared
    folder : Path
        For libraries and records.
    trials : int
        Plans measured, each operator.
    """

    def __init__(self, line: ModelLine, model: Prepared, folder: Path, trials: int) -> None:
        self.line, self.model, self.folder, self.trials = line, model, folder, trials
        self.imported: Model
        self.imported, self.import_s = timed(lambda: line.importer.load(model.path, model.shapes))

    def session(self, **options: Any) -> Session:
        """Return a session with the imported model."""
        return Session(self.line, Request(**options)).take(self.model.title, self.imported)

    def place(self, what: str) -> Path:
        """Return an empty place for records."""
        place = self.folder / f"{self.model.path.stem}.{what}.{self.line.place}"
        shutil.rmtree(place, ignore_errors=True)
        place.unlink(missing_ok=True)
        return place

    def on_cpu(self) -> list[Variant]:
        """Untuned TVM, Roller without measuring, Roller with the best plans of each operator measured."""
        plain, _ = self._built("untuned TVM", self.session(schedules="tvm"))
        planned, build_s = self._built("Roller, no measuring", session := self.session(), 0.0)
        say(f"planned and built from the ONNX file in {self.import_s + build_s:.0f} s")
        place = self.place(f"top{self.trials}")
        result, tune_s = timed(lambda: session.tune(self.trials, place))
        tuned, build_s = self._built(f"Roller top-{self.trials}", session, tune_s)
        told = ", ".join(f"{n} {s}" for s, n in Counter(t.status for t in result.tasks).items())
        say(f"{len(result.tasks)} operators ({told}) tuned in {tune_s:.1f} s; from ONNX file to built model "
            f"{self.import_s + tune_s + build_s:.0f} s; records {place}")  # fmt: skip
        for reason, number in Counter(t.reason.split(":")[0] for t in result.fallbacks).most_common():
            say(f"  no record for {number}: {reason}")
        if result.failures:
            say("  failed candidates: " + ", ".join(f"{n} {kind}" for kind, n in result.failures.items()))
        return [plain, planned, tuned]

    def _built(self, name: str, session: Session, tune_s: float | None = None) -> tuple[Variant, float]:
        file = self.folder / f"{self.model.path.stem}.{name.replace(' ', '-').replace(',', '')}.so"
        library, build_s = timed(lambda: session.save(file))
        say(f"{name}: built in {build_s:.1f} s")
        return tvm_variant(name, library, self.model, tune_s, build_s), build_s

    def for_h200(self) -> str:
        """Plan and compile the model for sm_90 without a GPU: kernels, resources, predicted times."""
        from roller_tvm.codegen import compile_cuda, find_compilers, kernel_resources

        session = self.session(target=H200)
        result, plan_s = timed(lambda: session.tune(0, self.place("h200")))
        say(f"{len(result.tasks)} operators planned and compiled one by one for {result.device.name} in {plan_s:.1f} s")
        built, build_s = timed(session.built)
        say(f"whole model built for sm_90 in {build_s:.1f} s")
        if not find_compilers():
            say("registers and spills need a CUDA compiler: pip install nvidia-cuda-nvrtc-cu12")
            return h200_table(result, {})
        kernels = getattr(built, KERNELS)
        resources: dict[str, Any] = {}
        for source in (kernels.source, *kernels.more):
            resources.update(kernel_resources(compile_cuda(source, "sm_90", where=self.model.title)))
        return h200_table(result, resources)


def text_found(variants: list[Variant]) -> str:
    """Return the results of text detection, onnxruntime first."""
    lines = [text_lines(v.run()[0]) for v in variants]
    return f"lines of text found in the picture: {lines[0]} by onnxruntime, {lines[1:]} by the others"


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
    parser.add_argument("--trials", type=int, default=10, help="plans measured, each operator")
    args = parser.parse_args(argv)
    try:
        return demonstrate(args)
    except RollerError as error:
        print(f"demo: error: {error}", file=sys.stderr)
        return error.exit_code


def demonstrate(args: argparse.Namespace) -> int:
    """Run the models side by side; print one table."""
    from roller_tvm.device import cpu_device
    from roller_tvm.tvm_env import find_tvm, set_threads
    from roller_tvm.tvm_env.locate import usable_line

    device = cpu_device()
    threads = set_threads(device.units)
    found, line = find_tvm(), model_line(usable_line("the demonstration"))
    say(f"{device}; TVM {found.version if found else 'missing'}; {threads} threads for everybody; target "
        f"{line.aim(None, None, 'device').words}")  # fmt: skip
    results: list[tuple[Prepared, list[Variant]]] = []
    text = ""
    for name in ["detection"] if args.quick else ["detection", "resnet50"]:
        model = find_model(name, args.folder)
        shape = ", ".join(f"{n} {'x'.join(map(str, s))}" for n, s in model.shapes.items())
        say()
        say(f"{model.title} ({shape}): {model.path}")
        reference = onnxruntime_variant(model, threads)
        shown = Demonstration(line, model, args.folder, args.trials)
        variants = shown.on_cpu()
        expected = reference.run()
        told = (f"{list(e.shape)} of magnitude {float(abs(e).max()):.3g}" for e in expected)
        say(f"{reference.name}: output " + ", ".join(told))
        if name == "detection":
            say(text_found([reference, *variants]))
        compare(model, variants, expected)
        variants.append(reference)
        measure(model, variants, threads, args.folder, MEASURE_S)
        results.append((model, variants))
        if name == "resnet50":
            say()
            say(f"{model.title} for an NVIDIA H200 ({H200}), no GPU needed")
            text = shown.for_h200()
    print(f"\n{table(results, threads)}\n{text}", flush=True)
    say("done")
    return 0


if __name__ == "__main__":
    sys.exit(main())
