"""Records in MetaSchedule's files: a plain TVM in a fresh process builds our kernels from them."""

import json
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

pytestmark = pytest.mark.relax
tvm = pytest.importorskip("tvm")
from tvm.s_tir.meta_schedule.database import JSONDatabase, MemoryDatabase  # noqa: E402

from roller_tvm.errors import BadInput, RecordError, RecordWarning  # noqa: E402
from roller_tvm.relax import tune, tune_tir  # noqa: E402
from roller_tvm.relax.candidates import make_candidates  # noqa: E402
from roller_tvm.relax.database import Note, Store  # noqa: E402
from roller_tvm.relax.devices import device_of  # noqa: E402
from roller_tvm.relax.record_files import NOTES, RECORDS, WORKLOADS  # noqa: E402
from roller_tvm.relax.record_lines import check_replay  # noqa: E402
from roller_tvm.relax.records_in_use import database_in_use  # noqa: E402
from roller_tvm.relax.targets import make_target  # noqa: E402
from roller_tvm.relax.tasks import extract_tasks, normalized  # noqa: E402
from roller_tvm.tir.nodes import structurally_equal  # noqa: E402
from roller_tvm.tuning.session import Limits  # noqa: E402

from . import modules as M  # noqa: E402

#: TVM's own kernel never stays for being faster: which one is, on operators this small, is chance.
OURS = Limits(margin=1.0)

PLAIN = """
import pickle, sys
import numpy as np
import tvm
from tvm import relax
from tvm.s_tir.meta_schedule.database import JSONDatabase

mod, target, x = pickle.load(open(sys.argv[1], "rb"))
mod, target = tvm.ir.load_json(mod), tvm.target.Target(target)
with target, JSONDatabase(work_dir=sys.argv[2]):
    mod = relax.transform.MetaScheduleApplyDatabase(enable_warning=True)(mod)
funcs = [f for _, f in mod.functions_items() if type(f).__name__ == "PrimFunc"]
print([bool(f.attrs.get("tirx.is_scheduled", False)) for f in funcs])
print(sorted(k for k in sys.modules if k.startswith("roller")))
machine = relax.VirtualMachine(tvm.compile(mod, target=target), tvm.cpu())
np.save(sys.argv[1] + ".npy", machine["main"](tvm.runtime.tensor(x)).numpy())
"""


def schedules(mod, top=3):
    found = make_candidates(mod["main"], device_of(None, M.TARGET), top)
    return [schedule for _, schedule in found.schedules()]


def commit(store, mod, seconds=1e-3):
    (task,) = extract_tasks(mod)
    store.commit(task, schedules(task.workloads[0], 1)[0], [seconds], Note("plan", trials=1, key=task.key))
    return task


