"""The harness with fake tuners: they fail, hang, crash, lie, and the comparison goes on and says so."""

import contextlib
import json
import subprocess
import time
from pathlib import Path

import pytest

from roller_bench.cases import Case
from roller_bench.comparison import make_report
from roller_bench.machine import commit
from roller_bench.results import Prepared, Results, Tuned
from roller_bench.run import PROCESSES, ROUNDS, Comparison, Request
from roller_bench.task import write_task
from roller_bench.tuners import parse_tuners
from roller_tvm.cli import main
from roller_tvm.errors import BadInput, RecordError

from ..plan.devices import device

TUNERS = parse_tuners("roller,untuned,ansor:64")
CASES = tuple(
    Case(name, "matmul", f"m=8 n=8 k={8 + n}") for n, name in enumerate(
        ("good", "fails", "crashes", "babbles", "wrong", "lies", "unrunnable", "odd")
    )
)  # fmt: skip


def request(folder: Path, **changes):
    values = {"edge": "tests.bench.fake_edge", "line": "relay", "target": "llvm", "device": device("avx512"),
              "tuners": TUNERS, "folder": folder, "threads": 1}  # fmt: skip
    return Request(**{**values, **changes})


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("comparison")
    with Comparison(request(folder)) as comparison:
        comparison.open()
        comparison.prepare(CASES)
        assert comparison.run(CASES)
        return folder, make_report(comparison.results, CASES, TUNERS, comparison.environment)


def cells(report, case):
    (row,) = (r for r in report.rows if r.case.id == case)
    return {c.tuner.name: c for c in row.cells}


def test_what_works_is_timed_in_turns(done):
    """In several processes, as each has other pages of memory."""
    found = cells(done[1], "good")
    timed = Results(done[0] / "results.jsonl").timed[CASES[0].digest]
    assert [len(rounds) for rounds in timed.rounds] == [PROCESSES * ROUNDS] * 3
    assert len(set((done[0] / "good.roller.timed").read_text().split())) == PROCESSES > 1
    assert [c.status for c in found.values()] == ["ok"] * 3
    assert found["ansor"].ratio == pytest.approx(2.0) and found["untuned"].ratio == pytest.approx(8.0)
    assert found["roller"].ratio == 1.0
    assert done[1].compile_ratios("ansor:64")[0] == pytest.approx(200.0)


@pytest.mark.parametrize(
    ("case", "status", "reason"),
    [
        ("fails", "failed", "no kernel at all"),
        ("crashes", "crash", "SIGABRT"),
        ("babbles", "failed", "its result is not valid"),
        ("wrong", "wrong answer", "magnitude"),
        ("unrunnable", "failed", "cannot be timed"),
        ("odd", "unsupported", "nobody has"),
    ],
)
def test_what_does_not_says_why(done, case, status, reason):
    found = cells(done[1], case)
    assert found["ansor"].status == status and reason in found["ansor"].reason
    assert not found["ansor"].timed
    if case != "odd":
        assert found["untuned"].ratio == pytest.approx(8.0)  # the others do not suffer


def test_a_lie_is_told(done):
    lies = done[1].lies()
    assert len(lies) == 1 and lies[0].startswith("lies: ansor:64 claims")
    assert cells(done[1], "lies")["ansor"].ratio == pytest.approx(2.0)  # what counts is the kernel
    assert cells(done[1], "lies")["ansor"].curve[-1][1] == pytest.approx(2e-5, rel=0.1)


def test_a_tuner_that_hangs_is_given_up(tmp_path):
    case = Case("hangs", "matmul", "m=8 n=8 k=8")
    with Comparison(request(tmp_path, tuners=TUNERS[:2])) as comparison:
        comparison.open()
        comparison.prepare([case])
        comparison.run([case])
    with Comparison(request(tmp_path, limit_s=1.0)) as comparison:
        comparison.open()
        comparison.run([case])
        tuned = comparison.results.tuned[case.digest, "ansor:64"]
        assert tuned.status == "timeout" and "1 s" in tuned.reason
        comparison.retry()
        assert set(comparison.results.tuned) == {(case.digest, "roller:10"), (case.digest, "untuned")}
        comparison.forget("roller", [case])
        assert set(comparison.results.tuned) == {(case.digest, "untuned")}
        with pytest.raises(BadInput, match="no results of hope"):
            comparison.forget("hope", [case])


