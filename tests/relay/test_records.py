"""Record files that are whole, cut, corrupt, full, shared."""

import errno
import json
import os
from dataclasses import replace

import pytest

from roller_tvm.errors import BadInput, DiskFull, RecordError
from roller_tvm.foreign import checksum
from roller_tvm.relay import records as R

LINE = json.dumps({"i": [['["abc", [4]]', "llvm -keys=cpu", [1], "", 2, []], [[], [["PR", 1]]]],
                   "r": [[0.5], 0, 0.1, 1700000000], "v": "v0.6"})  # fmt: skip
NOTE = R.Note("digest", predicted_s=1e-6, measured_s=0.5, trials=10, checked=True)


def test_note_and_record_come_back(tmp_path):
    path = tmp_path / "r.json"
    R.RecordWriter(path).append(f"{R.note_line(NOTE)}\n{LINE}\n")
    (record,) = R.read_records(path)
    assert record.note == NOTE and record.cost == 0.5 and record.number == 2
    assert R.best_notes([record]) == {('["abc", [4]]', "llvm -keys=cpu"): NOTE}


def test_records_of_ours_are_withdrawn_and_others_stay(tmp_path):
    path, writer = tmp_path / "r.json", R.RecordWriter(tmp_path / "r.json")
    other = LINE.replace("abc", "another")
    note = R.note_line(NOTE)
    for text in (f"{note}\n{LINE}\n", LINE + "\n", f"{note}\n{other}\n", f"{note}\n{LINE}\n"):
        writer.append(text)
    size, _ = path.stat().st_size, writer.grew()
    assert writer.withdraw('["abc", [4]]', "llvm -keys=cpu") == 2
    assert writer.withdraw('["abc", [4]]', "llvm -keys=cpu") == 0
    assert [(r.line, r.note) for r in R.read_records(path)] == [(LINE, None), (other, NOTE)]
    assert path.stat().st_size == size and not writer.grew()


@pytest.mark.parametrize("cut", range(1, len(LINE), 17))
def test_a_cut_last_line_is_told_left_out_and_mended(tmp_path, cut):
    path = tmp_path / "r.json"
    path.write_text(f"{LINE}\n{LINE[:cut]}")
    with pytest.warns(R.RecordWarning, match=r"r\.json:2: the last line is only half there"):
        assert len(R.read_records(path)) == 1
    writer = R.RecordWriter(path)
    writer.append(LINE + "\n")
    assert path.read_text() == f"{LINE}\n{LINE}\n"


def test_a_whole_last_line_without_newline_is_kept(tmp_path):
    path = tmp_path / "r.json"
    path.write_text(LINE)
    R.RecordWriter(path).append(LINE + "\n")
    assert path.read_text() == f"{LINE}\n{LINE}\n"


@pytest.mark.parametrize("bad", ['{"i": 3}', "not json",
                                 '{"i": [["k", 2], [[], []]], "r": [[1], 0], "v": "x"}',
                                 "\xff\xfe\x00"])  # fmt: skip
def test_a_bad_line_is_named_with_file_and_line(tmp_path, bad):
    path = tmp_path / "r.json"
    path.write_text(f"{LINE}\n{bad}\n{LINE}\n", encoding="latin-1")
    with pytest.raises(RecordError, match=r"r\.json:2: not a record") as caught:
        R.read_records(path)
    assert caught.value.remedy and caught.value.exit_code == 2
    with pytest.warns(R.RecordWarning, match=":2"):
        assert len(R.read_records(path, strict=False)) == 2


