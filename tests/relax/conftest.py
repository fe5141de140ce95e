"""Fixtures of several files."""

import pytest


@pytest.fixture
def emulated(monkeypatch):
    """Builds whose matrix unit is emulated; their lists of notes."""
    from roller_tvm.relax import pipeline
    from roller_tvm.relax.matrix_products import MatrixProducts

    from .test_matrix_products import UNIT

    made = []

    def matrices(target, _device):
        made.append(MatrixProducts(target, UNIT, emulated=True))
        return made[-1]

    monkeypatch.setattr(pipeline, "MatrixProducts", matrices)
    return made
