"""Models and inputs for comparisons, demo and benchmarks: real files from PyPI packages.

The "light" networks of the ``onnx`` package have constant weights, so that every output is the same number whatever
the kernels compute. ``light`` gives them seeded random weights, scaled so that activations neither die nor explode.
PP-OCR's models (`ocr`) have their real weights and take pictures with text.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from roller_tvm.errors import BadInput

SEED = 20220711
#: Networks written by ``networks``; see `find_model` for others.
WRITTEN = ("mobilenet_v2", "bert_base")
#: Parts of PP-OCR.
OCR = ("detection", "direction", "recognition")
#: Prefix of a network's name in ``relay.testing``.
TESTING = "testing:"
#: Magnitude of a residual branch's result, as a fraction of its input's.
RESIDUAL = 0.5


@dataclass(frozen=True)
class Prepared:
    """A model file with its inputs."""

    title: str
    path: Path
    inputs: dict[str, np.ndarray]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(array.shape) for name, array in self.inputs.items()}


def package_folder(package: str) -> Path:
    """Return the folder of an installed package without importing it, as its own dependencies may be missing."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        name = package.replace("_", "-")
        raise BadInput(f"the package {name} is not installed", package, f"pip install --no-deps {name}")
    return Path(next(iter(spec.submodule_search_locations)))


def find_model(name: str, folder: Path, shapes: Mapping[str, Sequence[int]] | None = None) -> Prepared:
    """Return a model by its name, or from a file.

    Parameters
    ----------
    name : str
        One of ``WRITTEN`` and ``OCR``, a light network of the onnx package, ``testing:NAME`` (of ``relay.testing``,
        which makes the inputs too), or an ONNX file.
    folder : Path
        Folder for written files.
    shapes : mapping, optional
        Shapes of inputs that an ONNX file leaves open.

    Raises
    ------
    BadInput
    """
    if name.startswith(TESTING):
        return _testing(name.removeprefix(TESTING))
    if name.endswith(".onnx"):
        return of_file(Path(name), shapes or {})
    if name in OCR:
        from roller_tvm.compare.whole.ocr import ocr_model

        return ocr_model(name, folder)
    if name in WRITTEN:
        made: Prepared = getattr(importlib.import_module("roller_tvm.compare.whole.networks"), name)(folder)
        return made
    return light(name, folder)


def known_models() -> dict[str, tuple[str, ...]]:
    """Return all names that `find_model` accepts here, by origin."""
    from roller_tvm.compare.whole.testing_names import TESTING_NETWORKS

    def light_names() -> tuple[str, ...]:
        try:
            return tuple(sorted(_light_files()))
        except BadInput:  # no onnx package
            return ()

    return {
        "written here": WRITTEN, "PP-OCR": OCR, "light networks of the onnx package": light_names(),
        "relay.testing (Relay line)": tuple(TESTING + name for name in TESTING_NETWORKS),
    }  # fmt: skip


def _testing(name: str) -> Prepared:
    from roller_tvm.compare.whole.testing_names import TESTING_NETWORKS

    if name not in TESTING_NETWORKS:
        raise BadInput(f"relay.testing has no network {name!r}", remedy=f"choose from {', '.join(TESTING_NETWORKS)}")
    return Prepared(f"relay.testing {name}", Path(TESTING + name), {})


def _light_files() -> dict[str, Path]:
    folder = package_folder("onnx") / "backend/test/data/light"
    return {path.stem.removeprefix("light_"): path for path in folder.glob("light_*.onnx")}


def of_file(path: Path, shapes: Mapping[str, Sequence[int]]) -> Prepared:
    """Return a user's ONNX file with random inputs: floats below 1; integers 0 and 1, valid indices into any table."""
    import onnx

    from roller_tvm.models import input_shapes, read_onnx

    if not path.is_file():
        raise BadInput("no such file", str(path), "give an ONNX file, or a model's name")
    model = read_onnx(path, "pip install onnx", "an ONNX model is needed")
    found = input_shapes(model, {name: tuple(shape) for name, shape in shapes.items()}, path)
    rng = np.random.default_rng(SEED + 1)
    kinds = {i.name: onnx.helper.tensor_dtype_to_np_dtype(i.type.tensor_type.elem_type) for i in model.graph.input}
    inputs = {}
    for name, given in found.items():
        shape = [int(extent) for extent in given]
        values = rng.random(shape) if kinds[name].kind == "f" else rng.integers(0, 2, shape)
        inputs[name] = np.asarray(values, kinds[name])
    return Prepared(path.stem, path, inputs)