def test_only_what_is_done_again_is_forgotten(tmp_path):
    first, second = (Case(name, "matmul", f"m=8 n=8 k={k}") for name, k in (("good", 8), ("other", 9)))
    kept = ("curve.64.jsonl", "records.64.json", "curve.1000.jsonl", "records.1000.json", "dense.x86.0.64.json",
            "records.64.packed.json")  # fmt: skip
    with Comparison(request(tmp_path)) as comparison:
        for case in (first, second):
            for label in ("ansor:64", "ansor:1000"):
                comparison.results.add(Tuned(case.digest, label, "ok"))
            work = tmp_path / "work" / f"{case.digest}.ansor"
            (work / "64").mkdir(parents=True)
            for name in kept:
                (work / name).touch()
        comparison.forget("ansor:64", [first])
        assert set(comparison.results.tuned) == {
            (first.digest, "ansor:1000"), (second.digest, "ansor:64"), (second.digest, "ansor:1000"),
        }  # fmt: skip
    left = {c.id: {p.name for p in (tmp_path / "work" / f"{c.digest}.ansor").iterdir()} for c in (first, second)}
    assert left == {"good": {"curve.1000.jsonl", "records.1000.json"}, "other": {*kept, "64"}}


@pytest.mark.parametrize("flag", [["--again", "roller"], ["--retry"]])
def test_a_report_alone_forgets_nothing(tmp_path, flag, capsys):
    assert main(["compare", "--suite", "demo", "--output", str(tmp_path), "--report", *flag]) == 2
    assert f"nothing for {flag[0]} to do" in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_it_goes_on_where_it_was(done):
    folder, report = done
    before = (folder / "calls").read_text()
    more = parse_tuners("roller,untuned,ansor:64,ansor:128")
    with Comparison(request(folder, tuners=more)) as comparison:
        comparison.open()
        comparison.prepare(CASES)
        comparison.run(CASES[:1])
        again = make_report(comparison.results, CASES[:1], more, comparison.environment)
    assert (folder / "calls").read_text() == before + "good ansor\n"
    assert cells(again, "good")["ansor"].ratio == pytest.approx(2.0)


@pytest.fixture
def half(tmp_path):
    """What a machine that was lost had brought to the repository: one case done, of another the results alone."""
    cases = tuple(Case(name, "matmul", f"m=8 n=8 k={k}") for name, k in (("good", 8), ("other", 9)))
    there, here = tmp_path / "there", tmp_path / "here"
    with Comparison(request(there)) as comparison:
        comparison.open()
        comparison.prepare(cases)
        comparison.run(cases[:1])
        for tuner in TUNERS[:2]:
            comparison.results.add(comparison.tune(cases[1], tuner))
    here.mkdir()
    (here / "results.jsonl").write_text((there / "results.jsonl").read_text())
    return here, cases


def test_results_alone_are_enough_to_go_on(half):
    folder, cases = half
    with Comparison(request(folder)) as comparison:
        comparison.open()
        comparison.prepare(cases)
        assert comparison.run(cases)
        assert comparison.run(cases)
        report = make_report(comparison.results, cases, TUNERS, comparison.environment)
    calls = ["other ansor", "other roller:10 again", "other untuned:0 again"]
    assert (folder / "calls").read_text().splitlines() == calls  # once, and nothing of what was done
    for case in ("good", "other"):
        assert [c.ratio for c in cells(report, case).values()] == pytest.approx([1.0, 8.0, 2.0])


def test_times_alone_again(half):
    folder, cases = half
    (folder / "task").touch()
    with Comparison(request(folder)) as comparison:
        comparison.open()
        comparison.forget("times", cases[:1])
        comparison.prepare(cases[:1])
        comparison.run(cases[:1])
    calls = ["good roller:10 again", "good untuned:0 again", "good ansor:64 again"]
    assert (folder / "calls").read_text().splitlines() == calls


def test_what_is_done_again_is_built_and_timed_again(half):
    """Though its schedule is the one it had: the code that is generated for it may be another."""
    folder, cases = half
    with Comparison(request(folder)) as comparison:
        comparison.open()
        comparison.prepare(cases)
        comparison.run(cases)
        (folder / "good.roller:10.so").write_text("of an earlier commit")
        kernel = comparison.results.tuned[cases[0].digest, "roller:10"].kernel
        comparison.forget("roller", cases[:1])
        assert not (folder / kernel).exists() and cases[0].digest not in comparison.results.timed
        assert comparison.run(cases[:1]) and cases[0].digest in comparison.results.timed
        assert (folder / kernel).exists()