def test_a_plain_tvm_in_a_fresh_process_gets_our_kernels(tmp_path):
    mod = M.network()
    _, result = tune(mod, target=M.TARGET, work_dir=tmp_path / "records", max_trials_global=0)
    assert [t.task.weight for t in result.tasks] == [2, 1] or [t.task.weight for t in result.tasks] == [1, 2]
    assert all(t.status == "planned" and t.checked for t in result.tasks)
    x = np.random.default_rng(3).standard_normal((16, 24)).astype("float32")
    case = tmp_path / "case"
    case.write_bytes(pickle.dumps((str(tvm.ir.save_json(mod)), json.loads(str(M.TARGET)), x)))
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", PLAIN, str(case), str(tmp_path / "records")],
        capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    scheduled, ours = done.stdout.splitlines()[:2]
    assert scheduled == "[True, True]" and ours == "[]", "every function was found, by a TVM that knows nothing of us"
    np.testing.assert_allclose(np.load(f"{case}.npy"), M.answer(mod, x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("func", [M.matmul(), M.matmul(7, 13, 31)])
def test_a_trace_gives_the_module_that_was_measured(func):
    mod = normalized(func)
    for schedule in schedules(mod):
        check_replay(mod, schedule, M.TARGET, "matmul")


def test_a_trace_that_gives_something_else_is_not_recorded():
    mod = normalized(M.matmul())
    schedule = schedules(mod)[0]
    other = tvm.s_tir.Schedule(mod)

    class Lying:
        trace, mod = other.trace, schedule.mod

    with pytest.raises(RecordError, match="another module"):
        check_replay(normalized(M.matmul()), Lying, M.TARGET, "matmul")


def test_functions_that_differ_in_names_alone_share_a_record(tmp_path):
    """A database holds them for one: the trace must not look for blocks by name."""
    one, other = M.matmul(), M.matmul(names=("sum", "relu"))
    with Store(tmp_path, M.TARGET) as store:
        commit(store, one)
        assert store.has_record(extract_tasks(other)[0])
    with M.TARGET, JSONDatabase(work_dir=str(tmp_path)):
        mod = tvm.relax.transform.MetaScheduleApplyDatabase()(tvm.IRModule({"f": other}))
    assert mod["f"].attrs["tirx.is_scheduled"]


def test_equal_functions_of_other_marks_each_get_a_record(tmp_path):
    marked = M.matmul().with_attr("op_pattern", 4)
    mod = tvm.IRModule({"a": M.matmul(), "b": marked})
    (task,) = extract_tasks(mod)
    assert task.weight == 2 and len(task.workloads) == 2
    with Store(tmp_path, M.TARGET) as store:
        commit(store, mod)
        assert len(store.database) == 2
        for func in (M.matmul(), marked):
            assert store.database.query_tuning_record(normalized(func), M.TARGET, "f") is not None


def test_a_database_of_another_target_is_refused_by_name(tmp_path):
    other = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2})
    with Store(tmp_path / "a", other) as store:
        commit(store, M.matmul())
    with pytest.raises(RecordError, match="x86-64-v3") as caught:
        tune_tir(M.matmul(), M.TARGET, tmp_path / "a", 1, verbose=False)
    assert "work_dir" in caught.value.remedy
    Store(tmp_path / "a", other).close()  # whoever was refused does not keep it locked
    (tmp_path / "a" / NOTES).unlink()  # its records say it too
    with pytest.raises(RecordError, match="x86-64-v3"):
        Store(tmp_path / "a", M.TARGET)
    database = MemoryDatabase()
    with Store(None, other, database) as store:
        commit(store, M.matmul())
    with pytest.raises(RecordError, match="x86-64-v3"):
        Store(None, M.TARGET, database)


@pytest.mark.nightly
def test_a_target_that_says_less_of_the_same_goes_on_with_the_databases(tmp_path):
    """The command line fills in the CPU's name and its threads; who tunes into its folder need not."""
    full = make_target(M.TARGET)
    assert "mcpu" in full.attrs and "mcpu" not in M.TARGET.attrs
    with Store(tmp_path, full) as store:
        commit(store, M.matmul())
    for given in (M.TARGET, {"kind": "llvm", "num-cores": 2}):
        _, result = tune(M.matmul(), target=given, work_dir=tmp_path, max_trials_per_task=1)
        assert [t.status for t in result.tasks] == ["resumed"]
        assert result.target == str(full) and any("target is taken" in note for note in result.notes)
    with pytest.raises(RecordError, match="num-cores"):
        Store(tmp_path, tvm.target.Target({"kind": "llvm", "num-cores": 1}))
    with Store(tmp_path / "short", M.TARGET) as store:
        commit(store, M.matmul())
    with pytest.raises(RecordError, match="written for the target"):  # without a CPU's name: the least there is
        Store(tmp_path / "short", full)


def test_half_a_last_line_is_mended_and_anything_else_named(tmp_path):
    with Store(tmp_path, M.TARGET) as store:
        commit(store, M.matmul())
        commit(store, M.matmul(8))
    for name in (RECORDS, WORKLOADS, NOTES):
        with (tmp_path / name).open("a") as file:
            file.write('[2, [[["GetSB')
    with Store(tmp_path, M.TARGET) as store:
        assert len(store.database) == 2 and len(store.notes) == 2
        commit(store, M.matmul(9))
    (tmp_path / RECORDS).write_text("nonsense\n")
    with pytest.warns(RecordWarning, match=f"{RECORDS}:1: its checksum"), Store(tmp_path, M.TARGET) as store:
        assert len(store.database) == 0, "tuned again"
    assert (tmp_path / f"{RECORDS}.damaged").read_text() == "nonsense\n"


def test_two_processes_do_not_write_one_folder(tmp_path):
    with Store(tmp_path, M.TARGET), pytest.raises(RecordError, match="another process"):
        Store(tmp_path, M.TARGET)
    Store(tmp_path, M.TARGET).close()


