"""``roller-tvm cache``."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from roller_tvm.folders import cache_folder
from roller_tvm.planner.plan_cache import VARIABLE, PlanCache


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the verb."""
    parser.description = f"{parser.description} ${VARIABLE}=off keeps a command from using it."
    parser.add_argument("--clear", action="store_true", help="delete the plans")
    parser.add_argument("--json", action="store_true", help="print the contents as JSON")


def run(args: argparse.Namespace) -> int:
    """Print the contents, cleared if that is asked for."""
    cache = PlanCache(cache_folder())
    if args.clear:
        cache.clear()
    found = cache.contents()
    print(json.dumps(asdict(found) | {"path": str(found.path)}, indent=2) if args.json else found)
    return 0
