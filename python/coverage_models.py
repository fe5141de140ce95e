"""The models of the coverage table: ``relay.testing``, the light ONNX networks, PP-OCR, MobileNet v2, BERT-base."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from models import SEED, Prepared, light, package_folder

#: Height and width that PP-OCR's three models are given here.
OCR_SIZES = {"det": (320, 320), "cls": (48, 192), "rec": (48, 320)}
LIGHT = ("bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet", "squeezenet",
         "vgg19", "zfnet512")  # fmt: skip
TESTING: dict[str, tuple[str, dict[str, Any]]] = {
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


@dataclass(frozen=True)
class Subject:
    """A model as it is tuned, with random inputs; ``onnx`` is the file that onnxruntime can run too."""

    mod: Any
    params: Any
    inputs: dict[str, np.ndarray]
    onnx: Path | None = None


def subjects() -> dict[str, Callable[[Path], Subject]]:
    """How each model is made, by name; the folder is for files."""
    makers: dict[str, Callable[[Path], Subject]] = {}
    for name in TESTING:
        makers[name] = lambda _folder, name=name: _testing(name)
    makers["resnet-18 float16"] = lambda _folder: _half(_testing("resnet-18"))
    makers["mobilenet float16"] = lambda _folder: _half(_testing("mobilenet"))
    makers["resnet-18 int8"] = lambda _folder: _quantized(_testing("resnet-18"))
    for network in LIGHT:
        makers[f"light {network}"] = lambda folder, network=network: _onnx(light(network, folder))
    for part in OCR_SIZES:
        makers[f"PP-OCR {part}"] = lambda _folder, part=part: _onnx(_ocr(part))
    makers["MobileNet v2"] = lambda folder: _onnx(_network("mobilenet_v2", folder))
    makers["BERT-base"] = lambda folder: _onnx(_network("bert_base", folder))
    return makers


def _testing(name: str) -> Subject:
    """A network of ``relay.testing``; what Xavier's rule leaves at one value becomes random too."""
    import importlib

    module, arguments = TESTING[name]
    mod, params = importlib.import_module(f"tvm.relay.testing.{module}").get_workload(**arguments)
    rng = np.random.default_rng(SEED)
    values = {n: _randomised(n, p.numpy(), rng) for n, p in sorted(params.items())}
    inputs = {}
    for var in mod["main"].params:
        if var.name_hint not in values:
            kind = var.checked_type
            inputs[var.name_hint] = rng.standard_normal([int(e) for e in kind.shape]).astype(kind.dtype)
    return Subject(mod, values, inputs)


def _randomised(name: str, values: np.ndarray, rng: Any) -> np.ndarray:
    if values.dtype.kind != "f" or values.size == 1 or np.ptp(values) > 0:
        return values
    if name.endswith(("gamma", "var", "moving_var")):
        return rng.uniform(0.8, 1.2, values.shape).astype(values.dtype)
    return (rng.standard_normal(values.shape) * 0.05).astype(values.dtype)


def _half(subject: Subject) -> Subject:
    """The same network computing in float16 where Relay's mixed precision says so."""
    import tvm
    from tvm import relay
    from tvm.relay.build_module import bind_params_by_name

    mod = tvm.IRModule.from_expr(bind_params_by_name(subject.mod["main"], subject.params))
    passes = tvm.transform.Sequential([
        relay.transform.InferType(), relay.transform.FoldConstant(), relay.transform.ToMixedPrecision("float16"),
        relay.transform.EliminateCommonSubexpr(), relay.transform.FoldConstant(),
    ])  # fmt: skip
    with tvm.transform.PassContext(opt_level=3):
        return Subject(passes(mod), None, subject.inputs)


def _quantized(subject: Subject) -> Subject:
    """The same network in int8 with int32 accumulation, by Relay's own quantization."""
    from tvm import relay

    with relay.quantize.qconfig(calibrate_mode="global_scale", global_scale=8.0):
        mod = relay.quantize.quantize(subject.mod, params=subject.params)
    return Subject(mod, None, subject.inputs)


def _onnx(model: Prepared) -> Subject:
    from roller_tvm.relay.importers import load_model

    loaded = load_model(model.path, shapes=model.shapes)
    return Subject(loaded.mod, loaded.params, model.inputs, model.path)


def _ocr(part: str) -> Prepared:
    """One of PP-OCR's models with its real weights."""
    models = package_folder("rapidocr_onnxruntime") / "models"
    found = sorted(models.glob(f"*{part}*.onnx"))
    if not found:
        raise SystemExit(f"no '{part}' model in {models}\n  remedy: pip install rapidocr-onnxruntime==1.4.4")
    picture = np.random.default_rng(SEED + 1).standard_normal((1, 3, *OCR_SIZES[part]), np.float32)
    return Prepared(f"PP-OCR {part}", found[-1], {"x": picture})


def _network(name: str, folder: Path) -> Prepared:
    import networks

    made: Prepared = getattr(networks, name)(folder)
    return made