def light(network: str, folder: Path) -> Prepared:
    """Write a light network of the onnx package ('resnet50', 'vgg19', ...) with random weights; return it."""
    import onnx

    files = _light_files()
    if network not in files:
        known = ", ".join(name for names in known_models().values() for name in names)
        raise BadInput(f"there is no model {network!r}", remedy=f"choose from {known}, or give an .onnx file")
    model = onnx.load(str(files[network]))
    randomise(model)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{network}.onnx"
    onnx.save(model, str(path))
    rng = np.random.default_rng(SEED + 1)
    inputs = {
        value.name: rng.standard_normal([d.dim_value for d in value.type.tensor_type.shape.dim], np.float32)
        for value in model.graph.input
    }
    return Prepared(f"light {network}", path, inputs)


def randomise(model: Any, seed: int = SEED) -> None:
    """Replace the constant weights of an ONNX model by random ones that suit their use."""
    from onnx import numpy_helper

    graph = model.graph
    rng = np.random.default_rng(seed)
    constants = {i.name: numpy_helper.to_array(i) for i in graph.initializer}
    made_by = {n.output[0]: n for n in graph.node if n.op_type == "ConstantOfShape"}
    shapes = {name: list(a.shape) for name, a in constants.items()}
    for name, node in made_by.items():
        if node.input[0] in constants:
            shapes[name] = constants[node.input[0]].astype(int).tolist()
    readers: dict[str, list[Any]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)

    new: dict[str, np.ndarray] = {}
    for node in graph.node:
        for position, name in enumerate(node.input):
            if name in shapes and name not in new:
                values = _weights(node, position, shapes[name], _residual(node, readers), rng)
                if values is not None:
                    new[name] = values.astype(np.float32)
    kept = [n for n in graph.node if n.output[0] not in new]
    still_read = {name for n in kept for name in n.input}
    rest = [i for i in graph.initializer if i.name not in new and i.name in still_read]
    weights = {i.name for i in graph.initializer} | set(new)
    inputs = [v for v in graph.input if v.name not in weights]
    model.ir_version = max(model.ir_version, 4)  # before, weights had to be among the inputs
    made = [*rest, *(numpy_helper.from_array(a, n) for n, a in new.items())]
    for field, content in (("node", kept), ("input", inputs), ("initializer", made)):
        del getattr(graph, field)[:]
        getattr(graph, field).extend(content)


def _residual(node: Any, readers: dict[str, list[Any]]) -> bool:
    """Return True if a convolution's result, directly or through a batch normalisation, is added to something else."""
    name = node.output[0]
    while len(readers.get(name, ())) == 1:
        reader = readers[name][0]
        if reader.op_type in ("Add", "Sum"):
            return True
        if reader.op_type != "BatchNormalization":
            return False
        name = reader.output[0]
    return False


def _weights(node: Any, position: int, shape: list[int], residual: bool, rng: Any) -> np.ndarray | None:
    """Return random values for one constant operand, or None if it is not a weight (a shape, say)."""
    if node.op_type in ("Conv", "Gemm", "MatMul") and position == 1:
        transposed = node.op_type == "Gemm" and any(a.name == "transB" and a.i for a in node.attribute)
        inputs = math.prod(shape[1:]) if node.op_type == "Conv" or transposed else shape[0]
        gain = 2.0 if node.op_type == "Conv" else 1.0  # half of what ReLU is given is lost
        return rng.standard_normal(shape) * math.sqrt(gain / inputs) * (RESIDUAL if residual else 1.0)
    if node.op_type in ("Conv", "Gemm") and position == 2:
        return rng.standard_normal(shape) * 0.05
    if node.op_type == "BatchNormalization":
        # scale, shift, mean, variance
        return rng.uniform(0.8, 1.2, shape) if position in (1, 4) else rng.standard_normal(shape) * 0.05
    return None
