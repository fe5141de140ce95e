"""Run the micro-benchmarks of `cuda_profile.cu` on a card: requests in, rates of every repeat out.

The benchmarks run in a process of their own. If the driver hangs or crashes, only that process is lost. And this
process makes no CUDA context, because a process with one cannot fork.
"""

from __future__ import annotations

import ctypes
import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from roller_tvm.children import environment, python
from roller_tvm.device.cuda_driver import CudaFacts, Driver, DriverCard
from roller_tvm.device.profile import run_program
from roller_tvm.device.rates import Rates, Request
from roller_tvm.errors import ProfileError, RollerError

SOURCE = Path(__file__).with_name("cuda_profile.cu")
WHERE = "profile of the CUDA device"
LIMIT_S = 60.0
#: Nanoseconds of one repeat: much longer than a launch and the resolution of an event.
REPEAT_NS = 2e6
#: Launches in one repeat of "launch". They queue behind a kernel of HOLD_NS, so that this process is no limit.
LAUNCHES = 400
HOLD_NS = 20e6
WARM_UP = 3

#: Work of one thread in one round: FLOPs (an FMA counts as two), or dependent steps.
_CHAINS = 16
_WORK = {"fma32": 2 * _CHAINS, "fma64": 2 * _CHAINS, "fma16": 4 * _CHAINS, "int32": 2 * _CHAINS}
_CONSTANTS: dict[str, Callable[[float], Any]] = {
    "fma32": ctypes.c_float,
    "fma64": ctypes.c_double,
    "fma16": lambda value: ctypes.c_uint(0x38003800),  # one half, twice
    "int32": lambda value: ctypes.c_int(3),
    "latency32": ctypes.c_float,
}
_COMPUTE_THREADS, _READ_THREADS, _SHARED_LOADS = 512, 256, 8
_LINE = 128

#: Function that returns the work of the last run, and function that runs so many rounds.
_Prepared = tuple[Callable[[], float], Callable[[int], float]]


def measure(card: DriverCard, requests: Sequence[Request]) -> Rates:
    """Return the rates of the requests on a card with the kernels loaded; kinds without a unit have none."""
    rates: Rates = {}
    out = card.alloc(64)
    try:
        for request in requests:
            if request.kind == "fma16" and (card.facts.major, card.facts.minor) < (5, 3):
                continue
            with _prepared(card, request, out) as (work, run):
                rates[request] = [work() / ns for ns in _repeats(run, request) if ns > 0]
    finally:
        card.free(out)
    return rates


def _repeats(run: Callable[[int], float], request: Request) -> Iterator[float]:
    """Yield the nanoseconds of each repeat; `run` takes the number of rounds."""
    rounds, spent = 1, run(1)
    while request.kind != "launch" and spent < REPEAT_NS / 4 and rounds < 1 << 30:
        rounds = min(rounds * 4, 1 << 30)
        spent = run(rounds)
    rounds = max(1, math.ceil(rounds * REPEAT_NS / max(spent, 1.0)))
    for _ in range(WARM_UP):  # clocks rise
        run(rounds)
    total, count = 0.0, 0
    while count < request.repeats and (total < request.budget_ms * 1e6 or count < WARM_UP):
        spent = run(rounds)
        total, count = total + spent, count + 1
        yield spent