def test_a_kernel_that_cannot_be_had_again_leaves_what_is_known(half):
    folder, cases = half
    text = (folder / "results.jsonl").read_text()
    (folder / "results.jsonl").write_text(text.replace("schedule 8e-05", "unreadable"))  # TVM's own
    more = parse_tuners("roller,untuned,ansor:64,ansor:128")
    with Comparison(request(folder, tuners=more)) as comparison:
        comparison.open()
        comparison.prepare(cases[:1])
        comparison.run(cases[:1])
        report = make_report(comparison.results, cases[:1], more, comparison.environment)
    (row,) = report.rows
    assert [c.timed for c in row.cells] == [True, True, True, False]
    assert row.cell("untuned").reason.startswith("cannot be built again: ")


def test_a_kernel_that_cannot_be_had_again_is_told_where_nothing_was_timed(half):
    folder, cases = half
    text = (folder / "results.jsonl").read_text()
    (folder / "results.jsonl").write_text(text.replace("schedule 8e-05", "unreadable"))
    for _ in range(2):
        with Comparison(request(folder)) as comparison:
            comparison.open()
            comparison.prepare(cases)
            comparison.run(cases[1:])
            found = cells(make_report(comparison.results, cases, TUNERS, comparison.environment), "other")
        lines = (folder / "results.jsonl").read_text().splitlines()
        assert sum("cannot be built again" in line for line in lines) == 1
    assert [c.timed for c in found.values()] == [True, False, True]
    assert found["untuned"].status == "ok" and "cannot be built again" in found["untuned"].reason
    with Comparison(request(folder)) as comparison:
        comparison.open()
        assert comparison.results.finished(cases[1].digest, [t.label for t in TUNERS])
        comparison.retry()  # perhaps it was just a full disk
        assert not comparison.results.finished(cases[1].digest, [t.label for t in TUNERS])


def test_times_are_not_lost_to_new_names_of_kernels(half):
    folder, cases = half
    text = (folder / "results.jsonl").read_text()
    text = text.replace("schedule 8e-05", "unreadable").replace("good.ansor.so", "as_it_was_called.so")
    (folder / "results.jsonl").write_text(text)
    more = parse_tuners("roller,untuned,ansor:64,ansor:128")
    with Comparison(request(folder, tuners=more)) as comparison:
        comparison.open()
        comparison.prepare(cases[:1])
        comparison.run(cases[:1])
        (row,) = make_report(comparison.results, cases[:1], more, comparison.environment).rows
    assert [c.timed for c in row.cells] == [True, True, True, False]


def test_another_machine_has_whole_cases(half, monkeypatch):
    folder, cases = half
    monkeypatch.setattr("roller_bench.machine.cpu_id", lambda: "somebody's family 1")
    with Comparison(request(folder)) as comparison, pytest.raises(RecordError, match="(?s)cpu_id .*--mix-machines"):
        comparison.open()
    with Comparison(request(folder, mixed=True)) as comparison:
        comparison.open()
        comparison.prepare(cases)
        assert comparison.run(cases)
        report = make_report(comparison.results, cases, TUNERS, comparison.environment)
    assert (folder / "calls").read_text().splitlines() == ["other roller", "other untuned", "other ansor"]
    assert len(report.places()) == 2
    (note,) = (n for n in report.notes() if "family 1" in n)
    assert note.endswith(": other")


@pytest.fixture
def moved(half, monkeypatch):
    """`half` on another machine, where figures may be mixed: how to go on there."""
    folder, cases = half
    monkeypatch.setattr("roller_bench.machine.cpu_id", lambda: "somebody's family 1")

    def go_on(number, tuners=TUNERS, stop=99, **forget):
        class Stopped(Exception):
            pass

        with Comparison(request(folder, mixed=True, tuners=tuners)) as comparison:
            comparison.open()
            comparison.prepare(cases)
            if "again" in forget:
                comparison.forget(forget["again"], cases)
            if "retry" in forget:
                comparison.retry()
            left = [stop]

            def progress(*_):
                left[0] -= 1
                if not left[0]:
                    raise Stopped

            with contextlib.suppress(Stopped):
                comparison.run(cases[number : number + 1], progress)
        calls = folder / "calls"
        return calls.read_text().splitlines() if calls.exists() else []

    return folder, cases, go_on


