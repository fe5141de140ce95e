"""A run that explores, without TVM: a table of made-up times, a disk that is full."""

import errno

import pytest

from roller_tvm.errors import DiskFull
from roller_tvm.explore import running
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
    monkeypatch.setattr(running.time, "perf_counter", lambda: now[0])

    def way(seconds):
        def run():
            now[0] += seconds

        return run

    found = running.faster(way(taken), way(other), Rule(), None, ready.append)
    assert found[0] == worth and found[1:] == pytest.approx((taken, other), rel=1e-6)
    assert ready[:4] == [0, 1, 0, 1] and len(ready) == 2 * Rule().first  # the first look suffices
    assert running.faster(way(taken), way(other), Rule(), 0.0)[0] is False  # there is no time for a look
