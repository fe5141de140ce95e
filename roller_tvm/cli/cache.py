"""``roller-tvm cache``."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from roller_tvm.codegen.kernel_cache import cache_in
from roller_tvm.disk_cache import VARIABLE
from roller_tvm.folders import cache_folder
from roller_tvm.planner.plan_cache import PlanCache


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the verb."""
    parser.description = f"{parser.description} ${VARIABLE}=off keeps a command from using it."
    parser.add_argument("--clear", action="store_true", help="delete the plans and kernels")
    parser.add_argument("--json", action="store_true", help="print the contents as JSON")


def run(args: argparse.Namespace) -> int:
    """Print the contents, cleared if that is asked for."""
    caches = PlanCache(cache_folder()).disk, cache_in(cache_folder())
    if args.clear:
        for cache in caches:
            cache.clear()
    found = [cache.contents() for cache in caches]
    print(
        json.dumps([asdict(c) | {"path": str(c.path)} for c in found], indent=2)
        if args.json
        else "\n".join(map(str, found))
    )
    return 0
