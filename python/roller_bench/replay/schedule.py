"""``roller-tvm schedule``: records of Ansor and MetaSchedule as the scripts that ``plan --schedule`` prints."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from pathlib import Path

from roller_bench.replay.command import add_records, of_model
from roller_bench.replay.databases import apart
from roller_bench.replay.records import Recorded, find_files, read_file
from roller_bench.replay.replay import WorkloadOf, named_workload
from roller_bench.replay.state import Unreadable
from roller_bench.replay.workload import Workload, hashed
from roller_tvm.device import load_device
from roller_tvm.errors import BadInput, RollerError
from roller_tvm.ir import TensorExpression
from roller_tvm.ir.operators import parse_operator, parse_params
from roller_tvm.planner.explain.words import seconds
from roller_tvm.schedules.from_state import script_of_record
from roller_tvm.schedules.names import Loops
from roller_tvm.schedules.renaming import names_in
from roller_tvm.schedules.script import Script
from roller_tvm.tvm_env import Line, find_tvm
from roller_tvm.tvm_env.locate import refuse_other_line

#: Times from which a record did not run.
_NO_TIME = 1e3


@dataclass(frozen=True)
class Told:
    """A record as a script, or the reason why it is none."""

    title: str
    seconds: float
    script: Script | None
    error: RollerError | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the verb."""
    add_records(parser)
    told = "call stages and loops as 'plan' calls those of this operator, in quotes: \"matmul m=64 n=64 k=64\""
    parser.add_argument("--of", metavar="OPERATOR", help=told)
    parser.add_argument("--every", action="store_true", help="print every record, not the fastest of each operator")
    parser.add_argument("--device", default="cpu", help="device of the records; default cpu")
    parser.epilog = "Two tuners' choices are two such texts: compare them by diff.\n"


def run(args: argparse.Namespace) -> int:
    """Print scripts; 0 if each record is one."""
    wanted = parse_operator(args.of.split()) if args.of else None
    workload_of = _lookup(args, wanted)
    databases, others = apart(args.records)
    found = [told for folder in databases for told in _traces(folder, args.every, wanted)]
    for path in find_files(others):
        found += _states(path, args.every, workload_of, wanted)
    if not found:
        raise BadInput("no record ran", str(args.records[0]), "give records of Ansor or MetaSchedule")
    for number, told in enumerate(found):
        time = seconds(told.seconds) if 0 < told.seconds < _NO_TIME else "not measured"
        print(f"{chr(10) * bool(number)}# {told.title}: {time}")
        print(told.script if told.script is not None else f"# {told.error.one_line() if told.error else ''}")
    return int(any(told.script is None for told in found))


def _lookup(args: argparse.Namespace, wanted: TensorExpression | None) -> WorkloadOf:
    """Return the function that finds the operator of a record."""
    if args.tasks_of is not None:
        return of_model(args, load_device(args.device), any_target=True)

    def find(record: Recorded, path: Path) -> Workload:
        if wanted is None or not hashed(record.key):
            return named_workload(record, path)
        refuse_other_line(Line.RELAY, find_tvm(), "reading an operator as Ansor does")
        from roller_bench.replay.relay import workload_of_dag
        from roller_tvm.te import te_operator
        from roller_tvm.tvm_env import import_relay_tvm

        tvm = import_relay_tvm("reading an operator as Ansor does")
        name, *params = args.of.split()
        tensors = list(te_operator(name, **parse_params(" ".join(params))))
        return workload_of_dag(tvm.auto_scheduler.ComputeDAG(tensors))

    return find


def _states(path: Path, every: bool, workload_of: WorkloadOf, wanted: TensorExpression | None) -> Iterator[Told]:
    """Yield Ansor's records of a file, the fastest of each operator or all."""
    for record in _chosen(read_file(path).records, every):
        where = f"{path.name}:{record.number}"
        try:
            workload = workload_of(record, path)
            own: dict[str, Loops] = {}
            for stage in workload.stages:
                loops = [f"i{n}" for n in range(len(stage.spatial))], [f"k{n}" for n in range(len(stage.reduce))]
                own[stage.name] = len(stage.spatial) if stage.is_input else loops
            names, stages = names_in(own, workload.expression, wanted or workload.expression)
            title = f"{wanted.name if wanted else workload.kind}, {where}"
            yield Told(title, record.seconds, script_of_record(record.steps, stages, where))
        except Unreadable as error:
            told = BadInput(str(error), where, "name its operator by --of or its model by --tasks-of")
            yield Told(where, record.seconds, None, told)
        except RollerError as error:
            yield Told(where, record.seconds, None, error)


def _chosen(records: tuple[Recorded, ...], every: bool) -> list[Recorded]:
    if every:
        return list(records)
    best: dict[tuple[str, str], Recorded] = {}
    for record in records:
        key = record.key, record.target_kind
        if record.ran and record.seconds < best.get(key, record).seconds or key not in best:
            best[key] = record
    return list(best.values())


def _traces(folder: Path, every: bool, wanted: TensorExpression | None) -> Iterator[Told]:
    """Yield the records of a database of MetaSchedule, the fastest of each workload or all."""
    refuse_other_line(Line.RELAX, find_tvm(), "reading traces of MetaSchedule")
    from roller_bench.replay.relax import traces
    from roller_tvm.relax.trace_script import script_of_line

    best: dict[str, tuple[float, Told]] = {}
    for title, mod, reading, number, line, time in traces(folder):
        if not every and time >= best.get(title, (inf, None))[0]:
            continue
        where = f"{folder.name}:{number}"
        name = wanted.name if wanted else title
        try:
            told = Told(f"{name}, {where}", time, script_of_line(mod, line, reading, where, wanted))
        except RollerError as error:
            told = Told(f"{name}, {where}", time, None, error)
        except ValueError as error:
            told = Told(f"{name}, {where}", time, None, BadInput(str(error), where, "give records of a tuner"))
        if every:
            yield told
        best[title] = time, told
    if not every:
        yield from (told for _, told in best.values())
