"""Run an operator's kernels on a card: fill inputs, compare answers with the reference, time with a cold L2."""

from __future__ import annotations

import ctypes
import math
import statistics
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from roller_bench.kit.archive import KitOperator, KitPlan, read_member, read_operator
from roller_bench.kit.inputs import TYPES, each_allowed, seed_of
from roller_bench.kit.reference import UNFUSED, disagreement, spots
from roller_bench.kit.support import ARCHIVE, THREADS
from roller_tvm.device.cuda_driver import DeviceCard
from roller_tvm.errors import BadInput, MeasureError, ProfileError

#: Guard behind every buffer: number of bytes, and their value. No kernel may touch it.
GUARD, PATTERN = 4096, 0xA5
#: Byte that fills results before a kernel runs: NaN in every type, so that unwritten elements show.
UNWRITTEN = 0xFF
#: Bytes overwritten before every sample, as a multiple of L2.
FLUSHED = 2
#: Least and most samples; if the first takes longer than LONG_US microseconds, it is the only one.
LEAST, MOST, LONG_US = 5, 30, 2e6
WARM_UP = 2
#: Before a sample the card is kept busy for HELD times this process's launch time, and at most MOST_HELD_US. Launches
#: queue up meanwhile, so no sample waits for Python.
HELD, MOST_HELD_US = 2.0, 50e3
#: Most clock cycles in a microsecond; an idling card has a lower clock and is held longer.
CYCLES = 2000
#: Largest share of the free memory to use.
MEMORY_SHARE = 0.95
#: Blocks of THREADS threads per multiprocessor in a launch of the kit's own kernels.
BLOCKS_PER_UNIT = 8

#: Function called with the name of every step before it starts, so that a step that hangs can be named.
Say = Callable[[str], None]


