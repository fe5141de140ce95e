"""
Roller in a Relax pipeline
==========================

A small convolutional network is built for this CPU with the TVM that pip installs: in one line, then stage by stage,
then with records of a tuning that a plain TVM uses too, and for a batch that stays open.

Run it with ``python tutorials/roller_in_a_relax_pipeline.py``; it takes about half a minute on two cores.
"""

import tempfile
from pathlib import Path

import numpy as np

from roller_tvm.device import cpu_device
from roller_tvm.planner.explain import explain
from roller_tvm.relax import ScheduleWithRoller, build, prepare, tune_relax
from roller_tvm.relax.candidates import make_candidates
from roller_tvm.relax.targets import make_target
from roller_tvm.tvm_env import import_relax_tvm

tvm = import_relax_tvm("building a Relax model")
from tvm import relax  # noqa: E402

# %%
# A model
# -------
# A convolution with batch normalisation and ReLU, a second one that halves the picture, a pooling and a classifier, as
# ``roller_tvm.relax.load_model("model.onnx")`` or ``("model.pt2")`` would give them: weights are constants.



def network(batch):
    """A Relax module with seeded weights; the batch is a number, or a variable that stays open."""
    rng = np.random.default_rng(0)

    def weight(*shape):
        return relax.const((rng.standard_normal(shape) * 0.1).astype("float32"))

    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((batch, 3, 32, 32), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(relax.op.nn.conv2d(x, weight(32, 3, 3, 3), padding=1))
            parts = [relax.const(rng.uniform(0.5, 1.5, 32).astype("float32")) for _ in range(4)]
            norm = builder.emit(relax.op.nn.batch_norm(y, *parts, axis=1, training=False))
            y = builder.emit(relax.op.nn.relu(builder.emit(relax.TupleGetItem(norm, 0))))
            y = builder.emit(relax.op.nn.conv2d(y, weight(64, 32, 3, 3), strides=2, padding=1))
            y = builder.emit(relax.op.nn.relu(builder.emit(relax.op.add(y, weight(1, 64, 1, 1)))))
            y = builder.emit(relax.op.mean(y, axis=[2, 3]))
            y = builder.emit(relax.op.nn.softmax(builder.emit(relax.op.matmul(y, weight(64, 10)))))
            result = builder.emit_output(y)
        builder.emit_func_output(result)
    return builder.get()


def run(executable, picture):
    """What a built model answers."""
    return relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(picture)).numpy()


mod = network(1)
picture = np.random.default_rng(1).standard_normal((1, 3, 32, 32)).astype("float32")

# %%
# One line
# --------
# ``cpu_device`` measures this machine once (a few seconds) and keeps the figures in the cache folder; a bare target is
# completed with what TVM would guess wrongly: this CPU's name and the threads it scales to.

device = cpu_device()
target = make_target({"kind": "llvm", "num-cores": device.units})
print(device)
print(target)
answer = run(build(mod, target), picture)

# %%
# The same by name, in TVM's own words: importing ``roller_tvm.relax`` registered the pipeline.

by_name = run(tvm.compile(mod, target, relax_pipeline=relax.get_pipeline("roller")), picture)
np.testing.assert_allclose(by_name, answer)

# %%
# Stage by stage
# --------------
# ``prepare`` folds the batch normalisation into the weights, legalizes and fuses: every PrimFunc left is one task.
# ``ScheduleWithRoller`` is a pass like ``dlight.ApplyDefaultSchedule``: whatever is not scheduled yet, it schedules,
# without measuring anything.

fused = prepare(mod, target)
scheduler = ScheduleWithRoller(target)
scheduled = scheduler(fused)
print(scheduler.report)

# %%
# Why that plan? Each comes with its tiles, its memory traffic and what bounds it.

slowest = max(scheduler.report.scheduled, key=lambda note: note.predicted_us)
candidates = make_candidates(fused[slowest.name], device, name=slowest.name)
print(explain(candidates.plans[0].ranked, device))

# %%
# Measure, record, apply
# ----------------------
# ``tune_relax`` has MetaSchedule's signature and returns a MetaSchedule database, kept in MetaSchedule's own files.
# The two measured here are the best two plans by prediction; every winner's answer is checked.

records = Path(tempfile.mkdtemp())
database = tune_relax(fused, None, target, records, max_trials_global=64, max_trials_per_task=2)
tuned = run(build(fused, target, database=records), picture)
np.testing.assert_allclose(tuned, answer, rtol=1e-4, atol=1e-6)

# %%
# TVM applies such records by itself, whether roller_tvm is installed or not.

with target, database:
    applied = relax.transform.MetaScheduleApplyDatabase()(fused)
marked = [v.name_hint for v, f in applied.functions_items() if f.attrs and "tirx.is_scheduled" in f.attrs]
print("scheduled by records:", ", ".join(sorted(map(str, marked))))

# %%
# A batch that stays open
# -----------------------
# Plans are for static shapes. Sizes that are known to matter get a copy each, behind a guard; any other size runs what
# TVM makes of the open one.

open_batch = build(network(tvm.tirx.Var("n", "int64")), target, buckets=(1, 4))
for batch in (1, 3, 4):
    several = run(open_batch, np.repeat(picture, batch, axis=0))
    np.testing.assert_allclose(several, np.repeat(answer, batch, axis=0), rtol=1e-4, atol=1e-6)

# %%
# The answers
# -----------

expected = run(tvm.compile(mod, target), picture)
np.testing.assert_allclose(answer, expected, rtol=1e-4, atol=1e-6)
print("Roller's pipeline and TVM's agree:", answer.argmax(), expected.argmax())
