"""Options of the whole test run, and which of TVM's two lines a test needs.

One process imports one TVM, so each line's tests run in an environment of their own. A module says its line
(``pytestmark = pytest.mark.tvm``, ``relax``, ``te``), or it follows from its folder; where the TVM here is of
another line the module is not even imported, and shows as skipped.
"""

import gc
import importlib
import inspect
import math
import os
import re
import signal
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from roller_tvm import disk_cache
from roller_tvm.device import cpu_profile
from roller_tvm.device.cpu_measure import estimated_profile
from roller_tvm.schedules.proofs import prove
from roller_tvm.tuning import supervise
from roller_tvm.tvm_env import line
from tests import forks, llvm_level
from tests.cpu_seconds import CpuSeconds
from tests.plan.devices import facts_of

TESTS = Path(__file__).parent
NEEDS = {
    "tvm": ("relay", "a TVM of the Relay line: make venv, .venv/relay"),
    "relax": ("relax", "a TVM of the Relax line: make venv, .venv/relax"),
    "te": ("relay or relax", "a TVM, of either line"),
}
FOLDERS = {"tir": "relax", "relax": "relax", "torch": "relax"}
#: Answers are compared to the last bit.
OPTIMISED = ("trust",)
MARK = re.compile(rf"^pytestmark = .*\bpytest\.mark\.({'|'.join(NEEDS)})\b", re.M)
LINE = line()
START_WORKER = supervise.spawn
CPUS = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
# Threads of TVM's pool that have no work sleep at once. They would spin a tenth of a second on the other suite's core.
os.environ.setdefault("TVM_THREAD_POOL_SPIN_COUNT", "0")
# Syntax trees and plans are many small objects without circles: Python's 700 cost a seventh of the core's tests.
gc.set_threshold(100_000, 50, 100)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a job in the background of a shell
    signal.signal(signal.SIGINT, signal.default_int_handler)


def missing(mark):
    """Why tests with this marker cannot run here, or None."""
    lines, what = NEEDS[mark]
    return None if LINE in lines.split(" or ") else f"needs {what}"


def mark_of(path):
    """The line that a test module needs as a whole, or None: it says so itself, or its folder does."""
    named = MARK.search(path.read_text(encoding="utf-8"))
    return named[1] if named else FOLDERS.get(path.relative_to(TESTS).parts[0])


#: Folders whose tests both lines must pass, each case on each.
CONTRACTS = ("line",)


class OtherLine(pytest.Module):
    """A test module for another TVM than the one here."""

    def collect(self):
        pytest.skip(missing(mark_of(self.path)), allow_module_level=True)


def pytest_pycollect_makemodule(module_path, parent):
    mark = mark_of(module_path) if TESTS in module_path.parents else None
    return OtherLine.from_parent(parent, path=module_path) if mark and missing(mark) else None


def pytest_collection_finish():
    gc.collect()
    gc.freeze()  # what is imported is not looked through again, here and in forks


def of_other_line(config, items):
    """Tests marked ``one_line`` that the other line runs: all, or every second case. None if tests are named.

    Several cases of a test of either line are so marked by themselves, but in `CONTRACTS`.
    """
    if config.getoption("--nightly") or config.getoption("keyword") or any("::" in arg for arg in config.args):
        return
    functions = defaultdict(lambda: defaultdict(list))
    for item in items:
        marks = list(item.iter_markers("one_line"))
        named = [line for mark in marks for line in mark.args]  # of a case, or of all cases of its function
        if named and LINE not in named:
            yield item
        elif (marks or shared(item)) and not named and not item.get_closest_marker("nightly"):
            functions[item.path][item.originalname].append(item)
    for cases_of in functions.values():
        for n, cases in enumerate(cases_of.values()):
            if len(cases) > 1 or cases[0].get_closest_marker("one_line"):
                yield from cases[(n + (LINE == "relay")) % 2 :: 2]


def shared(item):
    """Whether a test needs a TVM of either line and is none of the contracts that each must pass."""
    return item.get_closest_marker("te") and item.path.relative_to(TESTS).parts[0] not in CONTRACTS