def test_a_case_begun_anew_on_another_machine_goes_on_there(moved):
    folder, cases, go_on = moved
    assert go_on(0, stop=2, again="roller") == ["good roller", "good untuned"]
    work = folder / "work" / f"{cases[0].digest}.ansor"
    work.mkdir(parents=True)
    assert go_on(0) == ["good roller", "good untuned", "good ansor"]
    assert work.exists()  # of this machine
    assert len({t.environment for t in Results(folder / "results.jsonl").tuned_of(cases[0].digest)}) == 1


def test_another_machines_tuner_that_nobody_asks_for_now_is_in_nobodys_way(moved):
    folder, cases, go_on = moved
    more = parse_tuners("roller,untuned,ansor:128")
    first = go_on(0, tuners=more)
    assert first == ["good roller", "good untuned", "good ansor"] and go_on(0, tuners=more) == first
    assert (cases[0].digest, "ansor:64") not in Results(folder / "results.jsonl").tuned


def test_what_another_machine_finished_is_not_tuned_here(moved):
    folder, cases, go_on = moved
    text = (folder / "results.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    failed = next(d for d in lines if d["kind"] == "tuned" and d["value"]["tuner"] == "untuned")
    failed["value"] |= {"tuner": "ansor:128", "status": "failed", "kernel": ""}
    (folder / "results.jsonl").write_text(text + json.dumps(failed) + "\n")
    four = parse_tuners("roller,untuned,ansor:64,ansor:128")
    assert go_on(0, tuners=four, retry=True) == []
    assert go_on(0, tuners=four, again="times") == []


def test_what_is_forgotten_stays_forgotten(half):
    folder, cases = half
    with Comparison(request(folder)) as comparison:
        comparison.open()
        comparison.forget("roller,times", cases[:1])
    results = Results(folder / "results.jsonl")
    assert (cases[0].digest, "roller:10") not in results.tuned and cases[0].digest not in results.timed
    assert (cases[0].digest, "untuned") in results.tuned and (cases[1].digest, "roller:10") in results.tuned


def test_a_machine_that_is_busy_is_waited_for_and_told(tmp_path, monkeypatch):
    shares = iter([0.6, 0.5, 0.4, 0.01] * 4 + [0.3] * 1000)  # three tuners, three looks; then never at rest
    looks = []

    def busy(look_s):
        looks.append(next(shares))
        time.sleep(0.05)
        return looks[-1]

    monkeypatch.setattr("roller_bench.quiet.busy", busy)
    case = Case("good", "matmul", "m=8 n=8 k=8")
    with Comparison(request(tmp_path, quiet_s=1.0)) as comparison:
        comparison.open()
        comparison.prepare([case])
        comparison.run([case])
        assert looks == [0.6, 0.5, 0.4, 0.01] * 4 and comparison.results.timed[case.digest].busy == 0.01
        comparison.forget("times", [case])
        comparison.run([case])
        report = make_report(comparison.results, [case], TUNERS, comparison.environment)
        assert report.notes() == ["good: timed while other work used 30% of the CPUs"]
        comparison.forget("ansor", [case])
        comparison.run([case])
        report = make_report(comparison.results, [case], TUNERS, comparison.environment)
    assert report.notes()[1:] == ["good: ansor:64 began to tune while other work used 30% of the CPUs"]


def test_nobody_looks_before_tuning_whom_nobody_asked(tmp_path, monkeypatch):
    looks = []
    monkeypatch.setattr("roller_bench.quiet.busy", lambda look_s: looks.append(look_s) or 0.0)
    with Comparison(request(tmp_path, tuners=TUNERS[:1])) as comparison:
        comparison.open()
        comparison.prepare(CASES[:1])
        assert comparison.tune(CASES[0], TUNERS[0]).ok
    assert not looks


def test_an_interrupted_line_is_forgotten(done, tmp_path):
    half = tmp_path / "results.jsonl"
    text = (done[0] / "results.jsonl").read_text()
    half.write_text(text[:-20])
    assert len(Results(half).tuned) >= len(Results(done[0] / "results.jsonl").tuned) - 1
    half.write_text(text + '{"version": 1, "kind": "riddle", "value": {}}\n')
    with pytest.raises(RecordError, match="riddle"):
        Results(half)


def test_a_task_of_another_version_is_made_anew(tmp_path):
    case = CASES[0]
    with Comparison(request(tmp_path)) as comparison:
        comparison.open()
        file = write_task(case, {"key": "k"}, tmp_path)
        comparison.results.add(Prepared(case, file))
        comparison.prepare([case])
        assert comparison.results.prepared[case.digest].file == file
        (tmp_path / file).write_text('{"key": "k"}')  # as they were before they had versions
        comparison.prepare([case])
        assert comparison.results.prepared[case.digest].file == "task"


def test_one_that_breaks_the_preparing_of_all(tmp_path):
    cases = (Case("poison", "matmul", "m=8 n=8 k=9"), Case("good", "matmul", "m=8 n=8 k=8"))
    with Comparison(request(tmp_path)) as comparison:
        comparison.open()
        comparison.prepare(cases)
        reasons = [comparison.results.prepared[c.digest].reason for c in cases]
    assert "process that prepared it ended" in reasons[0] and not reasons[1]


def test_figures_of_another_place_are_refused(tmp_path):
    with Comparison(request(tmp_path)) as comparison:
        comparison.open()
        with pytest.raises(RecordError, match="another comparison"):
            Comparison(request(tmp_path))
    elsewhere = Comparison(request(tmp_path, target="llvm -mcpu=znver4"))
    with elsewhere, pytest.raises(RecordError, match="target 'llvm'"):
        elsewhere.open()


def test_another_tvm_is_another_place_and_a_clock_of_the_moment_is_not(tmp_path, monkeypatch):
    clocks = iter(["210 MHz, 405 MHz", "1980 MHz, 2619 MHz", "345 MHz, 2619 MHz"])
    card = "Some GPU, 550.1, 1980 MHz, 2619 MHz, 700.00 W"
    told = "roller_bench.machine.gpu_facts"
    monkeypatch.setattr(told, lambda asked: card if "name" in asked else next(clocks))
    ids = []
    for _ in range(2):
        with Comparison(request(tmp_path)) as comparison:
            comparison.open()
            ids.append(comparison.environment)
    assert ids[0] == ids[1]
    lines = (tmp_path / "results.jsonl").read_text()
    (tmp_path / "results.jsonl").write_text(lines.replace('"tvm": "0.0"', '"tvm": "0.1"'))
    with Comparison(request(tmp_path)) as comparison, pytest.raises(RecordError, match="tvm '0.1', now '0.0'"):
        comparison.open()


def test_a_tuner_of_the_other_line(tmp_path):
    case = Case("good", "matmul", "m=8 n=8 k=8")
    with Comparison(request(tmp_path, tuners=parse_tuners("roller,metaschedule"))) as comparison:
        comparison.open()
        comparison.prepare([case])
        comparison.run([case])
        tuned = comparison.results.tuned[case.digest, "metaschedule:64"]
    assert tuned.status == "unsupported" and "relax line" in tuned.reason
    assert json.loads((tmp_path / "results.jsonl").read_text().splitlines()[0])["kind"] == "environment"


def test_a_commit_is_of_the_package_alone(tmp_path):
    def git(*words):
        told = ["-c", "user.name=x", "-c", "user.email=x", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *told, *words], cwd=tmp_path, check=True, capture_output=True)

    package, installed = tmp_path / "roller_tvm", tmp_path / ".venv" / "site-packages" / "roller_tvm"
    for folder in (package, installed):
        folder.mkdir(parents=True)
        (folder / "code.py").write_text("one = 1\n")
    (tmp_path / "results.jsonl").touch()
    git("init", "-q")
    git("add", "roller_tvm", "results.jsonl")
    git("commit", "-q", "-m", "one")
    (tmp_path / "results.jsonl").write_text("a line\n")
    before = commit(package)
    assert len(before) == 10 and commit(installed) == ""
    git("commit", "-q", "-m", "results", "results.jsonl")
    assert commit(package) == before
    (package / "code.py").write_text("one = 2\n")
    assert commit(package).endswith("+")
