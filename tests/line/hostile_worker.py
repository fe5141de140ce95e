"""A worker whose candidates do worse than crash: each number is something that happened to somebody."""

import os
import signal
import sys
import time

from roller_tvm.tuning import worker

PIPE = int(sys.argv[1])


def run(key, number, mode, best, options):
    if number == 1:  # the kernel's OOM killer
        os.kill(os.getpid(), signal.SIGKILL)
    if number == 2:  # a kernel that prints
        os.write(1, b"garbage \xff\x00\n" * 1000)
        os.write(2, b'{"i": [[1, 2]]}\n')
    if number == 3:  # a kernel that writes where the reply goes
        os.write(PIPE, (5).to_bytes(4, "big") + b"trash")
        time.sleep(60)
    if number == 4:  # a library that ends the process as if all were well
        os._exit(0)
    if number == 5:  # stopped, not dead
        os.kill(os.getpid(), signal.SIGSTOP)
    return worker.run(key, number, mode, best, options)


def build(key, number, line, mode):
    if number == 6:
        os.kill(os.getpid(), signal.SIGKILL)
    if number == 7:
        time.sleep(60)
    return worker.build(key, number, line, mode)


if __name__ == "__main__":
    worker.main({**worker.FUNCTIONS, "run": run, "build": build})
