"""A worker in which no candidate computes what it should, and the fastest least of all."""

from roller_tvm.relay import worker


def run(key, number, mode, best, options):
    reply = worker.run(key, number, mode, best, options)
    return {**reply, "repeats": [1e-9] * 24 if options else [], "wrong": "error 1 at magnitude 1, allowed 0"}


if __name__ == "__main__":
    worker.main({**worker.FUNCTIONS, "run": run})
