#!/usr/bin/env python3
"""Execute fused kernels without waits in OpenCL on PoCL, and compare them operator by operator (Relax line).

    .venv/relax/bin/python python/rtask_on_pocl.py                              # branchy models, sizes divided by 16
    .venv/relax/bin/python python/rtask_on_pocl.py lstm model.onnx --arch sm_90 --policy best

Needs PoCL but no GPU. Code generator, compiler and barriers differ from the emulator's. With another policy than
'horizontal' most kernels have waits and are not executed. Exit code 1 if a kernel is wrong.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from roller_tvm.emulate import Checked, NotEmulated  # noqa: E402
from roller_tvm.errors import RollerError, WrongAnswer  # noqa: E402
from roller_tvm.planner.explain.words import table  # noqa: E402
from roller_tvm.rammer import POLICIES  # noqa: E402
from roller_tvm.rammer.cuda_functions import CannotFuse  # noqa: E402

BRANCHY = ("resnext", "nasnet_cell", "inception", "lstm", "seq2seq", "attention")
#: What a kernel's result is counted by; WRONG for all others.
STATES = ((Checked, "agree"), (CannotFuse, "wait, or cannot be fused so"), (NotEmulated, "not of PoCL's types"))
WRONG = "WRONG"


def module_of(model: str, scale: int) -> Any:
    """Return a branchy model by its name, or a model from a file."""
    from roller_tvm.relax import load_model
    from roller_tvm.relax.branchy import MODELS, PARTS, build

    return build(model, scale)[0] if model in {**MODELS, **PARTS} else load_model(model).mod


def state(result: Checked | RollerError) -> str:
    return next((name for kind, name in STATES if isinstance(result, kind)), WRONG)


def row(model: str, found: Mapping[str, Checked | RollerError], seconds: float) -> tuple[str, ...]:
    states = [*map(state, found.values())]
    told = [f"{states.count(name)}" for name in (*(name for _, name in STATES), WRONG)]
    elements = sum(r.elements for r in found.values() if isinstance(r, Checked))
    return (model, f"{len(found)}", *told, f"{elements}", f"{seconds:.0f}")


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=list(BRANCHY),
                        help="names from relax/branchy.py, or files; default all names")
    parser.add_argument("--arch", default="sm_80", help="architecture that is planned for; default sm_80")
    parser.add_argument("--scale", type=int, default=16, help="divisor of the branchy models' sizes; default 16")
    parser.add_argument("--policy", default="horizontal", choices=POLICIES)
    parser.add_argument("--launch", default="stream", choices=("stream", "graph"))
    parser.add_argument("--top", type=int, default=10, help="plans per operator; default 10")
    parser.add_argument("--out", type=Path, help="also write the table to this file")
    args = parser.parse_args(words)

    from roller_tvm.relax import check_fusion_on_pocl

    rows, wrong = [], False
    for model in args.models:
        start = time.perf_counter()
        found = check_fusion_on_pocl(module_of(model, args.scale), {"kind": "cuda", "arch": args.arch},
                                     policy=args.policy, launch=args.launch, top=args.top)  # fmt: skip
        rows.append(row(Path(model).stem, found, time.perf_counter() - start))
        wrong = wrong or any(state(r) == WRONG for r in found.values())
        for name, result in found.items():
            print(f"{model} {name}: {result}", flush=True)
    head = ("model", "fused kernels", *(name for _, name in STATES), WRONG, "elements compared", "s")
    options = {n: getattr(args, n) for n in ("arch", "scale", "policy", "launch", "top")}
    given = " ".join([*args.models, *(f"--{name} {value}" for name, value in options.items())])
    lines = table([head, *rows], left=1, indent="")
    text = "\n".join([f"python python/rtask_on_pocl.py {given}", "", *lines])
    print(f"\n{text}")
    if args.out:
        args.out.write_text(text + "\n", encoding="utf-8")
    return WrongAnswer.exit_code if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
