"""A worker in which no candidate computes what it should, and the fastest least of all."""

from roller_tvm.tuning import worker


def run(key, number, mode, best, options):
    task = worker.TASKS[key]
    task.expected = [expected + 1 for expected in task.expected]
    return {**worker.run(key, number, mode, best, options), "repeats": [1e-9] * 24 if options else []}


if __name__ == "__main__":
    worker.main({**worker.FUNCTIONS, "run": run})