@pytest.mark.parametrize("wrote", [0, 10, len(LINE)])
def test_no_space_left_keeps_what_was_there(tmp_path, monkeypatch, wrote):
    path = tmp_path / "r.json"
    writer = R.RecordWriter(path)
    writer.append(LINE + "\n")
    real = os.write
    left = [wrote]

    def full(handle, data):
        if not left[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        done = real(handle, data[: left[0]])
        left[0] -= done
        return done

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(DiskFull, match="1 records written before are intact") as caught:
        writer.append(LINE + "\n")
    monkeypatch.undo()
    assert caught.value.exit_code == 1
    assert path.read_text() == LINE + "\n"


def test_a_path_that_cannot_be_written_is_said_at_once(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="cannot be written"):
        R.RecordWriter(tmp_path / "file" / "r.json")
    with pytest.raises(BadInput, match="cannot be written"):
        R.RecordWriter(tmp_path)


def test_other_comments_and_records_of_ansor_have_no_note(tmp_path):
    path = tmp_path / "r.json"
    path.write_text(f"# hello\n{LINE}\n{R.note_line(NOTE)}\n# between\n{LINE}\n")
    assert [r.note for r in R.read_records(path)] == [None, None]


@pytest.mark.tvm
def test_a_measured_record_wins_over_any_prediction(tmp_path):
    tvm = pytest.importorskip("tvm")
    from tvm import auto_scheduler

    from roller_tvm.codegen.apply_te import TeProgram, apply_steps_state
    from roller_tvm.roller.steps import Parallel
    from roller_tvm.te.read import read_te

    from . import programs as P

    key = auto_scheduler.workload_registry.register_workload_tensors("roller_test_records", P.matmul())
    task = auto_scheduler.SearchTask(workload_key=key, target=tvm.target.Target("llvm"))
    dag = task.compute_dag
    program = TeProgram.of_reading(read_te(dag), dag.tensors)
    states = [dag.get_init_state(), apply_steps_state(dag, program, [Parallel("C", "i")])]
    path = tmp_path / "r.json"
    writer = R.RecordWriter(path)
    writer.append(R.record_text(task, states[0], R.Note("a", predicted_s=1e-6)))
    writer.append(R.record_text(task, states[1], R.Note("b", predicted_s=2e-6, measured_s=0.9, trials=1)))
    best, result = auto_scheduler.measure_record.load_best_record(str(path), key)
    assert len(best.state.transform_steps) == 1 and float(result.costs[0]) == pytest.approx(0.9)
    assert [n.plan for n in R.best_notes(R.read_records(path)).values()] == ["b"]
    assert len(R.load_for_build(path)) == 2
    history = auto_scheduler.ApplyHistoryBest(str(path))  # a plain TVM reads it, comments and all
    assert history.best_by_targetkey["cpu"]


def test_a_file_that_holds_no_records_is_left_as_it_is(tmp_path):
    path = tmp_path / "settings.json"
    for text in ('{"my": "settings"}', "text", f"{LINE}\n[1, 2"):
        path.write_text(text)
        with pytest.raises(RecordError, match="no part of a record"):
            R.RecordWriter(path).mend()
        assert path.read_text() == text
    for rest in ("# roller-tv", '{"i', '{ "i" : [["a', "\0\0\0"):
        path.write_text(f"{LINE}\n{rest}")
        assert R.RecordWriter(path).mend()
        assert path.read_text() == f"{LINE}\n"


def test_the_most_trials_that_were_given_count():
    """Else a task whose best time came of fewer would be tuned again each time that more are asked for."""
    slower = replace(NOTE, measured_s=0.6, trials=20)
    found = [R.Record(LINE, 1, "k", "llvm", 0.5, 0, NOTE), R.Record(LINE, 2, "k", "llvm", 0.6, 0, slower)]
    assert R.best_notes(found) == {("k", "llvm"): replace(NOTE, trials=20)}


@pytest.mark.tvm
def test_each_target_gets_its_own_record(tmp_path):
    tvm = pytest.importorskip("tvm")
    from tvm import auto_scheduler

    from roller_tvm.auto_scheduler import ApplyHistoryBest
    from roller_tvm.auto_scheduler import SearchTask as RollerTask
    from roller_tvm.codegen.apply_te import TeProgram, apply_steps_state
    from roller_tvm.roller.steps import Parallel
    from roller_tvm.te.read import read_te

    from . import programs as P

    key = auto_scheduler.workload_registry.register_workload_tensors("roller_test_targets", P.matmul())
    path = tmp_path / "r.json"
    writer = R.RecordWriter(path)
    names = ("llvm -mcpu=core-avx2", "llvm -mcpu=skylake-avx512", "llvm -mcpu=x86-64")
    for name, seconds in zip(names[:2], (2e-3, 1e-3), strict=True):
        task = auto_scheduler.SearchTask(workload_key=key, target=tvm.target.Target(name))
        dag = task.compute_dag
        steps = [Parallel("C", "i")] if name == names[0] else []
        program = TeProgram.of_reading(read_te(dag), dag.tensors)
        state = apply_steps_state(dag, program, steps) if steps else dag.get_init_state()
        writer.append(R.record_text(task, state, R.Note(name, predicted_s=1e-6, measured_s=seconds, trials=1)))
    path.write_text(path.read_text() + LINE[:60])

    def steps_of(target):
        with pytest.warns(R.RecordWarning):
            history = ApplyHistoryBest(str(path))
        state = history._query_inside(tvm.target.Target(target), key, "")
        return len(state.transform_steps)

    assert [steps_of(name) for name in names] == [1, 0, 0]  # of the third there is none: the fastest, as in TVM
    with pytest.warns(R.RecordWarning):
        kept = R.load_for_build(path, str(tvm.target.Target(names[0])))
    assert [len(given.state.transform_steps) for given, _ in kept] == [1]
    task = RollerTask(workload_key=key, target=tvm.target.Target(names[0]))
    with pytest.warns(R.RecordWarning):
        assert "parallel" in task.print_best(str(path)) and task.apply_best(str(path))
    writer.append(R.kept_line(key, str(tvm.target.Target(names[2])), "TVM's own is faster", 10))
    assert not R.load_for_build(path, str(tvm.target.Target(names[2])))


@pytest.mark.parametrize("pragma", ["import_llvm$/tmp/x.ll", "import_c", "debug_skip_region"])
def test_a_record_that_names_code_is_refused(tmp_path, pragma):
    path, record = tmp_path / "r.json", json.loads(LINE)
    record["i"][1][1].append(["PR", 0, 0, pragma])
    path.write_text(f"{LINE}\n{json.dumps(record)}\n")
    with pytest.warns(R.RecordWarning, match=r"r.json:2: .*which no tuner does"):
        assert len(R.read_records(path, strict=False)) == 1
    with pytest.raises(RecordError, match="which no tuner does"):
        R.read_records(path)


def test_a_flipped_bit_is_told_by_its_line(tmp_path):
    path = tmp_path / "r.json"
    text = f"{R.note_line(NOTE, checksum(LINE))}\n{LINE}\n"
    path.write_text(text)
    assert len(R.read_records(path)) == 1
    path.write_text(text[:-8] + ("1" if text[-8] != "1" else "2") + text[-7:])
    with pytest.warns(R.RecordWarning, match=r"r.json:2: .*(checksum|not a record)"):
        assert not R.read_records(path, strict=False)
