"""What both lines have, and what one lacks and says so."""

import inspect

import pytest

pytestmark = pytest.mark.te
pytest.importorskip("tvm")

from roller_tvm.errors import TargetError  # noqa: E402
from roller_tvm.tuning import line as protocol  # noqa: E402
from roller_tvm.tuning.line import FEATURES, NotOnThisLine, require, worker_side  # noqa: E402

#: Line -> features that it lacks.
LACKS = {"relay": {"buckets", "tf32", "names"}, "relax": {"shared_records", "winograd"}}


@pytest.mark.parametrize("feature", FEATURES)
def test_a_line_has_a_feature_or_says_what_to_do_without(subject, feature):
    if feature not in LACKS[subject.line.name]:
        require(subject.line, feature)
        return
    with pytest.raises(NotOnThisLine, match=f"not on the {subject.line.name.capitalize()} line") as caught:
        require(subject.line, feature)
    assert caught.value.remedy and caught.value.exit_code == 2


def signatures(kind):
    """Methods of a protocol or of a class, with the names of their parameters."""
    return {name: list(inspect.signature(method).parameters) for name, method in inspect.getmembers(kind)
            if inspect.isfunction(method) and not name.startswith("_")}  # fmt: skip


def test_a_line_is_what_the_protocol_says(subject, tmp_path):
    side = worker_side()
    task = subject.tasks()[0]
    work = subject.line.work(task, subject.target)
    made = {
        protocol.Line: subject.line, protocol.WorkerSide: side,
        protocol.Workload: side.open(work.text, work.target, work.weights),
    }  # fmt: skip
    for wanted, thing in made.items():
        ours, theirs = signatures(type(thing)), signatures(wanted)
        assert {name: ours.get(name) for name in theirs} == theirs, wanted.__name__
        assert all(hasattr(thing, name) for name in wanted.__annotations__)
    records = subject.line.records(tmp_path / subject.file, subject.target)
    assert signatures(protocol.Records).items() <= signatures(type(records)).items()
    assert all(hasattr(records, name) for name in protocol.Records.__annotations__)
    records.close()


def test_tasks_are_distinct_and_know_their_weights(subject):
    tasks = [t for t in subject.tasks() if t.weight]
    assert sorted(t.weight for t in tasks) == [1, 2] and len({t.key for t in tasks}) == 2
    assert all(t.flops > 0 and t.name for t in tasks)
    works = [subject.line.work(t, subject.target) for t in tasks]
    assert all(work.weights and work.key == task.key for work, task in zip(works, tasks, strict=True))
    elements = 2 * 24 * 24 + 24 * 40
    assert 4 * elements <= subject.tasks().weight_bytes <= 4 * (elements + 3 * 40)  # and biases


def test_a_device_must_run_the_target_s_code(subject):
    assert subject.line.device(None, subject.target).kind == "cpu"
    assert subject.line.device("a100", subject.gpu).name == "a100"
    with pytest.raises(TargetError, match="device 'a100' is a gpu") as caught:
        subject.line.device("a100", subject.target)
    assert caught.value.remedy
