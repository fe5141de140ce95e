"""A model's outcome: right, wrong, a crash, an error or a slow build where plain TVM has none."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from roller_check.fuzz.ways import PLAINLY, Ways
from roller_tvm.tuning.supervise import Reply, Worker

OUTCOMES = ("right", "wrong", "crash", "error", "slow build", "as plain TVM", "no truth", "slower")
#: A run is slower below this share of plain TVM's speed, if it takes so many seconds.
SHARE, LEAST_S = 0.9, 20e-6
#: Seconds by the clock after which a worker is stuck: by the processor's time it ends itself (see `worker.limited`).
LIMIT_S = 900.0
#: A build is slow above so many times plain TVM's seconds, plus one second.
SLOW = 10.0
#: Relative and absolute error by dtype: rounding differs by the order of sums.
TOLERANCE = {"float16": 2e-2, "float32": 1e-3, "float64": 1e-5}
WORKER = "roller_check.fuzz.worker"
#: Replies of a process that died or had no end.
STUCK = ("crash", "run timeout", "build timeout")


@dataclass(frozen=True)
class Verdict:
    """The outcome of a model.

    Parameters
    ----------
    outcome : str
        One of `OUTCOMES`. "as plain TVM": neither has the answer, or both have the same other one than onnxruntime, or
        a NaN is not kept; "no truth": onnxruntime, ONNX's own evaluator and plain TVM disagree.
    told : str
    plain_s, ours_s : float
        The processor's seconds of the builds; 0 for plain TVM's if ours was right within a second.
    used : tuple of str
        How our kernels are made; see `worker.used`.
    """

    outcome: str
    told: str = ""
    plain_s: float = 0.0
    ours_s: float = 0.0
    used: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def judge(model: Any, inputs: dict[str, np.ndarray], worker: Worker, ways: Ways = PLAINLY) -> Verdict:
    """Build and run a model in a worker process, beside onnxruntime; by plain TVM too unless it is right and quick."""
    data = model.SerializeToString()
    known = worker.call("truth", (data, inputs), LIMIT_S)
    if not known.ok:
        return Verdict("no truth", f"onnxruntime: {known.text}")
    feeds, answers = known.value
    ours = worker.call("run", (data, feeds, "roller", ways), LIMIT_S)
    still = [np.zeros(a.shape) for a in answers]
    wrong = differs(ours.value[0], answers, still) if ours.ok else ""
    ours_s, made = (ours.value[1], tuple(ours.value[2])) if ours.ok else (0.0, ())
    if ours.ok and not wrong and (ours_s <= 1 or ours_s <= 1 + SLOW * worker.call("least", (), LIMIT_S).value):
        return Verdict("right", "", 0.0, ours_s, made)
    plain = worker.call("run", (data, feeds, "tvm"), LIMIT_S)
    plain_s = plain.value[1] if plain.ok else 0.0
    if not ours.ok and ours.kind in STUCK and (plain.ok or plain.kind not in STUCK):
        return Verdict("crash", ours.text, plain_s)
    if not ours.ok:
        right = plain.ok and not differs(plain.value[0], answers, still)
        return Verdict("error" if right else "as plain TVM", ours.text, plain_s)
    if wrong:
        moved = worker.call("moves", (data, feeds, answers), LIMIT_S)
        outcome, told = _disagreed(data, feeds, answers, moved.value if moved.ok else still, ours, plain, worker)
        if outcome != "right":
            return Verdict(outcome, told, plain_s, ours_s, made)
    if plain.ok and ours_s > SLOW * plain_s + 1:
        return Verdict("slow build", f"{ours_s:.1f} s, plain TVM {plain_s:.2f} s", plain_s, ours_s, made)
    return Verdict("right", "" if plain.ok else f"plain TVM: {plain.text}", plain_s, ours_s, made)


def _disagreed(
    data: bytes, feeds: list[dict[str, np.ndarray]], answers: list[np.ndarray], moved: list[np.ndarray], ours: Reply,
    plain: Reply, worker: Worker,
) -> tuple[str, str]:  # fmt: skip
    """Return the outcome and the difference where ours is not onnxruntime's answer, by plain TVM's or numpy's word."""
    got = ours.value[0]
    if not (told := differs(got, answers, moved)):
        return "right", ""
    if plain.ok and not differs(plain.value[0], answers, moved):
        allowed = [shift + off for shift, off in zip(moved, _rounding(plain.value[0], answers), strict=True)]
        told = differs(got, answers, allowed)
        return ("wrong", told) if told else ("right", "")
    if plain.ok and not differs(got, plain.value[0], moved):
        return "as plain TVM", told
    numpys = worker.call("reference", (data, feeds), LIMIT_S)
    if not numpys.ok or differs(numpys.value, answers, moved):
        return "no truth", f"{told}; plain TVM: {plain.text if not plain.ok else 'another answer'}"
    # TVM's minimum and maximum do not keep a NaN; where it cannot say so itself, a NaN is no witness.
    if not (told := differs(got, _without_nan(answers, got), moved)):
        return "as plain TVM", "a NaN is not kept"
    return "wrong", f"{told}; plain TVM has no answer or another"