def pytest_collection_modifyitems(config, items):
    for item in list(of_other_line(config, items)):
        item.add_marker(pytest.mark.skip(reason="the other line runs it; both in make nightly"))
    for item in items:
        if item.get_closest_marker("nightly") and not config.getoption("--nightly"):
            item.add_marker(pytest.mark.skip(reason="runs in make nightly"))
        if mark_of(item.path) == "relax" and not item.get_closest_marker("relax"):
            item.add_marker("relax")
        for mark in NEEDS:
            if item.get_closest_marker(mark) and (why := missing(mark)):
                item.add_marker(pytest.mark.skip(reason=why))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Fork workers from a server that has TVM, in tests that start many and are not marked ``real_workers``."""
    many = any(map(item.get_closest_marker, NEEDS)) or (LINE and item.path.parent.name == "bench")
    supervise.spawn = fork_worker if many and not item.get_closest_marker("real_workers") else START_WORKER
    optimised = item.get_closest_marker("optimised") or item.path.parent.name in OPTIMISED
    nightly = item.config.getoption("--nightly")
    os.environ[llvm_level.VARIABLE] = "" if optimised or nightly else llvm_level.LITTLE


def fork_worker(words, log, env, inherited=()):
    with open(os.devnull, "rb") as nothing:
        streams = nothing.fileno(), log.fileno(), log.fileno()
        return forks.start(words, *streams, pass_fds=inherited, env=env, new_session=True)


def pytest_configure(config):
    """Let the device "cpu" of this process be the same on every machine: two cores with AVX2, not measured.

    From the start, because modules ask for their device when they are collected.
    """
    os.environ[disk_cache.VARIABLE] = "off"  # plans are constructed, here and in child processes
    facts, stored = facts_of("avx2", cores=2), cpu_profile._stored
    spec = cpu_profile._report(facts, estimated_profile(facts), "", cpu_profile.cache_path(facts), True, 0.0, [])
    patch = pytest.MonkeyPatch()
    patch.setattr(cpu_profile, "detected", lambda: facts)
    patch.setattr(cpu_profile, "_stored", lambda path, of: spec if of is facts else stored(path, of))
    patch.setattr(prove, "SECONDS", math.inf)  # a proof ends after so much work alone, the same on each machine
    config.add_cleanup(patch.undo)
    if config.getoption("--cpu"):
        config.pluginmanager.register(CpuSeconds(config.getoption("--cpu")))


def pytest_addoption(parser):
    parser.addoption("--nightly", action="store_true", help="run what is too long for every change, too")
    parser.addoption("--cpu", type=int, default=0, metavar="N", help="list the N files and tests of most CPU seconds")
    parser.addoption("--update-golden", action="store_true", help="write the golden files anew instead of comparing")


@pytest.fixture(scope="session", autouse=True)
def tensor_intrinsics():
    """Import TVM's tensor intrinsics at once: each takes its whole stack apart, and under pytest that is deep."""
    if LINE == "relax" and "tvm" in sys.modules:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(inspect, "stack", lambda context=1: [])  # they are defined in no class
            importlib.import_module("tvm.s_tir.tensor_intrin")


@pytest.fixture(scope="session", autouse=True)
def llvm_optimises_little():
    if "tvm" in sys.modules:
        llvm_level.stand_before_llvm()


@pytest.fixture(autouse=True)
def all_cpus():
    """Give the CPUs back that TVM's pool took: it binds the thread that runs a kernel, and with it what it starts."""
    yield
    if CPUS and os.sched_getaffinity(0) != CPUS:
        os.sched_setaffinity(0, CPUS)


@pytest.fixture(scope="module")
def kept_kernels(tmp_path_factory):
    """Compile each kernel once for all tests of a module, as a user's are: they build one model."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("kept")))
        patch.delenv(disk_cache.VARIABLE)
        yield


@pytest.fixture
def golden(request):
    """``golden(name, text)`` compares with the file golden/<name>.txt beside the test."""

    def check(name, text):
        path = Path(request.node.path).parent / "golden" / f"{name}.txt"
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        assert path.exists(), f"{path} is missing: run pytest with --update-golden, and read what it writes"
        assert text == path.read_text(), f"differs from {path.name}; if meant, run pytest with --update-golden"

    return check


@pytest.fixture
def pocl(request):
    """OpenCL on the CPU, or a skip that says what is missing; a nightly run without its witness is a failed one."""
    from roller_check.pocl import queue
    from roller_tvm.errors import ToolchainError

    try:
        queue()
    except ToolchainError as error:
        missing_it = pytest.fail if request.config.getoption("--nightly") else pytest.skip
        missing_it(f"{error.what}: {error.remedy}")


@pytest.fixture
def said(monkeypatch):
    """Names of forms that are said to be faster, and those that were run; two threads may be had, none was asked."""
    from roller_tvm import forms, session
    from roller_tvm.explore.running import Verdict
    from roller_tvm.tvm_env import threads

    monkeypatch.setattr(threads, "_asked", None)
    monkeypatch.delenv(threads.ENVIRONMENT, raising=False)
    monkeypatch.setattr(session, "use_threads", lambda given=None, otherwise=None: given or min(otherwise, 2))
    monkeypatch.setattr(forms, "wanted_threads", lambda otherwise=None: otherwise)
    told = {"faster": [], "ran": [], "why": ""}
    keep = forms.Forms._keep

    def kept(own, form, worth):
        told["ran"].append(form.name)
        keep(own, form, form.name in told["faster"])
        return worth

    def tried(own, form):
        with monkeypatch.context() as patch:
            answer = Verdict(form.name in told["faster"], 2e-6, 1e-6, told["why"])
            patch.setattr(forms, "faster", lambda plain, other, rule, end, ready, here: (ready(1), other(), answer)[-1])
            return original(own, form)

    original = forms.Forms._tried
    monkeypatch.setattr(forms.Forms, "_keep", kept)
    monkeypatch.setattr(forms.Forms, "_tried", tried)
    return told
