"""TVM's own tests of the Relax line with our builds: a plugin of pytest, and a comparison of two runs.

    T=tests/python/relax                                   # in a checkout of apache/tvm at the version of the TVM here
    pytest $T/test_vm_*.py --junitxml=plain.xml
    pytest -p roller_check.tvm_tests $T/test_vm_*.py --junitxml=ours.xml
    python -m roller_check.tvm_tests plain.xml ours.xml    # what passes under plain TVM alone; exit code 1 if any does

The plugin has each ``relax.build`` and ``tvm.compile`` for a CPU with TVM's default pipeline take ours.
"""

from __future__ import annotations

import functools
import sys
from collections import Counter
from pathlib import Path
from typing import Any

#: Builds that took our pipeline, and kernels that they planned.
COUNT = Counter[str]()


def pytest_configure(config: Any) -> None:  # noqa: ARG001
    """Replace the builds; pytest calls this."""
    import tvm
    from tvm import relax

    from roller_tvm.relax.pipeline import roller_pipeline

    by_tvm = relax.build

    def told(report: Any) -> None:
        COUNT["kernels"] += len(report.scheduled)

    @functools.wraps(by_tvm)
    def build(mod: Any, target: Any = None, params: Any = None, relax_pipeline: Any = "default", *rest: Any,
              **more: Any) -> Any:  # fmt: skip
        full = tvm.target.Target(target) if isinstance(target, (str, dict)) else target or tvm.target.Target.current()
        if relax_pipeline == "default" and full is not None and full.kind.name == "llvm":
            relax_pipeline = roller_pipeline(full, told=told)
            COUNT["builds"] += 1
        return by_tvm(mod, target, params, relax_pipeline, *rest, **more)

    for place in (relax, relax.vm_build):
        place.build = build


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Tell what the builds did; pytest calls this."""
    terminalreporter.write_line(f"roller-tvm: {COUNT['builds']} builds, {COUNT['kernels']} kernels planned")


def outcomes(path: Path) -> dict[str, str]:
    """Return the outcome of each test in a file of JUnit's: 'passed', 'skipped' or the first line of its failure."""
    from xml.etree import ElementTree

    found = {}
    for case in ElementTree.parse(path).iter("testcase"):
        name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
        failed = next((one for one in case if one.tag in ("failure", "error")), None)
        skipped = any(one.tag == "skipped" for one in case)
        said = (failed.get("message") or "").strip().splitlines() if failed is not None else []
        found[name] = "skipped" if skipped else "passed" if failed is None else (said or ["failed"])[0]
    return found


def main(words: list[str] | None = None) -> int:
    plain, ours = (outcomes(Path(word)) for word in (sys.argv[1:] if words is None else words))
    passing = [name for name, said in plain.items() if said == "passed"]
    lost = [name for name in passing if ours.get(name, "not run") != "passed"]
    for name in lost:
        print(f"{name}: {ours.get(name, 'not run')[:200]}")
    print(f"{len(passing)} pass under plain TVM, {len(passing) - len(lost)} of them under ours")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
