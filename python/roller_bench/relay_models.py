"""Whole models on the Relay line: tuned by Roller or Ansor, built as users build them."""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Sequence, Set
from pathlib import Path
from typing import Any

import numpy as np

from roller_bench.files import CurveFile, mend_lines
from roller_bench.peers_relay import ROUND, watch
from roller_bench.running import by_roller, keep_inputs, read_inputs
from roller_bench.running import open_built as open_model
from roller_bench.zoo import SEED, TESTING, TESTING_NETWORKS
from roller_tvm.errors import MeasureError
from roller_tvm.relay.building import PACKING
from roller_tvm.relay.dataflow import as_graph
from roller_tvm.relay.dense_weights import NamedAxes, constant_dense
from roller_tvm.relay.importers import Model, load_model
from roller_tvm.relay.package import set_inputs
from roller_tvm.tvm_env import import_relay_tvm

__all__ = ["build", "names_with_digits", "open_model", "plain_build", "testing_model"]
#: Number of runs to compare two ways of building a model.
COMPARED = 20


def build(
    model: dict[str, Any], output: Path, tuner: str, trials: int, target: str, work: Path, search: bool = True
) -> dict[str, Any]:
    """Tune and build a model; return the seconds of both with the other fields of a result."""
    import_relay_tvm("comparing")
    if model["onnx"]:
        shapes = {name: array.shape for name, array in read_inputs(Path(model["inputs"])).items()}
        loaded = load_model(model["onnx"], shapes, model["layout"])
    else:  # a network of ``relay.testing``, whose inputs are made with it
        mod, params, inputs = testing_model(model["name"].removeprefix(TESTING))
        keep_inputs(inputs, Path(model["inputs"]))
        loaded = Model(mod, params, {n: (a.shape, str(a.dtype)) for n, a in inputs.items()})
    if tuner == "roller":
        return by_roller(model["title"], loaded, output, trials, target, work)
    mod, params = loaded.mod, loaded.params
    found: dict[str, Any] = {"seconds": 0.0, "schedule": "TVM's default"}
    records = work / f"records.{trials}.packed.json"
    with NamedAxes(tuner == "ansor"):  # without it TVM packs no dense layer's weights
        if tuner == "ansor":
            mod = constant_dense(as_graph(mod), params)
            found, unpackable = _ansor(mod, params, target, records, trials, search)
            if unpackable:
                return {**found, **_without_packing(mod, params, target, records, unpackable, output, model["inputs"])}
        start = time.perf_counter()
        plain_build(mod, params, target, None if tuner == "untuned" else records, output)
    return {**found, "file": str(output), "build_s": time.perf_counter() - start}


def plain_build(
    mod: Any, params: Any, target: str, records: Path | None, path: Path, leave_out: Sequence[str] = ()
) -> Path:
    """Build as a TVM user's script does, with nothing added; return `path`. `leave_out` names disabled passes."""
    import tvm
    from tvm import auto_scheduler, autotvm, relay
    from tvm.relay.backend import te_compiler

    te_compiler.get().clear()
    autotvm.GLOBAL_SCOPE.silent = True  # it would say that untuned is untuned
    if records is None:
        with tvm.transform.PassContext(opt_level=3):
            built = relay.build(mod, target=target, params=params)
    else:
        config = {"relay.backend.use_auto_scheduler": True}
        history = auto_scheduler.ApplyHistoryBest(str(records))
        history.verbose = 0
        with history, tvm.transform.PassContext(opt_level=3, config=config, disabled_pass=list(leave_out)):
            built = relay.build(mod, target=target, params=params)
    built.export_library(str(path))
    return path


def _without_packing(
    mod: Any, params: Any, target: str, records: Path, keys: Set[str], output: Path, inputs: str
) -> dict[str, Any]:
    """Build Ansor's model if ``relay.build`` cannot pack some weights (it takes no axis names with digits).

    Two ways are built, and the faster is kept: those operators without its records, or no weights packed at all.
    """
    some = records.with_name(f"some.{records.name}")
    lines = records.read_text().splitlines()
    some.write_text("".join(f"{ln}\n" for ln in lines if ln.startswith("{") and json.loads(ln)["i"][0][0] not in keys))
    found = []
    told = f"without its records of {len(keys)} operators", "no weights packed"
    ways: tuple[tuple[Path, tuple[str, ...]], ...] = ((some, ()), (records, (PACKING,)))
    for number, (used, leave_out) in enumerate(ways):
        path, start = output.with_name(f"{output.stem}.{number}.so"), time.perf_counter()
        plain_build(mod, params, target, used, path, leave_out)
        found.append((_seconds(path, inputs), time.perf_counter() - start, path, told[number]))
    _, build_s, path, how = min(found)
    path.replace(output)
    reason = f"{how}: TVM's layout rewriting does not take their axis names"
    return {"file": str(output), "build_s": build_s, "reason": reason}


def _seconds(path: Path, inputs: str) -> float:
    """Return the least time of a few runs in seconds."""
    import tvm
    from tvm.contrib import graph_executor

    module = graph_executor.GraphModule(tvm.runtime.load_module(str(path))["default"](tvm.cpu()))
    set_inputs(module, read_inputs(Path(inputs)))
    return min(float(s) for s in module.benchmark(tvm.cpu(), number=1, repeat=COMPARED).results)


