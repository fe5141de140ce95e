"""Models and inputs for comparisons, demo and benchmarks: real files from PyPI packages.

The "light" networks of the ``onnx`` package have constant weights, so that every output is the same number whatever
the kernels compute. ``light`` gives them seeded random weights, scaled so that activations neither die nor explode.
PP-OCR's models (`ocr`) have their real weights and take pictures with text.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from roller_bench.networks import RESIDUAL, SEED, Prepared
from roller_tvm.errors import BadInput

#: Networks written by ``networks``; see `find_model` for others.
WRITTEN = ("mobilenet_v2", "bert_base")
#: Parts of PP-OCR.
OCR = ("detection", "direction", "recognition")
#: Light networks of the onnx package that figures are over.
LIGHT = ("bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet", "squeezenet",
         "vgg19", "zfnet512")  # fmt: skip
#: Prefix of a network's name in ``relay.testing``.
TESTING = "testing:"


#: Name -> module of ``tvm.relay.testing``, and arguments of its ``get_workload``.
TESTING_NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "resnet-18": ("resnet", {"num_layers": 18}),
    "resnet-50": ("resnet", {"num_layers": 50}),
    "resnet-18 batch 8": ("resnet", {"num_layers": 18, "batch_size": 8}),
    "resnet-18 NHWC": ("resnet", {"num_layers": 18, "layout": "NHWC", "image_shape": (224, 224, 3)}),
    "resnet-20 cifar": ("resnet", {"num_layers": 20, "num_classes": 10, "image_shape": (3, 28, 28)}),
    "resnet3d-18": ("resnet_3d", {"num_layers": 18}),
    "mobilenet": ("mobilenet", {}),
    "mobilenet NHWC": ("mobilenet", {"layout": "NHWC", "image_shape": (224, 224, 3)}),
    "densenet-121": ("densenet", {"densenet_size": 121, "batch_size": 1}),
    "inception_v3": ("inception_v3", {}),
    "squeezenet 1.0": ("squeezenet", {"version": "1.0"}),
    "squeezenet 1.1": ("squeezenet", {"version": "1.1"}),
    "vgg-11": ("vgg", {"batch_size": 1, "num_layers": 11}),
    "vgg-16 bn": ("vgg", {"batch_size": 1, "num_layers": 16, "batch_norm": True}),
    "dcgan": ("dcgan", {"batch_size": 1}),
    "dqn": ("dqn", {"batch_size": 1}),
    "dqn NHWC": ("dqn", {"batch_size": 1, "layout": "NHWC", "image_shape": (84, 84, 4)}),
    "mlp": ("mlp", {"batch_size": 1}),
    "lstm": ("lstm", {"iterations": 4, "num_hidden": 64}),
    "synthetic": ("synthetic", {}),
}  # fmt: skip


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
        return ocr_model(name, folder)
    if name in WRITTEN:
        made: Prepared = getattr(importlib.import_module("roller_bench.networks"), name)(folder)
        return made
    return light(name, folder)


def onnx_model(name: str, folder: Path) -> Prepared:
    """Return a model that onnxruntime runs too."""
    model = find_model(name, folder)
    if model.path.suffix != ".onnx":
        raise BadInput("is no ONNX model", name, "see 'roller-tvm compare --list', or give a file")
    return model


def known_models() -> dict[str, tuple[str, ...]]:
    """Return all names that `find_model` accepts here, by origin."""
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


TEXT = ("ROLLER", "rTile 64 x 64", "Hello, world!", "tuned in seconds", "OSDI 2022")


@dataclass(frozen=True)
class Part:
    """One of PP-OCR's models.

    Parameters
    ----------
    file : str
        Part of its file's name.
    height, width : int
        Height and width of its picture in pixels.
    lines : tuple of str
        Lines of text in the picture.
    mean, deviation : tuple of float
        PP-OCR's normalisation of the channels blue, green, red.
    """

    file: str
    height: int
    width: int
    lines: tuple[str, ...]
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    deviation: tuple[float, float, float] = (0.5, 0.5, 0.5)


PARTS = {
    "detection": Part("det", 320, 320, TEXT, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "direction": Part("cls", 48, 192, TEXT[2:3]),
    "recognition": Part("rec", 48, 320, TEXT[2:3]),
}


def ocr_model(name: str, folder: Path) -> Prepared:
    """Return one of ``PARTS`` with its picture, which is kept in the folder.

    Raises
    ------
    BadInput
        The package with the models is missing.
    """
    part = PARTS[name]
    models = package_folder("rapidocr_onnxruntime") / "models"
    found = sorted(models.glob(f"*{part.file}*.onnx"))
    if not found:
        raise BadInput(f"no {name} model", str(models), "pip install rapidocr-onnxruntime==1.4.4")
    folder.mkdir(parents=True, exist_ok=True)
    picture = draw_text(part)
    picture.save(folder / f"{name}.png")
    return Prepared(f"PP-OCR {name}", found[-1], {"x": normalised(picture, part)})


def draw_text(part: Part) -> Any:
    """Return a white picture with lines of text."""
    from PIL import Image, ImageDraw, ImageFont

    picture = Image.new("RGB", (part.width, part.height), "white")
    pen = ImageDraw.Draw(picture)
    several = len(part.lines) > 1
    step = part.height // (len(part.lines) + several)
    top, size = (step // 2, step // 2) if several else (step // 8, step * 5 // 8)  # a line cut out fills its picture
    for number, line in enumerate(part.lines):
        at = (part.width // 12, top + number * step)
        pen.text(at, line, fill="black", font=ImageFont.load_default(size))
    return picture


def normalised(picture: Any, part: Part = PARTS["detection"]) -> np.ndarray:
    """Return a picture as PP-OCR takes it: an array of 1 x 3 x height x width."""
    pixels = np.asarray(picture, np.float32)[:, :, ::-1] / 255.0
    pixels = (pixels - np.array(part.mean, np.float32)) / np.array(part.deviation, np.float32)
    return np.ascontiguousarray(pixels.transpose(2, 0, 1)[None])
