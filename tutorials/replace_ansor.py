"""
Replace Ansor in your script
============================

A script written for ``tvm.auto_scheduler`` changes one import line, and Roller tunes it: plans are constructed in
milliseconds and the best of them measured with the script's own builder, runner and callbacks. Records stay
Ansor's, so that everything downstream stays as it is.

Run it with ``python tutorials/replace_ansor.py``; it takes half a minute on two cores.
"""

import tempfile
import time
from pathlib import Path

import numpy as np

# %%
# The line that changes
# ---------------------
# It was ``from tvm import auto_scheduler``. Every name of that module is here, most of them TVM's own objects.
from roller_tvm import auto_scheduler

import tvm  # isort: skip
from tvm import relay, te
from tvm.contrib import graph_executor

folder = Path(tempfile.mkdtemp())
target = tvm.target.Target("llvm -num-cores 2")

# %%
# One operator
# ------------
# A product of matrices with a bias, registered as Ansor wants it. ``num_measure_trials`` counts plans: they come
# best first by prediction, so that few are enough. With 0 the best plan is recorded with
# its predicted time; it is built and its result checked, and nothing is measured.


@auto_scheduler.register_workload
def product_with_bias(rows, columns, inner):
    a = te.placeholder((rows, inner), name="A")
    b = te.placeholder((inner, columns), name="B")
    bias = te.placeholder((columns,), name="bias")
    r = te.reduce_axis((0, inner), name="r")
    product = te.compute((rows, columns), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), name="product")
    return [a, b, bias, te.compute((rows, columns), lambda i, j: product[i, j] + bias[j], name="out")]


size = 128
task = auto_scheduler.SearchTask(func=product_with_bias, args=(size, size, size), target=target)
one_operator = str(folder / "product.json")
options = auto_scheduler.TuningOptions(
    num_measure_trials=4,
    runner=auto_scheduler.LocalRunner(min_repeat_ms=20),
    measure_callbacks=[auto_scheduler.RecordToFile(one_operator)],
)
start = time.time()
task.tune(options)
print(f"tuned in {time.time() - start:.0f} s")

schedule, arguments = task.apply_best(one_operator)
kernel = tvm.build(schedule, arguments, target)
rng = np.random.default_rng(0)
a, b = (rng.standard_normal((size, size)).astype("float32") for _ in range(2))
bias = rng.standard_normal(size).astype("float32")
out = tvm.nd.empty((size, size))
kernel(tvm.nd.array(a), tvm.nd.array(b), tvm.nd.array(bias), out)
np.testing.assert_allclose(out.numpy(), a @ b + bias, rtol=1e-4, atol=1e-4)

# %%
# More of the same: resume
# ------------------------
# States of the record file are not measured again. Ansor's own policy takes the records too: give ``tune`` an
# ``auto_scheduler.SketchPolicy`` and it searches as ever.

policy = auto_scheduler.RollerPolicy(
    task, init_search_callbacks=[auto_scheduler.PreloadMeasuredStates(one_operator)]
)
more = auto_scheduler.TuningOptions(
    num_measure_trials=2,
    runner=auto_scheduler.LocalRunner(min_repeat_ms=20),
    measure_callbacks=[auto_scheduler.RecordToFile(one_operator)],
)
task.tune(more, search_policy=policy)

# %%
# A network
# ---------
# ``extract_tasks`` and ``TaskScheduler`` work as they do in TVM, and so do their callbacks. The trials are for all
# tasks together; however many the script asks for, a task is done with when a further round brought nothing. With
# no trials at all, every task is planned.


def network():
    def weight(name, *shape):
        params[name] = tvm.nd.array((rng.standard_normal(shape) * 0.1).astype("float32"))
        return relay.var(name, shape=shape)

    params = {}
    x = relay.var("x", shape=(1, 32, 32, 3))
    y = relay.nn.conv2d(x, weight("w1", 3, 3, 3, 16), kernel_size=(3, 3), channels=16, padding=(1, 1),
                        data_layout="NHWC", kernel_layout="HWIO")  # fmt: skip
    y = relay.nn.batch_flatten(relay.nn.global_avg_pool2d(relay.nn.relu(y), layout="NHWC"))
    y = relay.nn.dense(y, weight("w2", 10, 16))
    return tvm.IRModule.from_expr(relay.Function(relay.analysis.free_vars(y), y)), params


mod, params = network()
tasks, weights = auto_scheduler.extract_tasks(mod["main"], params, target)
whole_network = str(folder / "network.json")
tuner = auto_scheduler.TaskScheduler(
    tasks, weights, callbacks=[auto_scheduler.task_scheduler.PrintTableInfo()]
)
tuner.tune(
    auto_scheduler.TuningOptions(
        num_measure_trials=0, measure_callbacks=[auto_scheduler.RecordToFile(whole_network)]
    )
)

# %%
# Build as before
# ---------------

config = {"relay.backend.use_auto_scheduler": True}
with auto_scheduler.ApplyHistoryBest(whole_network), tvm.transform.PassContext(opt_level=3, config=config):
    tuned = relay.build(mod, target=target, params=params)
with tvm.transform.PassContext(opt_level=3):
    untuned = relay.build(mod, target=target, params=params)

image = rng.standard_normal((1, 32, 32, 3)).astype("float32")
answers = []
for library in (tuned, untuned):
    module = graph_executor.GraphModule(library["default"](tvm.cpu()))
    module.run(x=image)
    answers.append(module.get_output(0).numpy())
np.testing.assert_allclose(answers[0], answers[1], rtol=1e-4, atol=1e-5)
print("tuned and untuned agree:", answers[0].argmax(), answers[1].argmax())