def _ansor(
    mod: Any, params: Any, target: str, records: Path, trials: int, search: bool
) -> tuple[dict[str, Any], set[str]]:
    """Tune as TVM's tutorial tunes a network: its task scheduler with `trials` for all tasks, less those already done.

    Returns
    -------
    (dict, set of str)
        Fields of a result, and the keys of the tasks whose weights cannot be packed.
    """
    from tvm import auto_scheduler
    from tvm.auto_scheduler.task_scheduler import PrintTableInfo

    from roller_tvm.relay.tasks import make_target

    made = make_target(target)
    mend_lines(records)
    reached = records.with_name(f"curve.{trials}.jsonl")
    if not records.exists():
        reached.unlink(missing_ok=True)
    curve = CurveFile(reached)
    tasks, weights = auto_scheduler.extract_tasks(mod["main"], params, made)
    unpackable = {str(t.workload_key) for t in tasks if names_with_digits(t.compute_dag)}
    tasks = [_without_rewriting(t) if str(t.workload_key) in unpackable else t for t in tasks]
    if trials < len(tasks):
        told = f"{trials} trials are fewer than the model's {len(tasks)} tasks"
        raise MeasureError(told, "ansor", f"give ansor:{len(tasks)} or more", "trials")
    if search and curve.trials < trials:
        log = str(records) if curve.trials else None
        scheduler = auto_scheduler.TaskScheduler(
            tasks, list(map(int, weights)), load_log_file=log,
            callbacks=[PrintTableInfo()],  # unless told it also leaves a table in the current folder
        )  # fmt: skip
        # The scheduler counts what this run measures: what a log has is not among it.
        scheduler.tune(auto_scheduler.TuningOptions(
            num_measure_trials=max(trials - curve.trials, len(tasks)), num_measures_per_round=ROUND, verbose=0,
            builder=auto_scheduler.LocalBuilder(), runner=auto_scheduler.LocalRunner(repeat=2, min_repeat_ms=100),
            measure_callbacks=[auto_scheduler.RecordToFile(str(records)), watch(curve)],
        ))  # fmt: skip
    records.touch()
    without = len({str(t.workload_key) for t in tasks} - recorded(records))
    return {"seconds": curve.noted, "trials": curve.trials, "schedule": f"{len(tasks)} operators",
            "reason": f"no record of {without} of {len(tasks)} operators" if without else ""}, unpackable  # fmt: skip


def recorded(records: Path) -> set[str]:
    """Return the keys of the operators with a record that worked."""
    rows = [json.loads(line) for line in records.read_text().splitlines() if line.startswith("{")]
    return {row["i"][0][0] for row in rows if row["r"][1] == 0}


def names_with_digits(dag: Any) -> bool:
    """Return True if Ansor's layout rewriting would fail in compute_dag.cc:764 because axis names have digits."""
    free = [op for op in dag.ops if "layout_free_placeholders" in (getattr(op, "attrs", None) or {})]
    return any(c.isdigit() for op in free for a in (*op.axis, *op.reduce_axis) for c in a.var.name)


def _without_rewriting(task: Any) -> Any:
    from tvm import auto_scheduler

    return auto_scheduler.SearchTask(
        workload_key=task.workload_key, target=task.target, desc=task.desc,
        layout_rewrite_option=auto_scheduler.LayoutRewriteOption.NO_REWRITE,
    )  # fmt: skip


def testing_model(name: str) -> tuple[Any, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return module, parameters and inputs of a network; parameters that Xavier's rule leaves constant become random.

    Examples
    --------
    >>> mod, params, inputs = testing_model("resnet-18")
    >>> inputs["data"].shape
    (1, 3, 224, 224)
    """
    module, arguments = TESTING_NETWORKS[name]
    mod, params = importlib.import_module(f"tvm.relay.testing.{module}").get_workload(**arguments)
    mod = as_graph(_named_apart(mod))  # lstm has functions within, which no build takes
    rng = np.random.default_rng(SEED)
    values = {n: _randomised(n, p.numpy(), rng) for n, p in sorted(params.items())}
    inputs = {}
    for var in mod["main"].params:
        if var.name_hint not in values:
            kind = var.checked_type
            inputs[str(var.name_hint)] = rng.standard_normal([int(e) for e in kind.shape]).astype(kind.dtype)
    return mod, values, inputs


def _named_apart(mod: Any) -> Any:
    """Return the module with distinct parameter names: ``lstm`` calls the input of every step 'data'."""
    from tvm import IRModule, relay

    main, fresh, taken = mod["main"], [], set()
    for var in main.params:
        name = str(var.name_hint)
        while name in taken:
            name += "_"
        taken.add(name)
        fresh.append(var if name == var.name_hint else relay.Var(name, var.type_annotation))
    if fresh == list(main.params):
        return mod
    body = relay.bind(main.body, dict(zip(main.params, fresh, strict=True)))
    return relay.transform.InferType()(IRModule.from_expr(relay.Function(fresh, body)))


def _randomised(name: str, values: np.ndarray, rng: Any) -> np.ndarray:
    if values.dtype.kind != "f" or values.size == 1 or np.ptp(values) > 0:
        return values
    if name.endswith(("gamma", "var", "moving_var")):
        return np.asarray(rng.uniform(0.8, 1.2, values.shape), values.dtype)
    return np.asarray(rng.standard_normal(values.shape) * 0.05, values.dtype)
