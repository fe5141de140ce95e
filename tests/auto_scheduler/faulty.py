"""Workers in which the first candidate 0 crashes, the first 1 is wrong, the first 2 hangs; later ones behave."""

import os
import signal
import time
from pathlib import Path

from roller_tvm.tuning import worker


def run(key, number, mode, best, options):
    mark = Path(os.environ["FAULTY_MARKS"], str(number))
    faulty = number < 3 and not mark.exists()
    mark.touch()
    if faulty and number == 0:
        os.kill(os.getpid(), signal.SIGSEGV)
    if faulty and number == 2:
        time.sleep(60)
    reply = worker.run(key, number, mode, best, options)
    return {**reply, "wrong": "error 1 at magnitude 1, allowed 0"} if faulty else reply


if __name__ == "__main__":
    worker.main({**worker.FUNCTIONS, "run": run})
