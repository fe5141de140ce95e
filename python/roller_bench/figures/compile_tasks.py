"""Plans of every task of networks compiled for CUDA, on either line."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roller_bench import networks, zoo
from roller_bench.figures import NETWORKS, names
from roller_bench.figures.compiling import Done, add_compiling, compile_all_of, compile_plans
from roller_tvm.device import device_for_target
from roller_tvm.errors import RollerError
from roller_tvm.roller.features import Features
from roller_tvm.tvm_env import line

#: Suffix of the networks whose products are in float16.
HALF = "_float16"
IN_FLOAT32 = ("resnet50", "resnet50_nhwc", "mobilenet_v2", "mobilenet_v2_nhwc", "bert_base")
#: Line -> its networks, and the architectures that it compiles for.
MODELS = {"relay": IN_FLOAT32,
          "relax": (*IN_FLOAT32, *(name + HALF for name in ("resnet50", "resnet50_nhwc", "bert_base")))}  # fmt: skip
ARCHS = {"relay": "sm_75,sm_80,sm_90", "relax": "sm_80,sm_90"}


def compile_tasks(parser: argparse.ArgumentParser) -> None:
    """Compile the plans of every task of networks for CUDA, and compare the resources with the prediction.

        .venv/relay/bin/python -m roller_bench compile-tasks --archs sm_75,sm_80,sm_90 --out tasks.jsonl
        .venv/relax/bin/python -m roller_bench compile-tasks --models bert_base --batches 1 --archs sm_90
        python -m roller_bench compile-tasks --summary tasks.jsonl

    The tasks are the same as for ``tune``. On the Relay line schedules are made through Ansor States, as in records; on
    the Relax line through TensorIR, with cp.async pipelines, and on tensor cores if the network is in float16. No GPU
    is needed. One JSON line per plan is appended to the output file, so an interrupted run resumes. Plans are made for
    the shipped device of an architecture (T4, A100, H100).
    """
    here = line() or "relax"
    models = ",".join(MODELS[here])
    parser.add_argument("--models", default=models, help="names, with commas; default %(default)s")
    parser.add_argument("--batches", default="1,64", help="batch sizes, with commas; default %(default)s")
    parser.add_argument("--only", default="", help="choose tasks by name or number (resnet50_b1:3), with commas")
    parser.add_argument("--folder", type=Path, default=NETWORKS, help="folder for networks; default %(default)s")
    add_compiling(parser, ARCHS[here], top=1, out="compiled_tasks.jsonl")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    def compiled(done: Done) -> Iterable[dict[str, Any]]:
        take_apart = relay_tasks if line() == "relay" else relax_tasks
        for name in names(args.models):
            for batch in map(int, names(args.batches)):
                network = take_apart(name, batch, names(args.archs), args.folder, args.compiler)
                yield from network.compiled(f"{name}_b{batch}", args.top, done, set(names(args.only)))

    return compile_all_of(args, "tasks", compiled)


@dataclass(frozen=True)
class Tasks:
    """A network's tasks, extracted by either line.

    Parameters
    ----------
    tasks : sequence
        Tasks with `id` and `name`.
    devices : mapping of architecture to DeviceSpec
        Devices that plans are made for.
    read : function of (task, architecture) -> (reading, check of a plan)
    features : function of DeviceSpec -> Features, optional
        Returns the capabilities of the schedules.
    dtype : str
        Of most tensors.
    """

    tasks: Sequence[Any]
    devices: Mapping[str, Any]
    read: Callable[[Any, str], tuple[Any, Callable[[Any], Any]]]
    features: Callable[[Any], Any] | None = None
    dtype: str = "float32"

    def compiled(self, network: str, top: int, done: Done, only: set[str]) -> Iterator[dict[str, Any]]:
        """Yield results, task by task, for the tasks chosen by `only` that are not in `done`."""
        for task in self.tasks:
            own = f"{network}:{task.id}"
            if only and own not in only and task.name not in only:
                continue
            for arch, device in self.devices.items():
                base = {"id": f"{own}@{arch}", "name": task.name, "device": device.name, "dtype": self.dtype}
                if any((base["id"], rank) in done for rank in range(top)):
                    continue
                try:
                    reading, check = self.read(task, arch)
                except RollerError as error:
                    yield {**base, "rank": 0, "status": "fallback", "error": str(error)}
                    continue
                features = self.features(device) if self.features else None
                yield from compile_plans(base, reading, device, [arch], top, check, done, features)


def written(name: str, batch: int, folder: Path) -> Path:
    """Write MobileNet v2, or one of BERT-base's twelve equal layers, as an ONNX file; return its path."""
    if name == "bert_base":
        return networks.bert_base(folder, batch, layers=1).path
    return networks.mobilenet_v2(folder, batch).path


