"""Compile the plans of every task of networks for CUDA, and hold the resources against the prediction.

The tasks are those that ``tune`` would see; schedules are made through Ansor States, as records hold them. No GPU is
needed. One JSON line a plan is appended to the output file: a run that was interrupted goes on where it was. Plans
are made for the device that ships for an architecture (T4, A100, H100).

    python python/compile_tasks.py --archs sm_75,sm_80,sm_90 --out tasks.jsonl
    python python/compile_tasks.py --summary tasks.jsonl
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from compiling import compile_plans, read_results, summary  # noqa: E402

Model = Callable[[int, Path], tuple[Any, Any]]


def resnet50(layout: str) -> Model:
    def load(batch: int, folder: Path) -> tuple[Any, Any]:
        from tvm.relay import testing

        shape = (3, 224, 224) if layout == "NCHW" else (224, 224, 3)
        return testing.resnet.get_workload(num_layers=50, batch_size=batch, layout=layout, image_shape=shape)

    return load


def mobilenet_v2(layout: str) -> Model:
    def load(batch: int, folder: Path) -> tuple[Any, Any]:
        import networks
        import onnx
        import tvm
        from tvm import relay

        mod, params = relay.frontend.from_onnx(
            onnx.load(str(networks.mobilenet_v2(folder, batch).path)), freeze_params=layout == "NCHW")  # fmt: skip
        if layout == "NCHW":
            return mod, params
        convert = relay.transform.ConvertLayout({"nn.conv2d": ["NHWC", "default"]})
        with tvm.transform.PassContext(opt_level=3):
            return tvm.transform.Sequential([relay.transform.RemoveUnusedFunctions(), convert])(mod), params

    return load


def bert_base(batch: int, folder: Path) -> tuple[Any, Any]:
    """One of twelve equal layers."""
    import networks
    import onnx
    from tvm import relay

    model = onnx.load(str(networks.bert_base(folder, batch, layers=1).path))
    return relay.frontend.from_onnx(model, freeze_params=True)


MODELS: dict[str, Model] = {
    "resnet50": resnet50("NCHW"), "resnet50_nhwc": resnet50("NHWC"),
    "mobilenet_v2": mobilenet_v2("NCHW"), "mobilenet_v2_nhwc": mobilenet_v2("NHWC"),
    "bert_base": bert_base,
}  # fmt: skip


def compile_model(
    name: str, batch: int, archs: list[str], folder: Path, top: int, compiler: str, done: dict[tuple[str, int], str],
    only: set[str],
) -> Any:  # fmt: skip
    """Results of one model, task by task; the tasks are the same whatever the architecture."""
    from roller_tvm.device import device_for_target
    from roller_tvm.errors import RollerError
    from roller_tvm.relay.loops import TeProgram
    from roller_tvm.relay.tasks import extract_tasks, make_target
    from roller_tvm.te import read_te

    targets = {arch: make_target(f"cuda -arch={arch}") for arch in archs}
    devices = {arch: device_for_target(target) for arch, target in targets.items()}
    for task in extract_tasks(*MODELS[name](batch, folder), targets[archs[0]], devices[archs[0]]):
        own = f"{name}_b{batch}:{task.id}"
        if only and own not in only and task.name not in only:
            continue
        for arch, device in devices.items():
            base = {"id": f"{own}@{arch}", "name": task.name, "device": device.name, "dtype": "float32"}
            if any((base["id"], rank) in done for rank in range(top)):
                continue
            dag = task.search_task.compute_dag
            try:
                reading = read_te(dag, name=task.name)
            except RollerError as error:
                yield {**base, "rank": 0, "status": "fallback", "error": str(error)}
                continue
            program = TeProgram.of_reading(reading, list(dag.tensors))
            yield from compile_plans(base, reading, device, [arch], top, check_of(program, arch, compiler, dag), done)


def check_of(program: Any, arch: str, compiler: str, dag: Any) -> Any:
    """Compiles a plan through an Ansor State, as records hold them."""
    from roller_tvm.relay.cuda import check_resources

    return lambda ranked: check_resources(ranked.plan, ranked.estimate, program, [arch], compiler, dag=dag)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--batches", default="1,64")
    parser.add_argument("--archs", default="sm_75,sm_80,sm_90")
    parser.add_argument("--only", default="", help="tasks by name or number (resnet50_b1:3), with commas")
    parser.add_argument("--compiler", default="auto", choices=("auto", "nvrtc", "nvcc"))
    parser.add_argument("--top", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=Path("demo-out/models"), help="where networks are written")
    parser.add_argument("--out", type=Path, default=Path("compiled_tasks.jsonl"))
    parser.add_argument("--summary", type=Path, nargs="+", help="only print the totals of result files")
    args = parser.parse_args()
    if args.summary:
        print("\n".join(summary(read_results(path), "tasks") for path in args.summary))
        return 0
    done: dict[tuple[str, int], str] = {}
    if args.out.exists():
        done = {(r["id"], r["rank"]): r["status"] for r in read_results(args.out)}
    only = set(filter(None, args.only.split(",")))
    with args.out.open("a") as out:
        for name in args.models.split(","):
            for batch in map(int, args.batches.split(",")):
                archs = args.archs.split(",")
                for result in compile_model(name, batch, archs, args.folder, args.top, args.compiler, done, only):
                    out.write(json.dumps(result) + "\n")
                    out.flush()
                    print(result["id"], result["status"], result["name"], file=sys.stderr, flush=True)
    results = read_results(args.out)
    print(summary(results, "tasks"))
    return 0 if all(r["status"] in ("ok", "spills") for r in results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
