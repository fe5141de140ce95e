"""The process that owns the card: tasks in, results out, each as one line of JSON.

The process ends after the first driver error, because a context broken by a kernel stays broken for its process. The
asking process starts another worker.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from roller_bench.kit.bench import profile
from roller_bench.kit.measure import Bench, answer
from roller_bench.kit.watchdog import begin
from roller_tvm.device.cuda_driver import LIBRARIES, DeviceCard, Driver
from roller_tvm.errors import RollerError

#: Paths of the driver in containers and WSL that the loader does not search.
ELSEWHERE = tuple(f"/usr/{at}/libcuda.so.1" for at in ("local/nvidia/lib64", "local/nvidia/lib", "lib/wsl/lib"))


def work(tasks: TextIO, say: Callable[[dict[str, Any]], None], ordinal: int, libraries: tuple[str, ...]) -> int:
    """Do the tasks read from `tasks` until there are no more, and say the results; return the exit code."""

    def at(step: str) -> None:
        say({"at": step})

    try:
        at("the driver")
        driver = Driver(libraries)
        at("the card")
        facts = driver.facts(ordinal)
        say({"facts": {**facts.to_dict(), "arch": facts.arch}})
        bench: Bench | None = None
        for line in tasks:
            task = json.loads(line)
            kit, arch = Path(task["kit"]), task["arch"]
            if task["do"] == "profile":
                at("profile")
                say({"result": profile(driver, ordinal, kit, arch)})
            else:
                if bench is None:
                    at("the card's memory")
                    bench = Bench(DeviceCard(driver, ordinal), kit, arch, at)
                if task["do"] == "floor":
                    at("an empty kernel")
                    say({"result": {"floor_us": bench.floor_us()}})
                else:
                    for result in answer(bench, task):
                        say({"result": result})
            say({"done": True})
    except RollerError as error:
        say({"error": error.what, "where": error.where, "remedy": error.remedy})
        return error.exit_code
    return 0


def main(words: list[str] | None = None) -> int:
    """Run the process; return its exit code."""
    args, say = begin(words)
    return work(sys.stdin, say, args.card, (args.driver,) if args.driver else (*LIBRARIES, *ELSEWHERE))


if __name__ == "__main__":
    sys.exit(main())
