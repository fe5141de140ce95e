"""Models as TVM's tutorial tunes them with Ansor (NHWC), their tasks, and Ansor's own records for them.

    python python/ansor_tasks.py benchmarks/ansor_64.json --trials 64

Makes the records once; tasks with records in the file are skipped, so an interrupted run resumes. `against_ansor.py`
compares Roller with these records.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

#: Ansor learns between rounds; with its default of 64 a round it would not learn at all from 64 trials.
ROUND = 32
MODELS = ("resnet50", "mobilenet_v2", "bert_base")


@dataclass(frozen=True)
class NamedTask:
    """A task, its model, and the number of its calls in the model."""

    model: str
    number: int
    weight: int
    task: Any

    @property
    def key(self) -> str:
        return str(self.task.workload_key)

    @property
    def name(self) -> str:
        from roller_tvm.relay.tasks import short_name

        return short_name(self.task.desc)


def load(model: str, folder: Path) -> tuple[Any, dict[str, Any]]:
    """Return Relay module and parameters, with convolutions in NHWC as in TVM's own tutorial for Ansor."""
    import onnx
    import tvm
    from tvm import relay
    from tvm.relay import testing

    from roller_tvm.compare.whole import networks

    if model == "resnet50":
        return testing.resnet.get_workload(num_layers=50, batch_size=1, layout="NHWC", image_shape=(224, 224, 3))
    if model == "mobilenet_v2":
        mod, params = relay.frontend.from_onnx(onnx.load(str(networks.mobilenet_v2(folder).path)), freeze_params=False)
        layouts = relay.transform.ConvertLayout({"nn.conv2d": ["NHWC", "default"]})
        with tvm.transform.PassContext(opt_level=3):
            return tvm.transform.Sequential([relay.transform.RemoveUnusedFunctions(), layouts])(mod), params
    if model == "bert_base":  # twelve layers of the same tasks: one is taken apart faster
        prepared = networks.bert_base(folder, layers=1)
        return relay.frontend.from_onnx(onnx.load(str(prepared.path)), freeze_params=True)
    raise SystemExit(f"no model {model!r}\n  remedy: one of {', '.join(MODELS)}")


def extract(models: list[str], target: Any, folder: Path) -> list[NamedTask]:
    """Return Ansor's tasks, each workload once; dense ones without layout rewriting, which fails for them."""
    from tvm import auto_scheduler

    from roller_tvm.compare.relay.whole import names_with_digits

    found: dict[str, NamedTask] = {}
    for model in models:
        mod, params = load(model, folder)
        extracted = auto_scheduler.extract_tasks(mod["main"], params, target)
        for number, (task, weight) in enumerate(zip(*extracted, strict=True)):
            if names_with_digits(task.compute_dag):
                task = auto_scheduler.SearchTask(
                    workload_key=task.workload_key, target=target, desc=task.desc,
                    layout_rewrite_option=auto_scheduler.LayoutRewriteOption.NO_REWRITE,
                )  # fmt: skip
            found.setdefault(task.workload_key, NamedTask(model, number, int(weight), task))
    # In an order that says nothing of the models: where the work is cut short, what is there is a fair sample.
    return sorted(found.values(), key=lambda named: hashlib.sha256(named.key.encode()).digest())


def done(log: Path) -> dict[str, int]:
    """Return the number of trials in a record file, by workload key."""
    counts: dict[str, int] = {}
    if log.exists():
        for line in log.read_text().splitlines():
            if line.startswith("{"):
                key = json.loads(line)["i"][0][0]
                counts[key] = counts.get(key, 0) + 1
    return counts


def ended(log: Path) -> set[str]:
    """Return the workloads whose search has ended, perhaps before all trials: a small space runs out of candidates."""
    times = log.with_suffix(".seconds.json")
    return set(json.loads(times.read_text())) if times.exists() else set()


def tune(named: NamedTask, trials: int, log: Path, verbose: int = 0) -> float:
    """Tune one task by Ansor; return the seconds taken."""
    from tvm import auto_scheduler

    start = time.perf_counter()
    options = auto_scheduler.TuningOptions(
        num_measure_trials=trials, num_measures_per_round=ROUND, verbose=verbose,
        builder=auto_scheduler.LocalBuilder(timeout=30),
        runner=auto_scheduler.LocalRunner(repeat=2, min_repeat_ms=100, timeout=20),
        measure_callbacks=[auto_scheduler.RecordToFile(str(log))],
    )  # fmt: skip
    named.task.tune(options)
    return time.perf_counter() - start


def best(log: Path) -> dict[str, float]:
    """Return the fastest mean time of each workload in a record file, in seconds."""
    found: dict[str, float] = {}
    for line in log.read_text().splitlines():
        if line.startswith("{"):
            record = json.loads(line)
            costs, error = record["r"][0], record["r"][1]
            if error == 0:
                key = record["i"][0][0]
                found[key] = min(found.get(key, float("inf")), sum(costs) / len(costs))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", type=Path, help="file of records, read and appended to")
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--folder", type=Path, default=Path("demo-out/models"))
    args = parser.parse_args()

    from roller_tvm.device import cpu_device, default_cpu_target
    from roller_tvm.tvm_env import import_relay_tvm, set_threads

    import_relay_tvm("Ansor's records")
    from roller_tvm.relay.tasks import make_target

    threads = set_threads(cpu_device().units)
    target = make_target(default_cpu_target(threads=threads))
    tasks = extract(args.models.split(","), target, args.folder)
    args.log.parent.mkdir(parents=True, exist_ok=True)
    times = args.log.with_suffix(".seconds.json")
    spent = json.loads(times.read_text()) if times.exists() else {}
    for count, named in enumerate(tasks):
        missing = args.trials - done(args.log).get(named.key, 0)
        if missing <= 0:
            continue
        taken = tune(named, missing, args.log)
        spent[named.key] = spent.get(named.key, 0.0) + taken
        times.write_text(json.dumps(spent, indent=0))
        seconds = best(args.log).get(named.key, float("nan"))
        flops = float(named.task.compute_dag.flop_ct)
        print(f"{count + 1}/{len(tasks)} {named.model} {named.name}: {missing} trials in {taken:.0f} s, "
              f"best {seconds * 1e6:.1f} us, {flops / seconds / 1e9:.1f} GFLOP/s", flush=True)  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