def test_a_measured_record_wins_over_a_prediction(tmp_path):
    mod = normalized(M.matmul())
    first, second = schedules(mod, 2)
    (task,) = extract_tasks(M.matmul())
    with Store(tmp_path, M.TARGET) as store:
        store.commit(task, first, [1e-9 * 1e9], Note("predicted", key=task.key))
        store.commit(task, second, [1e-2], Note("measured", trials=1, key=task.key))
        found = store.database.query_schedule(mod, M.TARGET, "main")
    assert structurally_equal(found.mod["main"].body, second.mod["main"].body)


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="folder"):
        Store(tmp_path / "file" / "records", M.TARGET)


@pytest.mark.parametrize("line", ['{"a": 1}', "[1]", "3"])
def test_a_line_that_is_no_note_is_named(tmp_path, line):
    Store(tmp_path, M.TARGET).close()
    with (tmp_path / NOTES).open("a") as file:
        file.write(line + "\n")
    with pytest.raises(RecordError, match="line 2: is no note of a record"):
        Store(tmp_path, M.TARGET)


def test_records_for_the_least_cpu_are_told(tmp_path):
    mod, wide = M.matmul(), make_target({"kind": "llvm", "mcpu": "core-avx2", "num-cores": 2})
    tune_tir(mod, tvm.target.Target("llvm"), tmp_path, 0)
    with pytest.warns(RuntimeWarning, match="tuned for the least CPU"), database_in_use(tmp_path, wide):
        pass
    with pytest.raises(BadInput, match="must be a folder or a MetaSchedule database"), database_in_use(5, wide):
        pass


def damaged(tmp_path, change):
    """Tune a function, change its database's files, and return the folder."""
    from roller_tvm.relax.record_files import opened

    folder = tmp_path / "records"
    with Store(folder, M.TARGET) as store:
        commit(store, M.matmul())
    change(folder)
    return folder, opened


def test_a_flipped_bit_is_told_by_its_line_and_nothing_of_it_is_used(tmp_path):
    def flip(folder):
        data = bytearray((folder / RECORDS).read_bytes())
        at = data.index(b'"Split"') + 20
        data[at] = ord("7") if data[at] != ord("7") else ord("3")
        (folder / RECORDS).write_bytes(data)

    folder, opened = damaged(tmp_path, flip)
    with pytest.warns(RecordWarning, match=f"{RECORDS}:1: (its checksum is another|.*)"), pytest.raises(RecordError):
        opened(folder)


HOSTILE = {
    "pragma_import_llvm": '["Annotate", ["l1", "\\"/tmp/x.ll\\""], ["pragma_import_llvm"], []]',
    "pragma_import_c": '["Annotate", ["l1", "\\"int x;\\""], ["pragma_import_c"], []]',
    "UnsafeHideBufferAccess": '["UnsafeHideBufferAccess", ["b0"], ["read", [0]], []]',
    "tirx.Call": '["TransformLayout", ["b0", "{\\"root_index\\":0,\\"nodes\\":[{\\"type\\":\\"tirx.Call\\"}]}"],'
    " [0, 0, 0], []]",
}


@pytest.mark.parametrize("named", HOSTILE)
def test_a_trace_that_names_code_is_refused_by_every_reader(tmp_path, named):
    from roller_tvm.relax.record_lines import replay

    def attack(folder):
        line = (folder / RECORDS).read_text().replace('"],["b0"]],', f'"],["b0"]],{HOSTILE[named]},', 1)
        (folder / RECORDS).write_text(line)
        (folder / NOTES).write_text("".join(
            f"{row}\n" for row in (folder / NOTES).read_text().splitlines() if '"sum"' not in row))  # fmt: skip

    folder, opened = damaged(tmp_path, attack)
    line = json.dumps(json.loads((folder / RECORDS).read_text().splitlines()[0])[1])
    with pytest.raises(ValueError, match=named):
        replay(M.matmul(), line)
    with pytest.warns(RecordWarning, match=named), pytest.raises(RecordError, match="its records cannot be read"):
        opened(folder)
    with pytest.warns(RecordWarning, match=named):
        Store(folder, M.TARGET).close()
    assert named not in (folder / RECORDS).read_text() and named in (folder / f"{RECORDS}.damaged").read_text()
