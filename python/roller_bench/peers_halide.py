"""Image pipelines by Halide's autoschedulers, in a Python with the package ``halide`` (no TVM is needed there)."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from roller_bench.image_pipelines import PIPELINES, Shape, Value
from roller_bench.running import Arrays, Running, read_inputs
from roller_tvm.tvm_env.pin import pin_calling_thread

#: Halide's autoschedulers for CPUs, the newer one first.
AUTOSCHEDULERS = ("Adams2019", "Mullapudi2016")
#: Columns and rows around the picture: vectors and tiles of a stage may begin before it and end behind it.
MARGIN = 64


class _Read:
    """A function of Halide that is read in our order of dimensions, the columns last."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def __getitem__(self, indices: Any) -> Any:
        return self.function[tuple(reversed(indices))]


class Halide:
    """The language of pipelines (`image_pipelines.Language`) in Halide."""

    def __init__(self) -> None:
        import halide

        self.hl = halide
        self.select, self.least, self.most, self.root = halide.select, halide.min, halide.max, halide.sqrt

    def stage(self, name: str, shape: Shape, body: Callable[..., Value]) -> Value:
        function, at = self.hl.Func(name), [self.hl.Var(f"v{n}") for n in range(len(shape))]
        function[tuple(reversed(at))] = body(*at)
        return _Read(function)

    def number(self, value: float) -> Value:
        return self.hl.f32(float(np.float32(value)))


def open_halide(file: Path, inputs: Arrays, threads: int) -> Running:
    """Open a pipeline of a file (its name, an autoscheduler), scheduled for its sizes and compiled."""
    os.environ["HL_NUM_THREADS"] = str(threads)
    import halide as hl

    asked = json.loads(file.read_text())
    plugin = next(Path(hl.__file__).parent.rglob(f"libautoschedule_{asked['autoscheduler'].lower()}.*"))
    hl.load_plugin(str(plugin))
    (picture,) = inputs.values()
    given = hl.ImageParam(hl.Float(32), picture.ndim)
    output = PIPELINES[asked["pipeline"]].build(Halide(), _Read(given), picture.shape).function
    for n, extent in enumerate(reversed(picture.shape)):
        given.dim(n).set_estimate(0, extent)
    for n, extent in enumerate(reversed(asked["result"])):
        output.output_buffer().dim(n).set_estimate(0, extent)
    pipeline, target = hl.Pipeline(output), hl.get_host_target()
    parameters = hl.AutoschedulerParams(asked["autoscheduler"], {"parallelism": str(threads)})
    with contextlib.redirect_stdout(sys.stderr):  # it has warnings to print
        pipeline.apply_autoscheduler(target, parameters)
        pipeline.compile_jit(target)
    around = [(0, 0)] * (picture.ndim - 2) + [(MARGIN, MARGIN)] * 2
    values = np.pad(picture, around)
    padded = hl.Buffer(values)
    padded.set_min([-before for before, _ in reversed(around)])
    given.set(padded)
    result = np.empty(asked["result"], np.float32)
    buffer = hl.Buffer(result)
    pipeline.realize(buffer)
    pin_calling_thread()

    kept = values, padded, given, output  # Halide's buffers do not keep what they are made of

    def run() -> object:
        pipeline.realize(buffer)
        return kept

    def outputs() -> list[np.ndarray]:
        run()
        return [result.copy()]

    return Running(run, outputs)


if __name__ == "__main__":  # FILE INPUTS THREADS: whether it can be run
    open_halide(Path(sys.argv[1]), read_inputs(Path(sys.argv[2])), int(sys.argv[3])).run()
