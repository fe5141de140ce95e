"""Drawings that reports share."""

from xml.etree import ElementTree

import pytest

from roller_tvm.svg import Drawing, Mark, beside


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


def test_nothing_is_said():
    drawing = Drawing(300, 300, "<nothing>")
    beside(drawing, 50, 50, 200, ("a & b", "<", ">"), [("red", [])])
    assert "nothing measured" in str(drawing) and not points(drawing)
