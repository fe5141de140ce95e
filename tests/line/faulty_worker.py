"""A worker some of whose candidates misbehave: 1 crashes, 2 hangs, 3 is wrong, 5 does not build."""

import os
import signal
import time

from roller_tvm.tuning import worker
from roller_tvm.tuning.supervise import Failed


def run(key, number, mode, best, options):
    if number == 1:
        os.kill(os.getpid(), signal.SIGSEGV)
    if number == 2:
        time.sleep(60)
    reply = worker.run(key, number, mode, best, options)
    if number == 3:
        return {**reply, "wrong": "error 1 at magnitude 1, allowed 0"}
    return reply


def build(key, number, line, mode):
    if number == 5:
        raise Failed("build error", "no such instruction")
    return worker.build(key, number, line, mode)


if __name__ == "__main__":
    worker.main({**worker.FUNCTIONS, "run": run, "build": build})