class Bench:
    """A card with the kit's own kernels.

    Parameters
    ----------
    kit : Path
        Folder of the kit.
    arch : str
        Architecture of the kit's cubins that the card runs.
    say : function of str
        Called with the name of each step.
    """

    def __init__(self, card: DeviceCard, kit: Path, arch: str, say: Say = lambda text: None) -> None:
        self.card, self.kit, self.arch, self.say = card, kit, arch, say
        self._modules: dict[str, Any] = {}
        self._l2 = max(card.facts.l2_bytes, 1 << 20) * FLUSHED
        self._flush, self._told = card.alloc(self._l2), card.alloc(64)

    def own(self, name: str) -> Any:
        """Return one of the kit's own modules, loaded on first use (see ``support.own_sources``)."""
        if name not in self._modules:
            self._modules[name] = self.card.load(read_member(self.kit / self.arch / ARCHIVE, f"{name}.cubin"))
        return self._modules[name]

    def each(self, module: Any, kernel: str, count: int, *args: Any) -> None:
        """Launch a kernel of `support.cu` over `count` elements."""
        blocks = max(1, min(-(-count // THREADS), self.card.facts.units * BLOCKS_PER_UNIT))
        self.card.launch(module, kernel, (blocks, 1, 1), (THREADS, 1, 1), args)

    @contextmanager
    def buffer(self, nbytes: int) -> Iterator[int]:
        """Yield the address of `nbytes` of memory with a guard behind it."""
        address = self.card.alloc(nbytes + GUARD)
        try:
            self.guard(address, nbytes)
            yield address
        finally:
            with suppress(ProfileError):  # a context that a kernel broke; what broke it is on its way already
                self.card.free(address)

    def guard(self, address: int, nbytes: int) -> None:
        """Write the guard's pattern behind a buffer."""
        self.card.set(address + nbytes, PATTERN, GUARD)

    def intact(self, address: int, nbytes: int) -> bool:
        """Return True if nothing was written behind a buffer."""
        return self.card.read(address + nbytes, GUARD) == bytes([PATTERN]) * GUARD

    def compared(self, got: int, due: int, elements: int, dtype: str, terms: int = 1) -> dict[str, Any]:
        """Compare a result with the reference's on the card.

        Returns
        -------
        dict
            'error': largest difference; None if elements are not numbers. 'scale': the reference's largest magnitude.
            'differing': number of elements that differ at all. 'allowed': permitted difference. 'why': the reason, only
            if the result is wrong.
        """
        card = self.card
        told = (ctypes.c_uint64(self._told), ctypes.c_uint64(self._told + 8))
        addresses = (ctypes.c_uint64(got), ctypes.c_uint64(due))

        def compare(relative: float, least: float) -> tuple[Any, ...]:
            """Return the worst element beyond ``relative * |due| + least``, its difference, and the counts."""
            card.set(self._told, 0, 64)
            limits = struct.unpack("<Q", struct.pack("<ff", least, relative))[0]
            count = ctypes.c_uint64(elements)
            self.each(self.own(dtype), "compare", elements, *addresses, count, *told, ctypes.c_uint64(limits))
            return struct.unpack("<IffIII", card.read(self._told, 24))

        _, gap, scale, differing, odd, _ = compare(0.0, -1.0)
        relative, least = each_allowed(dtype, scale, terms)
        found: dict[str, Any] = {"error": gap, "scale": scale, "differing": differing,
                                 "allowed": relative * scale + least}  # fmt: skip
        if odd:
            found |= {"error": None, "why": f"{odd} of {elements} elements are no numbers, or never written"}
        elif gap > least:
            place, gap, _, _, _, beyond = compare(relative, least)
            if beyond:
                text = f"off by {gap:.3g} at element {place}, allowed {relative:.3g} of it and {least:.3g}"
                found["why"] = f"{text}; {beyond} of {elements} are off by more"
        return found

    def sampled(self, run: Callable[[], None], budget_us: float) -> dict[str, Any]:
        """Time `run` in microseconds, L2 overwritten before each sample; see `samples`."""
        card = self.card
        return samples(run, budget_us, lambda: card.set(self._flush, 0, self._l2), self.hold, card.start, card.stop)

    def hold(self, us: float) -> None:
        """Keep the card busy for `us` microseconds, or longer while its clock is low."""
        cycles = ctypes.c_uint64(int(us * CYCLES) + 1)
        self.card.launch(self.own("float32"), "hold", (1, 1, 1), (1, 1, 1), [cycles])

    def floor_us(self) -> float:
        """Return the median time of an empty kernel in microseconds, measured in the same way."""
        module = self.own("bench")
        return float(self.sampled(lambda: self.card.launch(module, "empty", (1, 1, 1), (1, 1, 1), []), 1e5)["median"])


def samples(
    run: Callable[[], Any], budget_us: float, flush: Callable[[], Any], hold: Callable[[float], Any],
    start: Callable[[], Any], stop: Callable[[], float],
) -> dict[str, Any]:  # fmt: skip
    """Time `run` in microseconds; return median, least, most, quartiles and count of the samples.

    Parameters
    ----------
    budget_us : float
        Time for all samples.
    flush : function
        Overwrites L2; called before each sample.
    hold : function of float
        Keeps the card busy for so many microseconds, so that launches queue up.
    start, stop : function
        Record the events around a sample on the card; `stop` returns the microseconds between them.
    """
    launching = math.inf

    def once() -> float:
        nonlocal launching
        flush()
        if launching < math.inf:
            hold(min(launching * HELD, MOST_HELD_US))
        began = time.perf_counter()
        start()
        run()
        launching = min(launching, (time.perf_counter() - began) * 1e6)
        return stop()

    taken = [once()]
    if taken[0] <= LONG_US:
        for _ in range(WARM_UP):
            began = time.perf_counter()
            once()
            spent_us = (time.perf_counter() - began) * 1e6
        taken = [once() for _ in range(max(LEAST, min(MOST, int(budget_us / max(spent_us, 1.0)))))]
    low, _, high = statistics.quantiles(taken, n=4) if len(taken) > 1 else taken * 3
    told = {"median": statistics.median(taken), "least": min(taken), "most": max(taken), "low": low, "high": high}
    return {**{k: round(v, 3) for k, v in told.items()}, "count": len(taken)}


def measure_operator(
    bench: Bench, path: Path, ranks: Sequence[int], budget_us: float, until: float, spot: bool = True
) -> Iterator[dict[str, Any]]:
    """Check and time plans of one operator.

    Parameters
    ----------
    path : Path
        File of the operator.
    ranks : sequence of int
        Ranks of the wanted plans; ranks not in the file are ignored.
    budget_us : float
        Time for the samples of one plan, in microseconds.
    until : float
        Time of ``time.monotonic()`` after which no plan is begun.
    spot : bool
        True to check elements of the reference in Python, too.

    Yields
    ------
    dict
        Result of each plan: 'rank', 'verdict' (right, wrong, failed, skipped), 'why', 'error', times under 'us'.
    """
    operator = read_operator(path)
    card, name = bench.card, str(operator.case)
    plans = [p for p in operator.plans if p.rank in ranks]
    if not plans:
        return
    if why := _does_not_fit(bench, operator):
        yield from ({"rank": p.rank, "verdict": "skipped", "why": why} for p in plans)
        return
    *inputs, output = plans[0].parameters
    # The kit's inputs make an operator's own sums exact.
    terms = operator.reference.terms if operator.reference.kernel == UNFUSED else 1
    with ExitStack() as held:
        addresses = [held.enter_context(bench.buffer(t.nbytes)) for t in inputs]
        got, due = (held.enter_context(bench.buffer(output.nbytes)) for _ in range(2))

        def prepare() -> None:
            bench.say(f"{name} reference")
            for tensor, address in zip((*inputs, output, output), (*addresses, got, due), strict=True):
                bench.guard(address, tensor.nbytes)
            _make_reference(bench, path, operator, addresses, due)

        prepare()
        if spot and (wrong := _spot_check(card, operator, due)):
            yield from ({"rank": p.rank, "verdict": "failed", "why": f"no reference: {wrong}"} for p in plans)
            return
        for plan in plans:
            if time.monotonic() > until:
                return
            bench.say(f"{name}#{plan.rank}")
            try:
                found = _measure_plan(bench, path, plan, addresses, got, due, budget_us, terms)
                astray = found.pop("astray")
                yield {"rank": plan.rank, **found}
                if astray:  # there is no telling what else it wrote over
                    prepare()
            except MeasureError as error:  # refused before anything was launched
                yield {"rank": plan.rank, "verdict": "skipped", "why": str(error)}


def _does_not_fit(bench: Bench, operator: KitOperator) -> str:
    parameters = operator.plans[0].parameters
    between = max(sum(t.nbytes + GUARD for t in p.between) for p in operator.plans)
    needed = sum(t.nbytes + GUARD for t in parameters) + parameters[-1].nbytes + GUARD + between
    free = int(bench.card.free_bytes() * MEMORY_SHARE)
    return f"needs {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are free" if needed > free else ""


def _make_reference(bench: Bench, path: Path, operator: KitOperator, inputs: Sequence[int], due: int) -> None:
    """Fill the inputs on the card, and compute the reference's result into `due`."""
    reference, dtype = operator.reference, operator.case.dtype
    module = bench.own(dtype)
    for position, (address, shape) in enumerate(zip(inputs, reference.inputs, strict=True)):
        count = math.prod(shape)
        seed = ctypes.c_uint32(seed_of(position))
        bench.each(module, "fill", count, ctypes.c_uint64(address), ctypes.c_uint64(count), seed)
    if reference.kernel == UNFUSED:
        plan = next(p for p in operator.plans if p.variant == UNFUSED)
        with _loaded(bench, path, plan, inputs, due) as (run, where):
            _unwrite(bench, plan, where)
            run()
            bench.card.wait()
        return
    sizes = reference.sizes or (0,)
    with bench.buffer(4 * len(sizes)) as at:
        bench.card.write(at, struct.pack(f"<{len(sizes)}i", *sizes))
        tensors = [ctypes.c_uint64(a) for a in (*inputs, due)]
        count = reference.elements
        bench.each(module, reference.kernel, count, *tensors, ctypes.c_uint64(count), ctypes.c_uint64(at))
        bench.card.wait()


def _spot_check(card: DeviceCard, operator: KitOperator, due: int) -> str:
    size = TYPES[operator.case.dtype][0]
    elements = {i: card.read(due + i * size, size) for i in spots(operator.reference)}
    return disagreement(operator.reference, operator.case.dtype, elements)


def _measure_plan(
    bench: Bench, path: Path, plan: KitPlan, inputs: Sequence[int], got: int, due: int, budget_us: float, terms: int
) -> dict[str, Any]:
    card, output = bench.card, plan.parameters[-1]
    with _loaded(bench, path, plan, inputs, got) as (run, where):

        def judged() -> dict[str, Any]:
            run()
            card.wait()
            found = bench.compared(got, due, output.elements, output.dtype, terms)
            touched = [t.name for t in (*plan.parameters, *plan.between) if not bench.intact(where[t.name], t.nbytes)]
            if touched:
                found["why"] = f"wrote behind the end of {', '.join(touched)}"
            return {**found, "astray": bool(touched), "verdict": "wrong" if "why" in found else "right"}

        _unwrite(bench, plan, where)
        found = judged()
        found["us"] = bench.sampled(run, budget_us)
        # Memory kept from one launch to the next (counters of waiting blocks) is as the last launch left it.
        card.set(where[output.name], UNWRITTEN, output.nbytes)
        if found["verdict"] == "right" and (again := judged())["verdict"] != "right":
            found = {**again, "us": found["us"], "why": f"right at first, not when launched again: {again['why']}"}
        return found


def _unwrite(bench: Bench, plan: KitPlan, where: Mapping[str, int]) -> None:
    """Overwrite the output and the intermediate buffers, so that an earlier kernel's results do not count."""
    for tensor in (plan.parameters[-1], *plan.between):
        bench.card.set(where[tensor.name], UNWRITTEN, tensor.nbytes)


@contextmanager
def _loaded(
    bench: Bench, path: Path, plan: KitPlan, inputs: Sequence[int], got: int
) -> Iterator[tuple[Callable[[], None], dict[str, int]]]:
    """Load a plan's kernels on the card; yield a function that launches them, and each buffer's address."""
    card = bench.card
    modules: dict[str, Any] = {}
    try:
        for image in plan.images:
            modules[image] = card.load(read_member(path, image))
        with ExitStack() as held:
            between = {t.name: held.enter_context(bench.buffer(t.nbytes)) for t in plan.between}
            where = {t.name: a for t, a in zip(plan.parameters, (*inputs, got), strict=True)} | between
            args = [[ctypes.c_uint64(where[a]) for a in launch.arguments] for launch in plan.launches]

            def run() -> None:
                for launch, given in zip(plan.launches, args, strict=True):
                    module = modules[launch.image or plan.image]
                    card.launch(module, launch.kernel, launch.grid, launch.block, given, launch.dynamic_shared)

            yield run, where
    finally:
        for module in modules.values():
            with suppress(ProfileError):
                card.unload(module)


def answer(bench: Bench, task: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the results of a worker's task, plan by plan."""
    path = Path(task["path"])
    try:
        yield from measure_operator(bench, path, task["ranks"], task["budget_us"], task["until"], task["spot"])
    except BadInput as error:  # the file, not the card
        yield from ({"rank": rank, "verdict": "failed", "why": str(error)} for rank in task["ranks"])
