"""Drawings that reports share."""

from xml.etree import ElementTree

import pytest

from roller_tvm.svg import Drawing, Mark, Scale, beside


def points(drawing):
    root = ElementTree.fromstring(str(drawing))
    return [(float(e.get("cx")), float(e.get("cy"))) for e in root.iter() if e.tag.endswith("circle")]


def test_equal_values_lie_on_the_line():
    drawing = Drawing(300, 300, "pairs")
    beside(drawing, 50, 50, 200, ("a", "b", "c"), [("red", [Mark(2.0, 2.0), Mark(30.0, 30.0), Mark(2.0, 30.0)])])
    same, also, above = points(drawing)
    for x, y in (same, also):
        assert x - 50 == pytest.approx(250 - y, abs=0.2)
    assert above == (same[0], also[1])


@pytest.mark.parametrize("high", [m * 10.0**n for m in (1.0, 1.7, 3.0, 5.6, 9.99) for n in (-3, 0, 4)])
def test_ticks_are_round_and_few_and_on_the_axis(high):
    ticks = Scale(0.0, high, 50.0, 250.0).ticks
    step = ticks[1]
    assert ticks == [n * step for n in range(len(ticks))] and 3 <= len(ticks) <= 7
    assert ticks[-1] <= high * (1 + 1e-9) < ticks[-1] + step
    assert f"{step:.0e}"[0] in "125" and float(f"{step:.0e}") == pytest.approx(step)


def test_nothing_is_said():
    drawing = Drawing(300, 300, "<nothing>")
    beside(drawing, 50, 50, 200, ("a & b", "<", ">"), [("red", [])])
    assert "nothing measured" in str(drawing) and not points(drawing)
