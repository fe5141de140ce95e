"""Networks of ``relay.testing`` with random weights and inputs."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from roller_tvm.compare.whole.testing_names import TESTING_NETWORKS
from roller_tvm.compare.whole.zoo import SEED
from roller_tvm.relay.dataflow import as_graph


def testing_model(name: str) -> tuple[Any, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return module, parameters and inputs of a network; parameters that Xavier's rule leaves constant become random.

    Examples
    --------
    >>> mod, params, inputs = testing_model("resnet-18")  # doctest: +SKIP
    >>> inputs["data"].shape  # doctest: +SKIP
    (1, 3, 224, 224)
    """
    module, arguments = TESTING_NETWORKS[name]
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
    """Return the module with distinct parameter names: ``lstm`` calls the input of every step 'data'."""
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
