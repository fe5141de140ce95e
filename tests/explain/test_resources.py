"""Compiled resources beside predicted ones."""


from roller_tvm.device import load_device
from roller_tvm.planner.explain.resources import ResourcesCompared, resource_lines


def test_occupancy_follows_from_what_was_compiled():
    v100 = load_device("v100")
    one = ResourcesCompared.from_numbers(v100, 256, 128, 16384, 64, 40000, 16)
    assert one.occupancy == (2, 2) and one.limit == "shared memory"
    (_, _, line) = resource_lines([one], "compiled for sm_70")
    assert " ".join(line.split()) == "1 256 128 | 64 16 B 16384 | 40000 B 2 | 2 shared memory"


def test_more_registers_than_a_thread_can_have_are_predicted_as_the_most():
    v100 = load_device("v100")
    assert ResourcesCompared.from_numbers(v100, 256, 400, 0, 255, 0, 640).occupancy == (1, 1)
