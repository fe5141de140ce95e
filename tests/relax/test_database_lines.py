"""Lines of a database that are gone, and notes that name other files."""

import json

import pytest

pytest.importorskip("tvm.relax")
pytestmark = pytest.mark.relax

from roller_tvm.errors import RecordWarning  # noqa: E402
from roller_tvm.relax.database import Store  # noqa: E402
from roller_tvm.relax.record_files import (  # noqa: E402
    NOTES,
    RECORDS,
    checksums,
    opened,
)

from . import modules as M  # noqa: E402
from .test_database import commit  # noqa: E402


def tuned(folder):
    with Store(folder, M.TARGET) as store:
        commit(store, M.matmul())
        commit(store, M.matmul(n=32))
    return folder


def test_a_last_line_that_is_gone_is_told(tmp_path):
    folder = tuned(tmp_path / "records")
    first, _ = (folder / RECORDS).read_text().splitlines()
    (folder / RECORDS).write_text(f"{first}\n")
    with pytest.warns(RecordWarning, match=f"{RECORDS}:2: the line is gone"):
        database = opened(folder)
    assert len(database.get_all_tuning_records()) == 1


@pytest.mark.parametrize("name", ["../elsewhere", "x" * 5000, "nul\0", ""])
def test_a_note_names_no_other_file(tmp_path, name):
    folder = tuned(tmp_path / "records")
    with (folder / NOTES).open("a") as notes:
        notes.write(json.dumps({"of": name, "line": 1, "sum": "0"}) + "\n")
    assert len(opened(folder).get_all_tuning_records()) == 2


def test_a_note_of_a_line_without_end_is_none():
    assert checksums(['{"of": "database_workload.json", "line": 1e400, "sum": "x"}']) == {}
