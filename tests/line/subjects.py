"""The TVM line that is here, with a small model of two operators, for tests that both lines must pass."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from roller_tvm.tuning.line import Line, Model, this_line
from roller_tvm.tuning.measurer import Measurer
from roller_tvm.tuning.session import Limits
from roller_tvm.tuning.supervise import Pool
from roller_tvm.tuning.tune import Options, tune

#: TVM's own kernel never stays for being faster: which one is, on operators this small, is chance.
OURS = Limits(margin=1.0)
#: TVM's own kernel always stays.
THEIRS = Limits(margin=-1e9)


@dataclass(frozen=True)
class Subject:
    """A line and what it tunes.

    Parameters
    ----------
    target, gpu : Target
        Of this machine, and of a GPU that it has not.
    file : str
        Name of records in a folder.
    """

    line: Line
    model: Model
    target: Any
    gpu: Any
    file: str

    def tune(self, place, trials=1, target=None, limits=OURS, **options):
        """Tune the model, with records at a place."""
        target = self.target if target is None else target
        device = self.line.device(None, target)
        records = self.line.records(place, target)
        try:
            return tune(self.line, self.model, records, device, Options(trials, limits=limits, **options))
        finally:
            records.close()

    def tasks(self):
        """Return the model's tasks."""
        return self.line.tasks(self.model, self.target, self.line.device(None, self.target))

    def candidates(self, task, count):
        """Return a task as workers take it, and the lines of so many candidates."""
        ready = self.line.candidates(task, self.line.device(None, self.target), 2 * count).applied()
        lines = [self.line.record(task, schedule, self.target) for _, schedule in ready]
        return self.line.work(task, self.target), lines[:count]

    def measured(self, worker, count, how="time", limits=OURS):
        """Measure candidates of a product in workers of a module."""
        task = next(t for t in self.tasks() if t.weight)
        with Pool(2, 1, worker) as pool:
            return Measurer(pool, limits).measure(*self.candidates(task, count), how)


def _relay():
    from tvm import relay

    rng = np.random.default_rng(1)
    x = relay.var("x", shape=(16, 24))
    y = x
    for shape in ((24, 24), (24, 24), (40, 24)):
        y = relay.nn.relu(relay.nn.dense(y, relay.const(rng.standard_normal(shape).astype("float32"))))
    import tvm

    return tvm.IRModule.from_expr(relay.Function([x], y))


def _relax():
    from tests.relax.modules import network

    return network()


def subject():
    """Return the Subject of the TVM that is here."""
    line = this_line()
    if line.name == "relay":
        make, file = _relay, "records.json"
        cpu, gpu = line.target("llvm -num-cores 2"), line.target("cuda -arch=sm_80")
    else:
        make, file = _relax, "records"
        cpu = line.target({"kind": "llvm", "num-cores": 2})
        gpu = line.target(
            {"kind": "cuda", "arch": "sm_80", "max_threads_per_block": 1024, "max_shared_memory_per_block": 49152,
             "thread_warp_size": 32}).with_host(cpu)  # fmt: skip
    return Subject(line, Model(make()), cpu, gpu, file)


def quick(**limits):
    """Return limits under which a hung candidate costs little."""
    return replace(OURS, **limits)
