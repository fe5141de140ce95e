"""The models of the coverage table: ``relay.testing``, the light ONNX networks, PP-OCR, MobileNet v2, BERT-base."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from roller_tvm.compare.relay.testing import testing_model
from roller_tvm.compare.whole.testing_names import TESTING_NETWORKS
from roller_tvm.compare.whole.zoo import OCR, Prepared, find_model

LIGHT = ("bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet", "squeezenet",
         "vgg19", "zfnet512")  # fmt: skip


@dataclass(frozen=True)
class Subject:
    """A model as it is tuned, with random inputs; ``onnx`` is the file that onnxruntime can run too."""

    mod: Any
    params: Any
    inputs: dict[str, np.ndarray]
    onnx: Path | None = None


def subjects() -> dict[str, Callable[[Path], Subject]]:
    """Return the functions that make each model, by name; the folder is for files."""
    makers: dict[str, Callable[[Path], Subject]] = {}
    for name in TESTING_NETWORKS:
        makers[name] = lambda _folder, name=name: _testing(name)
    makers["resnet-18 float16"] = lambda _folder: _half(_testing("resnet-18"))
    makers["mobilenet float16"] = lambda _folder: _half(_testing("mobilenet"))
    makers["resnet-18 int8"] = lambda _folder: _quantized(_testing("resnet-18"))
    files = {f"light {name}": name for name in LIGHT} | {f"PP-OCR {part}": part for part in OCR}
    for title, name in (files | {"MobileNet v2": "mobilenet_v2", "BERT-base": "bert_base"}).items():
        makers[title] = lambda folder, name=name: _onnx(find_model(name, folder))
    return makers


def _testing(name: str) -> Subject:
    return Subject(*testing_model(name))


def _half(subject: Subject) -> Subject:
    """Return the same network in float16, as far as Relay's mixed precision converts it."""
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
    """Return the same network in int8 with int32 accumulation, by Relay's own quantization."""
    from tvm import relay

    with relay.quantize.qconfig(calibrate_mode="global_scale", global_scale=8.0):
        mod = relay.quantize.quantize(subject.mod, params=subject.params)
    return Subject(mod, None, subject.inputs)


def _onnx(model: Prepared) -> Subject:
    from roller_tvm.relay.importers import load_model

    loaded = load_model(model.path, shapes=model.shapes)
    return Subject(loaded.mod, loaded.params, model.inputs, model.path)
