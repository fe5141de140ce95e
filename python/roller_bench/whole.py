"""Whole models in a comparison: prepared, built by one implementation, run, and compared with a reference."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from roller_bench import peers_graph
from roller_bench.cases import WHOLE, Case
from roller_bench.results import Prepared
from roller_bench.running import Runnable, found, keep_inputs, keep_reference
from roller_bench.task import made
from roller_bench.zoo import Prepared as Model
from roller_bench.zoo import find_model
from roller_tvm.errors import BadInput, RollerError, last_line

#: Subfolder of a comparison's folder.
MODELS = "models"
ONNXRUNTIME = "onnxruntime"


def prepare(
    names: list[str], shapes: dict[str, list[int]] | None, folder: str, layout: str | None = None
) -> list[dict[str, Any]]:
    """Write each model and its inputs to files; a model that fails gets a reason instead."""
    place, prepared = made(Path(folder, MODELS)), []
    for name in names:
        stem = Path(name).stem if name.endswith(".onnx") else name
        told = " ".join(map(str, filter(None, (name, shapes, layout))))
        case = Case(stem, group="models", title=stem, model=told, task=WHOLE)
        try:
            model = find_model(name, place, shapes)
            if layout and model.path.suffix != ".onnx":
                raise BadInput("only an ONNX file is converted to another layout", name, "leave --desired-layout out")
            case, file = written(model, stem, told, layout, place)
        except RollerError as error:
            prepared.append(Prepared(case, reason=error.what))
        except Exception as error:  # of the onnx package, whose errors have no common base
            prepared.append(Prepared(case, reason=last_line(error)))
        else:
            prepared.append(Prepared(case, file.relative_to(folder).as_posix()))
    return [asdict(p) for p in prepared]


def written(model: Model, stem: str, told: str, layout: str | None, place: Path) -> tuple[Case, Path]:
    """Return a model's case and the path of its description; write its inputs and reference next to it."""
    onnx = str(model.path.resolve()) if model.path.suffix == ".onnx" else ""
    own = _content(onnx, {})[:12] if onnx else ""  # a file that has changed is another model
    title = f"{model.title}, {layout}" if layout else model.title
    case = Case(stem, group="models", title=title, model=f"{told} {own}".strip(), task=WHOLE)
    inputs = place / f"{case.digest}.inputs.npz"
    if model.inputs:
        keep_inputs(model.inputs, inputs)
    data = {"name": str(model.path), "title": model.title, "onnx": onnx, "layout": layout,
            "inputs": str(inputs.resolve()), "content": _content(onnx, model.inputs)}  # fmt: skip
    file, reference = place / f"{case.digest}.json", place / f"{case.digest}.reference.npz"
    if not (file.exists() and json.loads(file.read_text()).get("content") == data["content"]):
        reference.unlink(missing_ok=True)
    if onnx and not reference.exists() and importlib.util.find_spec("onnxruntime") is not None:
        # A model that it cannot run is compared with TVM's own kernels (see `tune`).
        with contextlib.suppress(Exception):  # its errors have no common base
            keep_reference(peers_graph.open_onnxruntime(Path(onnx), model.inputs, 1).outputs(), reference)
    file.write_text(json.dumps(data))
    return case, file


def _content(file: str, inputs: Mapping[str, Any]) -> str:
    """Return a digest of a model's file, its external weights and its inputs."""
    digest = hashlib.sha256()
    for part in [Path(file), *_external(Path(file))] if file else []:
        digest.update(part.read_bytes())
    for name, array in sorted(inputs.items()):
        digest.update(f"{name} {array.shape} {array.dtype}".encode() + array.tobytes())
    return digest.hexdigest()


def _external(file: Path) -> list[Path]:
    """Return the existing files of weights that an ONNX file names."""
    try:
        import onnx
    except ImportError:  # text detection needs none, and has no such files
        return []

    def tensors(graph: Any) -> Iterator[Any]:
        yield from graph.initializer
        for attribute in (a for node in graph.node for a in node.attribute):
            yield from (attribute.t, *attribute.tensors)
            for inner in (attribute.g, *attribute.graphs):
                yield from tensors(inner)

    graph = onnx.load(str(file), load_external_data=False).graph
    names = {entry.value for t in tensors(graph) for entry in t.external_data if entry.key == "location"}
    return [path for name in sorted(names) if (path := file.parent / name).is_file()]


def tune(
    task: str, case: dict[str, Any], tuner: str, trials: int, target: str, folder: str, edge: str, search: bool = True
) -> dict[str, Any]:
    """Tune, build and check one implementation of a model; return the fields of ``results.Tuned``.

    Without `search` a peer builds what its earlier search, ended at any moment, has found.
    """
    from roller_tvm.device import device_for_target

    model, place = json.loads(Path(task).read_text()), Path(folder)
    threads = device_for_target(target).units
    label = f"{tuner}.{trials}" if trials else tuner
    digest = Case.from_json(case).digest
    output = place / MODELS / f"{digest}.{label}.so"
    if tuner == ONNXRUNTIME:
        opener = "roller_bench.peers_graph:open_onnxruntime"
        told = peers_graph.build_onnxruntime(model, threads)
    else:
        opener = f"{edge}_models:open_model"
        told = _built(edge, model, output, tuner, trials, target, place / "work" / f"{digest}.{tuner}",
                      search)
    reference = place / MODELS / f"{digest}.reference.npz"
    if not reference.exists() and tuner != "untuned":  # onnxruntime has none: what TVM's own kernels say
        plain, work = place / MODELS / f"{digest}.reference.so", place / "work" / f"{digest}.untuned"
        file = str(Path(_built(edge, model, plain, "untuned", 0, target, work)["file"]).resolve())
        own = Runnable(f"{edge}_models:open_model", file, model["inputs"], threads)
        keep_reference(own.open().outputs(), reference)
    file = str(Path(told.pop("file")).resolve())
    runnable = Runnable(opener, file, model["inputs"], threads)
    told = {"seconds": math.nan, **told}
    return found(runnable, output.with_suffix(".json"), place, reference, **told)


def _built(
    edge: str, model: dict[str, Any], output: Path, tuner: str, trials: int, target: str, work: Path,
    search: bool = True,
) -> dict[str, Any]:  # fmt: skip
    """Tune and build a model by a line of TVM, whose whole models are in the module named after its edge."""
    made_by = importlib.import_module(f"{edge}_models")
    return dict(made_by.build(model, output, tuner, trials, target, made(work), search))
