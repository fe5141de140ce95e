"""Networks of ``relay.testing`` with random weights and inputs."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from roller_tvm.compare.whole.zoo import SEED
from roller_tvm.relay.dataflow import as_graph

#: Name -> module of ``tvm.relay.testing``, and arguments of its ``get_workload``.
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


def testing_model(name: str) -> tuple[Any, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Module, parameters and inputs; what Xavier's rule leaves at one value becomes random too.

    Examples
    --------
    >>> mod, params, inputs = testing_model("resnet-18")  # doctest: +SKIP
    >>> inputs["data"].shape  # doctest: +SKIP
    (1, 3, 224, 224)
    """
    module, arguments = TESTING[name]
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
    """A module whose parameters have a name each: ``lstm`` calls the input of every step 'data'."""
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
