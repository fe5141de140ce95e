"""Options of the whole test run."""

from pathlib import Path

import pytest


def pytest_addoption(parser):
    parser.addoption(
        "--update-golden", action="store_true", help="write the golden files anew instead of comparing"
    )


@pytest.fixture
def golden(request):
    """``golden(name, text)`` compares with the file golden/<name>.txt beside the test."""

    def check(name, text):
        path = Path(request.node.path).parent / "golden" / f"{name}.txt"
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        assert path.exists(), f"{path} is missing: run pytest with --update-golden, and read what it writes"
        assert text == path.read_text(), (
            f"differs from {path.name}; if meant, run pytest with --update-golden"
        )

    return check
