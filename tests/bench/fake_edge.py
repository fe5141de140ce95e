"""An edge without TVM: what its tuners do depends on the tuner and the case (see test_run)."""

import os
import time as clock
from pathlib import Path

SECONDS = {"roller": 1e-5, "ansor": 2e-5, "untuned": 8e-5, "metaschedule": 5e-6}


def facts(target):
    return {"tvm": "0.0"}


def prepare(cases, target, folder):
    if any(c["id"] == "poison" for c in cases):
        os._exit(3)
    Path(folder, "task").touch()
    reason = {"odd": "nobody has such an operator"}
    return [
        {"case": c, "file": "task", "flops": 1e6, "io_bytes": 1e4, "reason": reason.get(c["id"], "")} for c in cases
    ]


def tune(task, case, tuner, trials, target, folder):
    with Path(folder, "calls").open("a") as file:
        file.write(f"{case['id']} {tuner}\n")
    what = case["id"] if tuner == "ansor" else ""
    if what == "fails":
        raise RuntimeError("first line\nno kernel at all")
    if what == "hangs":
        clock.sleep(600)
    if what == "crashes":
        os.abort()
    if what == "babbles":
        return {"seconds": 1.0, "colour": "green"}
    if what == "wrong":
        return {"status": "wrong answer", "reason": "error 3 at magnitude 1", "seconds": 1.0}
    seconds = SECONDS[tuner]
    kernel = Path(folder, f"{case['id']}.{tuner}.so")
    kernel.write_text(str(seconds) if what != "unrunnable" else "dies")
    claimed = 1e-9 if what == "lies" else seconds
    spent = {"roller": 0.5}.get(tuner, 100.0)
    curve = [[spent / 10, 4 * claimed], [spent, claimed]]
    return {"seconds": spent, "trials": trials, "claimed_s": claimed, "curve": curve, "kernel": kernel.name,
            "tiles": f"tiles of {tuner}", "schedule": f"schedule {seconds}"}  # fmt: skip


def build_again(task, case, tuner, trials, schedule, target, folder):
    if not Path(task).exists():
        raise RuntimeError("nobody prepared it")
    with Path(folder, "calls").open("a") as file:
        file.write(f"{case['id']} {tuner}:{trials} again\n")
    kernel = Path(folder, f"{case['id']}.{tuner}.so")
    kernel.write_text(schedule.split()[1])
    return kernel.name


def time(kernels, target, rounds):
    texts = [Path(k).read_text() for k in kernels]
    if "dies" in texts:
        os.abort()
    with Path(kernels[0]).with_suffix(".timed").open("a") as file:
        file.write(f"{os.getpid()}\n")
    return [[float(t) * (1 + n / 100) for n in range(rounds)] for t in texts]


def tasks(file, shapes, layout, params, target, folder, trusted):
    Path(folder, "task").touch()
    case = {"id": "net.0", "group": "net", "weight": 3, "title": "net conv2d", "model": f"{file} {shapes}", "task": "k"}
    return [{"case": case, "file": "task", "flops": 2e6, "io_bytes": 1e4, "reason": ""}]