@contextmanager
def _prepared(card: DriverCard, request: Request, out: int) -> Iterator[_Prepared]:
    """Yield the two functions of a request, with its memory allocated."""
    facts, kind = card.facts, request.kind
    done = 0
    # As many threads as fill every unit once.
    full = facts.max_threads_per_unit * facts.units
    result = ctypes.c_uint64(out)
    memory = card.alloc(request.bytes) if request.bytes else 0

    def launch(kernel: str, grid: int, block: int, *args: Any) -> Callable[[int], float]:
        def run(rounds: int) -> float:
            nonlocal done
            done = rounds
            return card.time(kernel, grid, block, [ctypes.c_uint(rounds), *args])

        return run

    compute_grid = full // _COMPUTE_THREADS
    try:
        if kind in _WORK:
            a, b = _CONSTANTS[kind](0.999), _CONSTANTS[kind](0.5)
            threads = compute_grid * _COMPUTE_THREADS
            yield lambda: _WORK[kind] * threads * done, launch(kind, compute_grid, _COMPUTE_THREADS, a, b, result)
        elif kind == "latency32":
            yield lambda: done, launch(kind, 1, 1, ctypes.c_float(0.999), ctypes.c_float(0.5), result)
        elif kind == "clock":
            a, b, cycles = ctypes.c_float(0.999), ctypes.c_float(0.5), ctypes.c_uint64(out + 8)
            run = launch("clock_cycles", facts.units, _COMPUTE_THREADS, a, b, result, cycles)
            yield lambda: card.read(out + 8), run
        elif kind == "read":
            grid = full // _READ_THREADS
            count = ctypes.c_uint64(request.bytes // 16)
            run = launch(kind, grid, _READ_THREADS, ctypes.c_uint64(memory), count, result)
            yield lambda: request.bytes // 16 * 16 * done, run
        elif kind == "shared":
            threads = compute_grid * _COMPUTE_THREADS
            run = launch("shared_read", compute_grid, _COMPUTE_THREADS, result)
            yield lambda: 16 * _SHARED_LOADS * threads * done, run
        elif kind == "shared_chase":
            yield lambda: done, launch(kind, 1, 1, result)
        elif kind == "chase":
            lines = 1 << int(math.log2(request.bytes // _LINE))
            sizes = (ctypes.c_uint64(lines), ctypes.c_uint64(_LINE // 8))
            card.time("make_cycle", facts.units, _READ_THREADS, [ctypes.c_uint64(memory), *sizes])
            card.write(out + 16, memory)
            run = launch(kind, 1, 1, ctypes.c_uint64(out + 16))
            run(lines)  # once around: what fits the cache is there
            yield lambda: done, run
        elif kind == "launch":
            hold = launch("latency32", 1, 1, ctypes.c_float(0.999), ctypes.c_float(0.5), result)
            rounds = math.ceil(HOLD_NS / hold(1 << 16) * (1 << 16))
            held = [ctypes.c_uint(rounds), ctypes.c_float(0.999), ctypes.c_float(0.5), result]
            yield lambda: LAUNCHES, lambda _: card.time("nothing", 1, 1, [], LAUNCHES, ("latency32", held))
        else:
            raise ProfileError(f"no micro-benchmark is called {kind!r}", WHERE, "report this")
    finally:
        if memory:
            card.free(memory)


# In the process of its own -----------------------------------------------------------------------------


#: Program of the child process; devices stand below the code that compiles for them.
CHILD = f"from {__name__} import main\nfrom roller_tvm.codegen import compile_cuda\nmain(compile_cuda)"


class CudaRunner:
    """Runs requests in a child process, one process per call.

    Parameters
    ----------
    ordinal : int
        Number of the card.
    command : sequence of str, optional
        Command of the child process; tests give another.
    """

    def __init__(self, ordinal: int = 0, command: Sequence[str] = (), limit_s: float = LIMIT_S) -> None:
        self.ordinal = ordinal
        self._command = list(command) or python("-c", CHILD)
        self._limit_s = limit_s

    def __call__(self, requests: Sequence[Request]) -> Rates:
        answer = self._ask({"ordinal": self.ordinal, "requests": [asdict(r) for r in requests]})
        return {requests[int(number)]: [float(v) for v in values] for number, values in answer["rates"].items()}

    def facts(self) -> CudaFacts:
        """Return the driver's facts about the card."""
        return self.cards(self.ordinal)[0]

    def cards(self, ordinal: int | None = None) -> list[CudaFacts]:
        """Return the driver's facts about all cards, or about one."""
        return [CudaFacts(**facts) for facts in self._ask({"ordinal": ordinal, "requests": None})["cards"]]

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        done = run_program(
            self._command, json.dumps(question), self._limit_s, WHERE, "profile when nobody else uses the card",
            "report this", environment(),
        )  # fmt: skip
        try:
            answer = json.loads(done.stdout.splitlines()[-1])
            if "error" in answer:
                raise ProfileError(*answer["error"])
            return dict(answer)
        except (IndexError, ValueError, TypeError) as err:
            said = (done.stderr.strip().splitlines() or ["no message"])[-1]
            text = f"the benchmarks ended with code {done.returncode}: {said}"
            raise ProfileError(text, WHERE, "see that nvidia-smi works; report this") from err


def answer(
    question: dict[str, Any], compiled: Callable[..., Any], driver: Callable[[], Driver] = Driver
) -> dict[str, Any]:
    """Return the child process's answer to a question; `compiled` is ``codegen.compile_cuda``."""
    try:
        cuda, ordinal = driver(), question["ordinal"]
        if question["requests"] is None:
            wanted = range(cuda.count()) if ordinal is None else [ordinal]
            return {"cards": [cuda.facts(n).to_dict() for n in wanted]}
        requests = [Request(**r) for r in question["requests"]]
        cubin = compiled(SOURCE.read_text(encoding="utf-8"), cuda.facts(ordinal).arch, where=WHERE)
        with DriverCard(cuda, ordinal, cubin.data) as card:
            rates = measure(card, requests)
        return {"rates": {str(requests.index(r)): values for r, values in rates.items()}}
    except RollerError as err:
        return {"error": [err.what, err.where, err.remedy]}


def main(compiled: Callable[..., Any]) -> None:
    """Run the child process: read a question from stdin, print the answer."""
    print(json.dumps(answer(json.load(sys.stdin), compiled)))
