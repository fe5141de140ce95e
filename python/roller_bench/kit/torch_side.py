"""The process that runs the same operators through torch (cuBLAS, cuDNN) if it is installed; protocol as in `worker`.

Times are taken like the kit's own: L2 is overwritten before each sample, the sample waits in the card's queue
meanwhile, and the result is the median of the events' times.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

from roller_bench.kit.cases import RTASKS, Case
from roller_bench.kit.measure import CYCLES, FLUSHED, samples
from roller_bench.kit.reference import Reference, reference_of
from roller_bench.kit.watchdog import begin
from roller_tvm.ir.operators import normalize, parse_params, resolve_axes

#: Type -> modes in which torch may compute it: full float32 as our kernels do, or tensor cores with 10 fraction bits.
MODES = {"float32": ("float32", "tfloat32"), "float16": ("float16",), "bfloat16": ("bfloat16",)}
#: Reference kernels that the mode changes.
PRODUCTS = ("conv2d", "matmul")


def call_of(torch: Any, case: Case, reference: Reference) -> Callable[[], Any]:
    """Return a function that runs the operator as a torch user writes it, on its own inputs.

    Padding that torch's operator cannot do is applied beforehand.
    """
    functional, params = torch.nn.functional, parse_params(case.params)
    p = normalize(case.operator, params)
    dtype = getattr(torch, case.dtype)
    x, *rest = [_numbers(torch, s, dtype) for s in reference.inputs]
    d = reference.sizes
    if reference.kernel == "matmul":
        left = x.transpose(-1, -2) if d[4] else x
        right = rest[0].transpose(-1, -2) if d[5] else rest[0]
        return lambda: torch.matmul(left, right)
    if reference.kernel == "conv2d":
        weight = rest[0].reshape(d[4], d[1] // d[15], d[5], d[6])
        padded, pads = _padded(functional, x, d[2:4], d[5:7], d[7:9], d[9:11], d[11:13], d[13:15])
        options = {"stride": d[9:11], "padding": pads, "dilation": d[11:13], "groups": d[15]}
        return lambda: functional.conv2d(padded, weight, None, **options)
    if reference.kernel == "pool2d":
        # Where both sides are not padded alike, torch's windows may hang over the end: what is outside does not count.
        over = not _alike(d[0:2], d[2:4], d[4:6], d[6:8], d[8:10], d[10:12])
        if d[12]:
            return lambda: functional.avg_pool2d(x, d[2:4], d[6:8], d[10:12], over, False)
        return lambda: functional.max_pool2d(x, d[2:4], d[6:8], d[10:12], d[8:10], over)
    if reference.kernel == "relu":
        return lambda: torch.relu(x)
    axes = resolve_axes(case.operator, p["shape"], p["axis"])
    return lambda: torch.sum(x, dim=axes)


def _numbers(torch: Any, shape: Any, dtype: Any) -> Any:
    """Return random multiples of 1/128, like our kernels' inputs: fuller fractions would lower the clock."""
    return torch.empty(shape, dtype=dtype, device="cuda").uniform_(-1, 1).mul_(128).round_().div_(128)


def _padded(
    functional: Any, x: Any, size: Any, kernel: Any, out: Any, stride: Any, dilation: Any, before: Any
) -> tuple[Any, tuple[int, int]]:
    """Return the image and the padding left to torch; if the two sides' padding differs, the image is padded here."""
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    needed = [(o - 1) * s + r for o, s, r in zip(out, stride, reach, strict=True)]
    after = [max(0, n - e - b) for n, e, b in zip(needed, size, before, strict=True)]
    if _alike(size, kernel, out, stride, dilation, before):
        return x, (before[0], before[1])
    return functional.pad(x, (before[1], after[1], before[0], after[0])), (0, 0)


def _alike(size: Any, kernel: Any, out: Any, stride: Any, dilation: Any, before: Any) -> bool:
    """Return True if equal padding on both sides gives the same number of outputs."""
    return all(
        (e + 2 * b - (k - 1) * d - 1) // s + 1 == o
        for e, k, o, s, d, b in zip(size, kernel, out, stride, dilation, before, strict=True)
    )


def time_case(torch: Any, case: Case, flush: Any, budget_us: float) -> Iterator[dict[str, Any]]:
    """Yield a result for each mode in which torch may compute the case."""
    if case.operator == RTASKS:
        yield {"mode": case.dtype, "why": "a graph of operators, held against the same operators one by one"}
        return
    reference = reference_of(case.operator, parse_params(case.params))
    run = call_of(torch, case, reference)
    shape = tuple(run().shape)
    if shape != reference.output:
        yield {"mode": case.dtype, "why": f"torch's result has the shape {shape}, not {reference.output}"}
        return
    for mode in MODES[case.dtype]:
        if mode == "tfloat32" and reference.kernel not in PRODUCTS:
            continue
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = mode == "tfloat32"
        yield {"mode": mode, "us": _sampled(torch, run, flush, budget_us)}


def _sampled(torch: Any, run: Callable[[], Any], flush: Any, budget_us: float) -> dict[str, Any]:
    """Time a call as the kit times its own kernels (`measure.samples`)."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    wait = getattr(torch.cuda, "_sleep", None)

    def hold(us: float) -> None:
        if wait:
            wait(int(us * CYCLES))

    def stop() -> float:
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e3

    run()  # libraries choose their kernels
    return samples(run, budget_us, flush.zero_, hold, start.record, stop)


def main(words: list[str] | None = None) -> int:
    """Run the process; return its exit code."""
    args, say = begin(words)
    say({"at": "import of torch"})
    try:
        import torch
    except Exception as error:  # absent, or broken in any way
        say({"error": f"torch cannot be imported: {error}"})
        return 0
    if not torch.cuda.is_available():
        say({"error": "torch sees no card"})
        return 0
    torch.backends.cudnn.benchmark = True
    torch.cuda.set_device(args.card)
    properties = torch.cuda.get_device_properties(args.card)
    facts = {"torch": torch.__version__, "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
    say({"facts": {**facts, "device": properties.name}})
    flush = torch.empty(max(1 << 20, getattr(properties, "L2_cache_size", 1 << 26)) * FLUSHED, dtype=torch.uint8,
                        device="cuda")  # fmt: skip
    for line in sys.stdin:
        task = json.loads(line)
        case = Case(**task["case"])
        say({"at": str(case)})
        try:
            for result in time_case(torch, case, flush, task["budget_us"]):
                say({"result": result})
        except torch.cuda.OutOfMemoryError as error:
            say({"result": {"mode": case.dtype, "why": str(error).splitlines()[0]}})
        except RuntimeError as error:
            say({"error": str(error).splitlines()[0]})
            return 1
        torch.cuda.empty_cache()
        say({"done": True})
    return 0


if __name__ == "__main__":
    sys.exit(main())
