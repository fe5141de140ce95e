"""Record files whose writers are killed, or are several: nothing lost, nothing torn, readable at every moment."""

import json
import os
import random
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest

from roller_tvm.relay import records as R
from roller_tvm.tuning.claims import Claims

from ..sampling import NIGHTLY

#: Appends records as fast as it can, telling the number of each once it is written. The steps are long, so that a write
#: takes many pages: the system may stop a killed process between two of them.
WRITER = """
import json, sys
from roller_tvm.relay import records as R

path, name, count, steps = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
writer = R.RecordWriter(path)
for n in range(count):
    key = json.dumps([name, n])
    line = json.dumps({"i": [[key, "llvm"], [[], [["SP"] * (steps + 1)]]], "r": [[0.5], 0, 0.1, 17], "v": "v0.6"})
    writer.append(R.note_line(R.Note(f"{name} {n}", measured_s=0.5, trials=1)) + "\\n" + line + "\\n")
    print(n, flush=True)
"""


def python(code, *words):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path])}
    return subprocess.Popen([sys.executable, "-c", code, *map(str, words)], env=environment, text=True,
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip


def start(path, name, count, steps):
    return python(WRITER, path, name, count, steps)


def plain_lines(path):
    """What TVM's reader parses: every line that is not empty and begins with neither '#' nor a blank."""
    lines = Path(path).read_bytes().split(b"\n")
    return [R.parse(line.decode()) for line in lines if line[:1] not in (b"", b"#", b" ")]


@pytest.mark.parametrize("steps", [10, 40_000])
def test_killed_at_any_point_every_record_that_was_written_is_whole(tmp_path, steps):
    path = tmp_path / "r.json"
    told = set()
    chance = random.Random(steps)
    for life in range(6 if NIGHTLY else 3):
        writer = start(path, f"life {life}", 100_000, steps)
        writer.stdout.readline()
        time.sleep(chance.uniform(0.0, 0.15))
        writer.kill()
        lines = writer.stdout.read().splitlines()
        writer.wait()
        told |= {(f"life {life}", n) for n in range(1 + len(lines))}
        found = {tuple(json.loads(key)) for key, *_ in plain_lines(path)}  # none is half there
        assert told <= found, "what was said to be written is there"
    R.RecordWriter(path).append('{"i": [["[1]", "llvm"], [[], []]], "r": [[1], 0], "v": "v0.6"}\n')  # resumable
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        whole = R.read_records(path)
    assert len(whole) == len(found) + 1
    assert all(r.note.plan == "{} {}".format(*json.loads(r.workload_key)) for r in whole[:-1]), "with its own comment"


def test_killed_between_the_two_steps_of_a_write_leaves_a_comment(tmp_path, monkeypatch):
    """The point that no timing can be counted on to hit."""
    path = tmp_path / "r.json"
    writer = R.RecordWriter(path)
    line = '{"i": [["[1]", "llvm"], [[], []]], "r": [[1], 0], "v": "v0.6"}\n'
    writer.append(line)
    process = os.fork()
    if not process:
        monkeypatch.setattr(R, "_set_firsts", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        writer.append(line)
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(process, 0)[1]) == signal.SIGKILL
    assert path.read_text() == line + "#" + line[1:] and len(plain_lines(path)) == 1
    writer.append(line)
    assert len(R.read_records(path)) == 2


def test_several_writers_lose_and_tear_nothing(tmp_path):
    path = tmp_path / "r.json"
    writers = [start(path, name, 40, 300 * n) for n, name in enumerate("abcd")]
    assert [w.wait(120) for w in writers] == [0] * 4
    whole = R.read_records(path)
    assert sorted(r.workload_key for r in whole) == sorted(json.dumps([n, i]) for n in "abcd" for i in range(40))
    for name in "abcd":  # each in its own order, each with its own comment
        own = [r for r in whole if json.loads(r.workload_key)[0] == name]
        assert [r.note.plan for r in own] == [f"{name} {i}" for i in range(40)]


def test_a_writer_knows_when_another_has_written(tmp_path):
    one, two = R.RecordWriter(tmp_path / "r.json"), R.RecordWriter(tmp_path / "r.json")
    line = '{"i": [["[1]", "llvm"], [[], []]], "r": [[1], 0], "v": "v0.6"}\n'
    one.grew()
    assert not one.grew()
    one.append(line)
    assert not one.grew(), "its own records are no news"
    two.append(line)
    one.append(line)
    assert one.grew() and not one.grew(), "what came between two of its own is"


@pytest.mark.parametrize("how", ["deleted", "replaced"])
def test_a_file_that_goes_while_it_is_written_is_made_anew(tmp_path, monkeypatch, how):
    path = tmp_path / "r.json"
    writer = R.RecordWriter(path)
    line = '{"i": [["[1]", "llvm"], [[], []]], "r": [[1], 0], "v": "v0.6"}\n'
    real = R._set_firsts

    def gone(*args):
        monkeypatch.setattr(R, "_set_firsts", real)
        path.unlink()
        if how == "replaced":
            path.write_text(line)
        real(*args)

    monkeypatch.setattr(R, "_set_firsts", gone)
    writer.append(line)
    assert path.read_text() == line * (2 if how == "replaced" else 1)


@pytest.mark.parametrize("code", ["EROFS", "EACCES"])
def test_a_folder_that_became_read_only_is_said(tmp_path, monkeypatch, code):
    import errno

    from roller_tvm.errors import BadInput

    writer = R.RecordWriter(tmp_path / "r.json")

    def refused(*args, **kwargs):
        raise OSError(getattr(errno, code), os.strerror(getattr(errno, code)))

    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(BadInput, match="cannot be written: (Read-only|Permission)") as caught:
        writer.append("{}\n")
    assert caught.value.remedy


def test_a_claim_goes_with_its_process(tmp_path):
    code = """
import sys
from pathlib import Path
from roller_tvm.tuning.claims import Claims

claims = Claims(Path(sys.argv[1]))
print(claims.take("conv"), flush=True)
sys.stdin.read()
"""
    path = tmp_path / "r.json"
    other = python(code, path)
    assert other.stdout.readline() == "True\n"
    claims = Claims(path)
    assert claims.take("dense") and not claims.take("conv") and not claims.take("conv", wait_s=0.1)
    assert Claims(tmp_path / "other.json").take("conv"), "of another file"
    other.kill()
    assert claims.take("conv", wait_s=30)
    other.wait()
    claims.release("conv")
    claims.close()
