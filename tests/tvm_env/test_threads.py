import os
import subprocess
import sys

import pytest

from roller_tvm.errors import UsageError
from roller_tvm.tvm_env.threads import ENVIRONMENT, set_threads

IMPORT = """
import warnings, tvm
from roller_tvm.tvm_env import set_threads
n = tvm.get_global_func("runtime.NumThreads")
"""
CPUS = len(os.sched_getaffinity(0))


@pytest.mark.parametrize("count", [0, -1, 1.0, "2", True])
def test_count_is_checked(count):
    with pytest.raises(UsageError, match="'count' must be an int >= 1"):
        set_threads(count)


def test_child_processes_inherit(monkeypatch):
    monkeypatch.setenv(ENVIRONMENT, "7")  # so that it is restored
    monkeypatch.delitem(sys.modules, "tvm", raising=False)
    assert set_threads(3) == 3
    assert os.environ[ENVIRONMENT] == "3"


@pytest.mark.te
@pytest.mark.parametrize(
    ("code", "shown"),
    [
        (f"print(set_threads({CPUS}), n())", f"{CPUS} {CPUS}"),
        (f"set_threads({CPUS}); print(set_threads(1), n())", "1 1"),
        # TVM binds the caller of a pool of one to a CPU, which processes started later would share.
        (f"set_threads({CPUS}); n(); set_threads(1); import os; print(len(os.sched_getaffinity(0)))", str(CPUS)),
        ("set_threads(1); import os; print(len(os.sched_getaffinity(0)))", str(CPUS)),
        # A pool that runs already cannot grow: said, not hidden.
        (
            "set_threads(1)\nwith warnings.catch_warnings(record=True) as w:\n"
            "    warnings.simplefilter('always'); print(set_threads(2), n(), len(w))",
            "1 1 1",
        ),
    ],
)
def test_pool_really_has_that_size(code, shown):
    done = subprocess.run([sys.executable, "-c", IMPORT + code], capture_output=True, text=True)
    assert done.stdout.strip() == shown, done.stderr
