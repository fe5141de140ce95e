"""Timing in turns: all kernels once a round."""

from roller_bench.timing import Timer, rounds_in_turns, typical


def test_all_kernels_once_a_round_the_first_time_not_counted():
    told = []

    def timer(name):
        return Timer(lambda: None, lambda number, times: told.append((name, times)) or [1.0] * times)

    found = rounds_in_turns([timer(0), timer(1)], rounds=2, times=3)
    assert told == [(0, 1), (0, 3), (1, 1), (1, 3)] * 2
    assert [[len(times) for times in rounds] for rounds in found] == [[3, 3], [3, 3]] and typical(found[0]) == 1.0
