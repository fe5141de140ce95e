"""Compile the plans of every task of networks for CUDA on the Relax line; compare the resources with the prediction.

The counterpart of compile_tasks.py: tasks are the PrimFuncs of the pipeline "roller", schedules are made through
TensorIR, with cp.async pipelines, and on tensor cores if the network is in float16. No GPU is needed. One JSON line per
plan is appended to the output file, so an interrupted run resumes.

    python python/compile_tasks_relax.py --out tasks_relax.jsonl
    python python/compile_tasks_relax.py --models bert_base --batches 1 --archs sm_90 --out bert.jsonl
    python python/compile_tasks_relax.py --summary tasks_relax.jsonl
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from compiling import Tasks, tasks_main  # noqa: E402

#: Batch and folder -> a Relax module.
Model = Callable[[int, Path], Any]


def resnet50(layout: str | None = None) -> Model:
    def load(batch: int, folder: Path) -> Any:
        from roller_tvm.compare.whole import zoo as models
        from roller_tvm.relax import load_model

        path = with_batch(models.light("resnet50", folder).path, batch)
        return load_model(path, layout=layout).mod

    return load


def with_batch(path: Path, batch: int) -> Path:
    """Return an ONNX file of batch 1 with another batch: in its inputs, and in the shapes of its reshapes."""
    import onnx
    from onnx import numpy_helper

    model = onnx.load(str(path))
    graph = model.graph
    shapes = {node.input[1] for node in graph.node if node.op_type == "Reshape"}
    weights = {tensor.name: tensor for tensor in graph.initializer}
    for name in shapes & weights.keys():
        old = numpy_helper.to_array(weights[name]).copy()
        old[0] = 0  # as the tensor has it
        weights[name].CopyFrom(numpy_helper.from_array(old, name))
    for value in (*graph.input, *graph.output):
        if value.name not in weights:
            value.type.tensor_type.shape.dim[0].dim_value = batch
    del graph.value_info[:]
    changed = path.with_name(f"{path.stem}_b{batch}.onnx")
    onnx.save(model, str(changed))
    return changed


def mobilenet_v2(layout: str | None = None) -> Model:
    def load(batch: int, folder: Path) -> Any:
        from roller_tvm.compare.whole import networks
        from roller_tvm.relax import load_model

        return load_model(networks.mobilenet_v2(folder, batch).path, layout=layout).mod

    return load


def bert_base(batch: int, folder: Path) -> Any:
    """Return one of BERT-base's twelve equal layers."""
    from roller_tvm.compare.whole import networks
    from roller_tvm.relax import load_model

    return load_model(networks.bert_base(folder, batch, layers=1).path).mod


def in_half(model: Model) -> Model:
    """Return the network with its products in float16, by TVM's pass for mixed precision (which skips some)."""

    def load(batch: int, folder: Path) -> Any:
        from tvm import relax

        return relax.transform.ToMixedPrecision(out_dtype="float16")(model(batch, folder))

    return load


HALF = "_float16"
IN_FLOAT32: dict[str, Model] = {
    "resnet50": resnet50(), "resnet50_nhwc": resnet50("NHWC"),
    "mobilenet_v2": mobilenet_v2(), "mobilenet_v2_nhwc": mobilenet_v2("NHWC"),
    "bert_base": bert_base,
}  # fmt: skip
MODELS = IN_FLOAT32 | {name + HALF: in_half(IN_FLOAT32[name]) for name in ("resnet50", "resnet50_nhwc", "bert_base")}


def take_apart(name: str, batch: int, archs: list[str], folder: Path, compiler: str) -> Tasks:
    """Return the tasks of one model; they are the same for every architecture."""
    from roller_tvm.relax.devices import device_of
    from roller_tvm.relax.pipeline import prepare
    from roller_tvm.relax.targets import make_target
    from roller_tvm.relax.tasks import extract_tasks
    from roller_tvm.roller.features import Features
    from roller_tvm.tir.cuda import check_resources
    from roller_tvm.tir.read import read_prim_func

    targets = {arch: make_target({"kind": "cuda", "arch": arch}) for arch in archs}
    devices = {arch: device_of(None, target) for arch, target in targets.items()}
    tasks = extract_tasks(prepare(MODELS[name](batch, folder), targets[archs[0]]))

    def read(task: Any, arch: str) -> tuple[Any, Any]:
        reading = read_prim_func(task.func, name=task.name)

        def check(ranked: Any) -> Any:
            return check_resources(ranked.plan, ranked.estimate, task.func, reading, [arch], compiler, devices[arch])

        return reading, check

    return Tasks(tasks, devices, read, Features.of_tensor_ir, "float16" if name.endswith(HALF) else "float32")


if __name__ == "__main__":
    raise SystemExit(tasks_main(__doc__, tuple(MODELS), "sm_80,sm_90", take_apart))