def judge_cuda(model: Any, inputs: dict[str, np.ndarray], worker: Worker, ways: Ways = PLAINLY) -> Verdict:  # noqa: ARG001
    """Plan a model for GPUs, execute its small kernels on the CPU and compile all of them (see `cuda`)."""
    reply = worker.call("cuda", (model.SerializeToString(),), LIMIT_S)
    if not reply.ok:
        # Whatever plain TVM cannot import is no model; the rest is ours.
        plain = worker.call("run", (model.SerializeToString(), [inputs], "tvm"), LIMIT_S)
        outcome = "crash" if reply.kind in STUCK else "error"
        return Verdict(outcome if plain.ok else "as plain TVM", reply.text)
    wrong, told, seconds = reply.value
    return Verdict("wrong" if wrong else "right", told, 0.0, seconds)


def judge_times(model: Any, inputs: dict[str, np.ndarray], worker: Worker, ways: Ways = PLAINLY) -> Verdict:  # noqa: ARG001
    """Time a model's runs on one thread, beside plain TVM's; the verdict's seconds are those of a run."""
    data = model.SerializeToString()
    known = worker.call("truth", (data, inputs), LIMIT_S)
    reply = worker.call("times", (data, known.value[0]), LIMIT_S) if known.ok else known
    if not reply.ok:
        return Verdict("no truth", reply.text)
    ours_s, plain_s = reply.value
    slower = ours_s > LEAST_S and plain_s < SHARE * ours_s
    told = f"{1e6 * ours_s:.1f} us, plain TVM {1e6 * plain_s:.1f}" if slower else ""
    return Verdict("slower" if slower else "right", told, plain_s, ours_s)


def _rounding(got: list[np.ndarray], answers: list[np.ndarray]) -> list[float]:
    """Return what plain TVM's answers, which are right, are off by at most: ours may be as far, as `differs` counts."""
    with np.errstate(all="ignore"):
        off = [np.abs(np.asarray(a, "float64") - np.asarray(b, "float64")) for a, b in zip(got, answers, strict=True)]
    return [float(np.max(o[np.isfinite(o)], initial=0.0)) / 5 if "float" in b.dtype.name else 0.0
            for o, b in zip(off, answers, strict=True)]  # fmt: skip


def _without_nan(answers: list[np.ndarray], got: list[np.ndarray]) -> list[np.ndarray]:
    """Return answers with what we got where they are NaN."""
    pairs = list(zip(got, answers, strict=True))
    return [np.where(b != b, a, b) if a.shape == b.shape and a.dtype == b.dtype else b for a, b in pairs]


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
