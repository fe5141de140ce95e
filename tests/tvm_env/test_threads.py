import json
import os
import subprocess
import sys

import pytest

from roller_tvm.errors import UsageError
from roller_tvm.tvm_env import threads
from roller_tvm.tvm_env.threads import BINDING, ENVIRONMENT, set_threads, wanted_threads

# Imports TVM, then executes each request in a fork, whose pool of threads is not made yet.
SERVER = """
import contextlib, io, json, os, sys, traceback, tvm
for line in sys.stdin:
    code, environment, cpus = json.loads(line)
    reads, writes = os.pipe()
    if (child := os.fork()) == 0:
        shown = io.StringIO()
        os.environ.update(environment)
        if cpus:
            os.sched_setaffinity(0, cpus)
        with contextlib.redirect_stdout(shown):
            try:
                exec(code, {})
            except BaseException:  # the child's traceback is what the test reads
                traceback.print_exc(file=shown)
        os.write(writes, json.dumps(shown.getvalue().strip()).encode())
        os._exit(0)
    os.close(writes)
    with open(reads) as told:
        print(told.read() or json.dumps("died"), flush=True)
    os.waitpid(child, 0)
"""
IMPORT = """
import os, warnings, tvm
from roller_tvm.tvm_env import set_threads, use_threads
n = tvm.get_global_func("runtime.NumThreads")
"""
CPUS = len(os.sched_getaffinity(0))


@pytest.mark.parametrize("count", [0, -1, 1.0, "2", True])
def test_count_is_checked(count):
    with pytest.raises(UsageError, match="'count' must be an int >= 1"):
        set_threads(count)


def test_child_processes_inherit(monkeypatch):
    monkeypatch.setenv(ENVIRONMENT, "7")  # so that it is restored
    monkeypatch.setenv(BINDING, "1")
    monkeypatch.setattr(threads, "_asked", None)
    monkeypatch.setattr(threads, "_written", None)
    monkeypatch.delitem(sys.modules, "tvm", raising=False)
    assert set_threads(3) == 3
    assert os.environ[ENVIRONMENT] == "3"


@pytest.mark.te
@pytest.mark.parametrize(
    ("code", "shown"),
    [
        (f"print(set_threads({CPUS}), n())", f"{CPUS} {CPUS}"),
        (f"set_threads({CPUS}); print(set_threads(1), n())", "1 1"),
        # A pool made here is large enough for all CPUs, whatever was asked for first.
        (f"set_threads(1); print(set_threads({CPUS}), n())", f"{CPUS} {CPUS}"),
        # TVM binds the caller of a pool of one to a CPU, which processes started later would share.
        (f"set_threads({CPUS}); n(); set_threads(1); import os; print(len(os.sched_getaffinity(0)))", str(CPUS)),
        ("set_threads(1); import os; print(len(os.sched_getaffinity(0)))", str(CPUS)),
        # Neither the default nor an argument undoes what the user asked for.
        (f"set_threads(1); use_threads({CPUS}); print(use_threads(), n())", "1 1"),
        (f"print(use_threads(1), n(), use_threads(otherwise={CPUS}), n())", f"1 1 {CPUS} {CPUS}"),
    ],
)
def test_pool_really_has_that_size(run, code, shown):
    assert run(code) == shown


@pytest.mark.te
def test_a_pool_that_was_made_smaller_cannot_grow_and_it_is_said(run):
    code = (
        "import os; os.environ['TVM_NUM_THREADS'] = '1'; n(); del os.environ['TVM_NUM_THREADS']\n"
        "with warnings.catch_warnings(record=True) as w:\n"
        "    warnings.simplefilter('always'); print(set_threads(2), n(), len(w));"
        " print('TVM_NUM_THREADS=2' in str(w[0].message))"
    )
    assert run(code) == "1 1 1\nTrue"


@pytest.mark.te
@pytest.mark.parametrize("package", ["relay", "relax"])
def test_importing_a_line_lets_pools_take_every_core(run, package, cores):
    assert run(f"import roller_tvm.{package}; print(n())") == str(cores)
    assert run(f"import roller_tvm.{package}; print(n())", TVM_NUM_THREADS="1") == "1"


@pytest.mark.te
def test_a_process_with_one_cpu_keeps_its_mask(run):
    one = max(os.sched_getaffinity(0))
    code = "import roller_tvm.relay; print(n(), sorted(os.sched_getaffinity(0)))"
    assert run(code, cpus={one}) == f"1 [{one}]"


def test_a_number_that_is_none_is_told(monkeypatch):
    monkeypatch.setattr(threads, "_asked", None)
    monkeypatch.setenv(ENVIRONMENT, "many")
    with pytest.warns(RuntimeWarning, match="must be an int >= 1 .got 'many'.") as told:
        assert wanted_threads(1) == 1
    assert "unset TVM_NUM_THREADS" in str(told[0].message)


@pytest.fixture(scope="module")
def cores():
    """Physical cores of a fresh process, which no pool has bound."""
    code = "from roller_tvm.device import detect_cpu; print(detect_cpu().cores)"
    return int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


@pytest.fixture(scope="module")
def run():
    """Executes code in a process of its own, as fresh as one that has imported TVM alone."""
    plain = {k: v for k, v in os.environ.items() if k not in (ENVIRONMENT, BINDING)}
    words = [sys.executable, "-c", SERVER]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=plain) as server:

        def execute(code, cpus=(), **environment):
            print(json.dumps([IMPORT + code, environment, list(cpus)]), file=server.stdin, flush=True)
            return json.loads(server.stdout.readline())

        yield execute
        server.stdin.close()


@pytest.mark.one_line("relax")
@pytest.mark.te
def test_a_thread_that_a_pool_has_bound_does_not_hide_the_other_cpus():
    code = (
        "import os; os.environ['TVM_NUM_THREADS'] = '1'; n()\n"
        "from roller_tvm.device import detect_cpu; print(len(os.sched_getaffinity(0)), detect_cpu().logical)"
    )
    environment = {**os.environ, BINDING: "1"}  # not a fork: detection asks the other threads, which it would not have
    done = subprocess.run([sys.executable, "-c", IMPORT + code], capture_output=True, text=True, env=environment)
    assert done.stdout.split() == ["1", str(CPUS)]
