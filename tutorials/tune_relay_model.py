"""
Tune a Relay model
==================

A small convolutional network is planned, measured, recorded and built; then a plain ``relay.build`` that knows
nothing of roller_tvm gets the same kernels from the record file.

Run it with ``python tutorials/tune_relay_model.py``; it takes about half a minute on two cores.
"""

import tempfile
from pathlib import Path

import numpy as np

from roller_tvm.device import cpu_device, default_cpu_target
from roller_tvm.planner.explain import explain
from roller_tvm.relay import tune
from roller_tvm.tvm_env import import_relay_tvm

tvm = import_relay_tvm("tuning a Relay model")
from tvm import auto_scheduler, relay  # noqa: E402
from tvm.contrib import graph_executor  # noqa: E402

# %%
# A model
# -------
# Two convolutions with bias and ReLU, a pooling and a classifier, in the layout that ONNX models have.


def network():
    """Relay module and seeded random weights."""
    rng = np.random.default_rng(0)
    params = {}

    def weight(name, *shape):
        params[name] = tvm.nd.array((rng.standard_normal(shape) * 0.1).astype("float32"))
        return relay.var(name, shape=shape)

    x = relay.var("x", shape=(1, 3, 64, 64))
    y = relay.nn.conv2d(x, weight("w1", 32, 3, 3, 3), kernel_size=(3, 3), channels=32, padding=(1, 1))
    y = relay.nn.relu(relay.nn.bias_add(y, weight("b1", 32)))
    y = relay.nn.conv2d(
        y, weight("w2", 64, 32, 3, 3), kernel_size=(3, 3), channels=64, padding=(1, 1), strides=(2, 2)
    )
    y = relay.nn.relu(relay.nn.bias_add(y, weight("b2", 64)))
    y = relay.nn.batch_flatten(relay.nn.global_avg_pool2d(y))
    y = relay.nn.dense(y, weight("w3", 16, 64))
    y = relay.nn.softmax(y)
    return tvm.IRModule.from_expr(relay.Function(relay.analysis.free_vars(y), y)), params


mod, params = network()

# %%
# The device and its target
# -------------------------
# ``cpu_device`` measures this machine once (a few seconds) and keeps the figures in the cache folder.

device = cpu_device()
target = default_cpu_target(threads=device.units)
print(device)
print(target)

# %%
# Plan, measure, record
# ---------------------
# ``trials=0`` would plan only. Every winner's answer has been compared with that of TVM's own schedule.

folder = Path(tempfile.mkdtemp())
records = folder / "records.json"
result = tune(mod, params, target, log_file=records, trials=3)
print(result)

# %%
# Why that plan
# -------------

planned = [t for t in result.tasks if t.plan is not None]
heaviest = max(planned, key=lambda t: t.task.flops)
print(explain(heaviest.plan, device))

# %%
# Build with nothing but TVM
# --------------------------
# The records are Ansor's own, so that Ansor's context applies them.

with (
    auto_scheduler.ApplyHistoryBest(str(records)),
    tvm.transform.PassContext(opt_level=3, config={"relay.backend.use_auto_scheduler": True}),
):
    tuned = relay.build(mod, target=target, params=params)
with tvm.transform.PassContext(opt_level=3):
    untuned = relay.build(mod, target=target, params=params)

image = np.random.default_rng(1).standard_normal((1, 3, 64, 64)).astype("float32")
answers = []
for library in (tuned, untuned):
    module = graph_executor.GraphModule(library["default"](tvm.cpu()))
    module.set_input("x", image)
    module.run()
    answers.append(module.get_output(0).numpy())
np.testing.assert_allclose(answers[0], answers[1], rtol=1e-4, atol=1e-6)
print("tuned and untuned agree:", answers[0].argmax(), answers[1].argmax())
