"""Memory while a model is built."""

import resource
from pathlib import Path

import pytest

from roller_tvm.errors import RollerError
from roller_tvm.memory import LEAST_LEFT, check_memory


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system does not tell the memory of a process")
def test_a_limit_that_is_near_is_told_before_llvm_meets_it(monkeypatch):
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    for limit in (resource.RLIM_INFINITY, taken + 2 * LEAST_LEFT):
        monkeypatch.setattr(resource, "getrlimit", lambda _, limit=limit: (limit, limit))
        check_memory()
    monkeypatch.setattr(resource, "getrlimit", lambda _: (taken + LEAST_LEFT // 2, -1))
    with pytest.raises(RollerError, match=r"^\d+ MiB of memory are left below a limit of \d+ MiB") as caught:
        check_memory()
    assert caught.value.remedy == "give it more (ulimit -v)"
