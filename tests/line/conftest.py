"""The line that is here, once for all tests of the folder."""

import os
import sys

import pytest


@pytest.fixture(scope="session")
def subject():
    from .subjects import subject

    return subject()


@pytest.fixture
def workers_here(monkeypatch):
    """Let worker processes find the modules of the tests."""
    monkeypatch.setattr(sys, "path", [os.getcwd(), *sys.path])
