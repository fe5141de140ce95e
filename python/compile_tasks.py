"""Compile the plans of every task of networks for CUDA, and compare the resources with the prediction.

The tasks are the same as for ``tune``; schedules are made through Ansor States, as in records. No GPU is needed. One
JSON line per plan is appended to the output file, so an interrupted run resumes. Plans are made for the shipped device
of an architecture (T4, A100, H100).

    python python/compile_tasks.py --archs sm_75,sm_80,sm_90 --out tasks.jsonl
    python python/compile_tasks.py --summary tasks.jsonl
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from compiling import Tasks, tasks_main  # noqa: E402

Model = Callable[[int, Path], tuple[Any, Any]]


def resnet50(layout: str) -> Model:
    def load(batch: int, folder: Path) -> tuple[Any, Any]:
        from tvm.relay import testing

        shape = (3, 224, 224) if layout == "NCHW" else (224, 224, 3)
        return testing.resnet.get_workload(num_layers=50, batch_size=batch, layout=layout, image_shape=shape)

    return load


def mobilenet_v2(layout: str) -> Model:
    def load(batch: int, folder: Path) -> tuple[Any, Any]:
        import onnx
        import tvm
        from tvm import relay

        from roller_tvm.compare.whole import networks

        mod, params = relay.frontend.from_onnx(
            onnx.load(str(networks.mobilenet_v2(folder, batch).path)), freeze_params=layout == "NCHW")  # fmt: skip
        if layout == "NCHW":
            return mod, params
        convert = relay.transform.ConvertLayout({"nn.conv2d": ["NHWC", "default"]})
        with tvm.transform.PassContext(opt_level=3):
            return tvm.transform.Sequential([relay.transform.RemoveUnusedFunctions(), convert])(mod), params

    return load


def bert_base(batch: int, folder: Path) -> tuple[Any, Any]:
    """Return one of BERT-base's twelve equal layers."""
    import onnx
    from tvm import relay

    from roller_tvm.compare.whole import networks

    model = onnx.load(str(networks.bert_base(folder, batch, layers=1).path))
    return relay.frontend.from_onnx(model, freeze_params=True)


MODELS: dict[str, Model] = {
    "resnet50": resnet50("NCHW"), "resnet50_nhwc": resnet50("NHWC"),
    "mobilenet_v2": mobilenet_v2("NCHW"), "mobilenet_v2_nhwc": mobilenet_v2("NHWC"),
    "bert_base": bert_base,
}  # fmt: skip


def take_apart(name: str, batch: int, archs: list[str], folder: Path, compiler: str) -> Tasks:
    """Return the tasks of one model; they are the same for every architecture."""
    from roller_tvm.codegen.apply_te import TeProgram
    from roller_tvm.device import device_for_target
    from roller_tvm.relay.tasks import extract_tasks, make_target
    from roller_tvm.te import read_te

    targets = {arch: make_target(f"cuda -arch={arch}") for arch in archs}
    devices = {arch: device_for_target(target) for arch, target in targets.items()}
    tasks = extract_tasks(*MODELS[name](batch, folder), targets[archs[0]], devices[archs[0]])

    def read(task: Any, arch: str) -> tuple[Any, Any]:
        dag = task.search_task.compute_dag
        reading = read_te(dag, name=task.name)
        return reading, check_of(TeProgram.of_reading(reading, list(dag.tensors)), arch, compiler, dag)

    return Tasks(tasks, devices, read)


def check_of(program: Any, arch: str, compiler: str, dag: Any) -> Any:
    """Return a function that compiles a plan through an Ansor State, as in records."""
    from roller_tvm.relay.cuda import check_resources

    return lambda ranked: check_resources(ranked.plan, ranked.estimate, program, [arch], compiler, dag=dag)


if __name__ == "__main__":
    raise SystemExit(tasks_main(__doc__, MODELS, "sm_75,sm_80,sm_90", take_apart))
