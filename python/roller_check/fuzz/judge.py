"""A model's outcome: right, wrong, a crash, an error or a slow build where plain TVM has none."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from roller_tvm.tuning.supervise import Worker

OUTCOMES = ("right", "wrong", "crash", "error", "slow build", "no truth")
#: Seconds that a build and two runs may take.
LIMIT_S = 150.0
#: A build is slow above so many times plain TVM's seconds, plus one second.
SLOW = 10.0
#: Relative and absolute error by dtype: rounding differs by the order of sums.
TOLERANCE = {"float16": 2e-2, "float32": 1e-3, "float64": 1e-5}
WORKER = "roller_check.fuzz.worker"


@dataclass(frozen=True)
class Verdict:
    """The outcome of a model.

    Parameters
    ----------
    outcome : str
        One of `OUTCOMES`; "no truth": plain TVM and onnxruntime disagree, or plain TVM cannot build it.
    told : str
    plain_s, ours_s : float
        Seconds of the builds.
    """

    outcome: str
    told: str = ""
    plain_s: float = 0.0
    ours_s: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def judge(model: Any, inputs: dict[str, np.ndarray], worker: Worker) -> Verdict:
    """Build and run a model both ways in a worker process, beside onnxruntime."""
    data = model.SerializeToString()
    known = worker.call("truth", (data, inputs), LIMIT_S)
    plain = worker.call("run", (data, inputs, "tvm"), LIMIT_S)
    if not known.ok:
        return Verdict("no truth", f"onnxruntime: {known.text}")
    answers, moved = known.value
    told = differs(plain.value[0], answers, moved) if plain.ok else plain.text
    ours = worker.call("run", (data, inputs, "roller"), LIMIT_S)
    if not ours.ok and ours.kind in ("crash", "run timeout") and (plain.ok or plain.kind != ours.kind):
        return Verdict("crash", ours.text, plain.value[1] if plain.ok else 0.0)
    wrong = differs(ours.value[0], answers, moved) if ours.ok else ""
    seconds = (plain.value[1] if plain.ok else 0.0, ours.value[1] if ours.ok else 0.0)
    if told:  # plain TVM is no witness
        return Verdict("no truth", ("ours is right; " if ours.ok and not wrong else "") + told, *seconds)
    if not ours.ok:
        return Verdict("error", ours.text, *seconds)
    if wrong:
        return Verdict("wrong", wrong, *seconds)
    if seconds[1] > SLOW * seconds[0] + 1:
        return Verdict("slow build", f"{seconds[1]:.1f} s, plain TVM {seconds[0]:.2f} s", *seconds)
    return Verdict("right", "", *seconds)


def differs(got: list[np.ndarray], answers: list[np.ndarray], moved: list[np.ndarray]) -> str:
    """Return where answers differ by more than rounding and small moves of the inputs explain, or ''."""
    for place, (a, b, shift) in enumerate(zip(got, answers, moved, strict=True)):
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"output {place} is {a.dtype}{list(a.shape)}, not {b.dtype}{list(b.shape)}"
        if not b.size:
            continue
        tolerance = TOLERANCE.get(b.dtype.name, 0.0)
        x, y = np.asarray(a, "float64"), np.asarray(b, "float64")
        with np.errstate(all="ignore"):
            scale = max(1.0, float(np.max(np.abs(y[np.isfinite(y)]), initial=0.0)))
            near = np.abs(x - y) <= tolerance * (np.abs(y) + 0.1 * scale) + 20 * shift
        bad = ~(near | (x == y) | (np.isnan(x) & np.isnan(y)))
        if bad.any():
            at = tuple(int(i) for i in np.argwhere(bad)[0])
            return f"output {place}: {int(bad.sum())} of {b.size} elements, at {at} {x[at]:g}, not {y[at]:g}"
    return ""
