"""Names of the networks of ``relay.testing``."""

from __future__ import annotations

from typing import Any

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
