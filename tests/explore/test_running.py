"""A run that explores, without TVM: a table of made-up times, a disk that is full."""

import errno

import pytest

from roller_tvm.errors import DiskFull
from roller_tvm.explore import running, waiting
from roller_tvm.explore.dispatch import Site, Variant
from roller_tvm.explore.rule import Rule

SITE = Site("dense", ("a", "b"), (Variant("k0", (0,)), Variant("k1", (0,))))


class Table:
    """Kernels that take 2 and 1 us."""

    lazy = False

    def choose(self, variants):
        self.chosen = list(variants)

    def start(self):
        pass

    def seconds(self):
        return [(2e-6, 1e-6)[n] for n in self.chosen]


def exploration(state):
    return running.Exploration([SITE], {"dense": "c"}, Table(), lambda x: x + 1, state=state)


def test_a_full_disk_fails_no_run_and_is_told_at_the_end(tmp_path, monkeypatch):
    def full(path):
        raise OSError(errno.ENOSPC, "No space left on device")

    made = exploration(tmp_path / "state")
    made.explore([1], runs=3)
    kept = (tmp_path / "state").read_text()
    with monkeypatch.context() as patch:
        patch.setattr(running, "beside", full)
        patch.setattr(running, "KEEP_S", -1.0)
        assert [made.run(n) for n in range(3)] == [1, 2, 3]
        with pytest.raises(DiskFull, match="earlier is intact"):
            made.explore([1], runs=1)
        assert (tmp_path / "state").read_text() == kept
    made.explore([1])
    assert made.done and exploration(tmp_path / "state").done


@pytest.mark.parametrize("taken, other, worth", [(1.0, 0.5, True), (1.0, 1.5, False), (1.0, 0.99, False)])
def test_two_ways_of_running_a_model_are_compared_until_it_is_known(monkeypatch, taken, other, worth):
    now, ready = [0.0], []
    monkeypatch.setattr(waiting, "_threads", dict)
    monkeypatch.setattr(running.time, "perf_counter", lambda: now[0])

    def way(seconds):
        def run():
            now[0] += seconds

        return run

    found = running.faster(way(taken), way(other), Rule(), None, ready.append)
    assert found.worth == worth and not found.why
    assert (found.before_s, found.after_s) == pytest.approx((taken, other), rel=1e-6)
    pairs = [tuple(ready[n : n + 2]) for n in range(0, len(ready), 2)]
    assert set(pairs) == {(0, 1), (1, 0)}, "the order of a pair says nothing"
    assert len(pairs) == Rule().first * (running.REPEATED if worth else 1)  # the first look suffices
    late = running.faster(way(taken), way(other), Rule(), 0.0)
    assert not late.worth and late.why == running.SPENT  # there is no time for a look


def test_others_on_the_machine_decide_nothing(monkeypatch):
    times, ran = iter([(0, 0), (90, 10), (90, 10)]), []
    monkeypatch.setattr(waiting, "_threads", lambda: {"1": next(times)})
    found = running.faster(lambda: running.time.sleep(1e-3), lambda: ran.append(1), Rule())
    assert not found.worth and "waited 10% of their time" in found.why
    assert len(ran) == Rule().first, "the first look sees it: runs are long then"


def test_waiting_is_counted_of_all_threads_and_blocks(monkeypatch):
    times = iter([{"1": (0, 0)}, {"1": (60, 0), "2": (40, 4)}, {"1": (60, 0)}, {"1": (70, 0), "2": (90, 0)}, {}, {}])
    monkeypatch.setattr(waiting, "_threads", lambda: next(times))
    counted = waiting.Waiting()
    for _ in range(3):
        with counted:
            pass
    assert (counted.ran_ns, counted.waited_ns) == (200, 4) and not counted.busy
    assert waiting.Waiting().share == 0.0
