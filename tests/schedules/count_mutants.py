"""How many wrong kernels does the prover refute? A line a mutant; an interrupted run goes on where it stopped.

.venv/relax/bin/python -m tests.schedules.count_mutants --output build/proof_mutants.jsonl [--seconds 600]
"""

import argparse
import json
import time
from collections import Counter
from pathlib import Path

from roller_tvm.schedules.proofs import prove_lowered

from .mutants import OTHER_VALUES, answer, confirmed, is_wrong, is_wrong_for, mutants
from .sums_of_products import PRODUCTS
from .test_instances import lowered
from .test_mutants import CASES, tensors_of

MORE = ["matmul m=5 n=12 k=6", "matmul m=12 n=8 k=4", "batch_matmul b=2 m=4 n=6 k=5", "add shape=3x40",
        "dense m=3 n=8 k=12 bias=1 relu=1", "transpose shape=5x4x6 perm=2,0,1", "softmax shape=3x16",
        "conv2d_nchw n=1 c=3 h=5 w=5 f=2 kh=3 kw=3 stride=2", "conv2d_nhwc n=1 c=4 h=5 w=5 f=4 k=3 padding=1",
        "depthwise_conv2d_nchw n=1 c=3 h=6 w=6 k=3 padding=1", "layer_norm shape=3x12",
        "avg_pool2d_nchw n=1 c=2 h=6 w=6 k=2 stride=2", "reduce_max shape=5x12 axis=1",
        "reduce_sum shape=6x20 axis=0", "relu shape=7x9", "global_avg_pool2d_nchw n=1 c=3 h=4 w=4",
        "matmul m=16 n=16 k=16", "conv2d_nchw n=1 c=4 h=4 w=4 f=8 kh=1 kw=1"]  # fmt: skip

#: Kernels with int64 indices, as models of the Relax line have them.
WIDE = ["conv2d_nchw n=1 c=2 h=6 w=6 f=4 kh=3 kw=3 padding=1", "matmul m=5 n=12 k=6", "softmax shape=4x10",
        "depthwise_conv2d_nchw n=1 c=3 h=6 w=6 k=3 padding=1", "add shape=3x40",
        "max_pool2d_nchw n=1 c=2 h=7 w=7 k=3 stride=2 padding=1", "transpose shape=5x4x6 perm=2,0,1",
        "conv2d_nhwc n=1 c=4 h=5 w=5 f=4 k=3 padding=1"]  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=3600.0, help="time after which it stops; default %(default)s")
    args = parser.parse_args()
    args.output.parent.mkdir(parents=True, exist_ok=True)
    rows = [json.loads(line) for line in args.output.read_text().splitlines()] if args.output.exists() else []
    done, until = {(row["kernel"], row["mutant"]) for row in rows}, time.monotonic() + args.seconds
    with args.output.open("a") as file:
        for words, name in [
            *((w, d) for w in PRODUCTS for d in ("avx2", "v100")),
            *CASES,
            *((w, d) for w in MORE for d in ("avx2", "v100")),
            *((w, f"{d} int64") for w in WIDE for d in ("avx2", "v100")),
        ]:
            for row in judged(words, name, done):
                rows.append(row)
                file.write(json.dumps(row) + "\n")
                file.flush()
                if time.monotonic() > until:
                    return tell(rows)
    return tell(rows)


def judged(words, name, done):
    """Yield (kernel, mutant, wrong by a run, the proof's answer) of the mutants of a kernel that are not done."""
    kernel = f"{words} {name}"
    if (kernel, "all") in done:
        return
    made = PRODUCTS.get(words)
    func, reference, blocks = lowered(tensors_of(words) if made is None else made(), *name.split())
    try:
        right = answer(reference)
        good = not is_wrong(func, right)
    except (NotImplementedError, KeyError):  # the run knows not each function
        yield {"kernel": kernel, "mutant": "all", "wrong": None, "answer": "not run"}
        return
    assert good, kernel
    proof = prove_lowered(func, reference, blocks=blocks).answer
    if (kernel, "none") not in done:
        yield {"kernel": kernel, "mutant": "none", "wrong": False, "answer": proof}
    for mutant, changed in mutants(func):
        if (kernel, mutant) not in done:
            found = prove_lowered(changed, reference, blocks=blocks)
            refuted = [f for f in found.findings if f.answer == "refuted"]
            wrong = is_wrong(changed, right) or any(is_wrong_for(changed, reference, f) for f in refuted)
            row = {"kernel": kernel, "mutant": mutant, "wrong": wrong, "answer": found.answer}
            if row["wrong"]:
                row["shown"] = [f.rule for f in refuted if confirmed(changed, reference, f)]
                row["not shown"] = [str(f) for f in refuted if f.rule not in row["shown"]]
            yield row
    yield {"kernel": kernel, "mutant": "all", "wrong": None, "answer": "done"}


def tell(rows):
    """Print the totals, and what is missed."""
    wrong = [row for row in rows if row["wrong"]]
    right = Counter(row["answer"] for row in rows if row["wrong"] is False)
    missed = [row for row in wrong if row["answer"] != "refuted"]
    for row in missed:
        print(f"{row['kernel']}, {row['mutant']}: {row['answer']}")
    kernels = len({row["kernel"] for row in rows if row["wrong"] is not None})
    print(f"{len(wrong) - len(missed)} of {len(wrong)} wrong kernels are refuted (mutants of {kernels} kernels)")
    placed = [row for row in wrong if not row["mutant"].startswith(OTHER_VALUES)]
    print(f"of {len(placed)} with other elements {sum(row['answer'] == 'refuted' for row in placed)} are; "
          f"{sum(row['answer'] == 'proven' for row in wrong)} of all are proven")  # fmt: skip
    named = [row for row in wrong if row["answer"] == "refuted"]
    print(f"of {len(named)}, {sum(bool(row['shown']) for row in named)} have a witness that a run shows")
    rules = Counter(row["mutant"].rsplit(" ", 1)[0] for row in wrong)
    print(", ".join(f"{count} {rule}" for rule, count in rules.most_common()))
    print(f"of those that compute the same: {dict(right)}")


if __name__ == "__main__":
    main()