# -- Relay --


def relay_model(name: str, batch: int, folder: Path) -> tuple[Any, Any]:
    """Return a network's module and parameters; in NHWC parameters stay open, as TVM's tutorials for Ansor have it."""
    import onnx
    import tvm
    from tvm import relay
    from tvm.relay import testing

    name, nhwc = name.removesuffix("_nhwc"), name.endswith("_nhwc")
    if name == "resnet50":
        layout, shape = ("NHWC", (224, 224, 3)) if nhwc else ("NCHW", (3, 224, 224))
        return testing.resnet.get_workload(num_layers=50, batch_size=batch, layout=layout, image_shape=shape)
    mod, params = relay.frontend.from_onnx(onnx.load(str(written(name, batch, folder))), freeze_params=not nhwc)
    if not nhwc:
        return mod, params
    convert = relay.transform.ConvertLayout({"nn.conv2d": ["NHWC", "default"]})
    with tvm.transform.PassContext(opt_level=3):
        return tvm.transform.Sequential([relay.transform.RemoveUnusedFunctions(), convert])(mod), params


def relay_tasks(name: str, batch: int, archs: list[str], folder: Path, compiler: str) -> Tasks:
    """Return the tasks of one model; they are the same for every architecture."""
    from roller_tvm.codegen.apply_te import TeProgram
    from roller_tvm.relay.cuda import check_resources
    from roller_tvm.relay.tasks import extract_tasks, make_target
    from roller_tvm.te import read_te

    targets = {arch: make_target(f"cuda -arch={arch}") for arch in archs}
    devices = {arch: device_for_target(target) for arch, target in targets.items()}
    tasks = extract_tasks(*relay_model(name, batch, folder), targets[archs[0]], devices[archs[0]])

    def read(task: Any, arch: str) -> tuple[Any, Any]:
        dag = task.search_task.compute_dag
        reading = read_te(dag, name=task.name)
        program = TeProgram.of_reading(reading, list(dag.tensors))
        return reading, lambda r: check_resources(r.plan, r.estimate, program, [arch], compiler, dag=dag)

    return Tasks(tasks, devices, read)


# -- Relax --


def relax_model(name: str, batch: int, folder: Path) -> Any:
    """Return a network's module; products in float16 by TVM's pass for mixed precision, which skips some."""
    from tvm import relax

    from roller_tvm.relax import load_model

    if name.endswith(HALF):
        plain = relax_model(name.removesuffix(HALF), batch, folder)
        return relax.transform.ToMixedPrecision(out_dtype="float16")(plain)
    name, layout = name.removesuffix("_nhwc"), "NHWC" if name.endswith("_nhwc") else None
    path = with_batch(zoo.light(name, folder).path, batch) if name == "resnet50" else written(name, batch, folder)
    return load_model(path, layout=layout).mod


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


def relax_tasks(name: str, batch: int, archs: list[str], folder: Path, compiler: str) -> Tasks:
    """Return the tasks of one model as the pipeline "roller" prepares them, the same for every architecture."""
    from roller_tvm.relax.cuda import check_resources
    from roller_tvm.relax.devices import device_of
    from roller_tvm.relax.pipeline import prepare
    from roller_tvm.relax.targets import make_target
    from roller_tvm.relax.tasks import extract_tasks
    from roller_tvm.tir.read import read_prim_func

    targets = {arch: make_target({"kind": "cuda", "arch": arch}) for arch in archs}
    devices = {arch: device_of(None, target) for arch, target in targets.items()}
    tasks = extract_tasks(prepare(relax_model(name, batch, folder), targets[archs[0]]))

    def read(task: Any, arch: str) -> tuple[Any, Any]:
        reading, device = read_prim_func(task.func, name=task.name), devices[arch]
        return reading, lambda r: check_resources(r.plan, r.estimate, task.func, reading, [arch], compiler, device)

    return Tasks(tasks, devices, read, Features.of_tensor_ir, "float16" if name.endswith(HALF) else "float32")
