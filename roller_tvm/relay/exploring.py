"""Explorations on the Relay line: variants of a built model's kernels, compiled in workers, linked beside its own."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm.contrib import cc, graph_executor

from ..errors import ToolchainError, UsageError
from ..explore.dispatch import PACKED as CONVENTION
from ..explore.dispatch import Site, Table, source
from ..models.package import REPORT
from ..tuning.explorable import (
    PROFILED_RUNS,
    RECORD,
    TVM,
    Arguments,
    Class,
    Explorable,
    Linked,
    checked,
    for_fewer_cores,
    wanted_plans,
)
from ..tuning.remote_run import Sent, SentTable, Server, no_server
from ..tuning.supervise import Pool, Reply
from ..tvm_env.compiler import find_compiler, system_install
from .building import ASKED
from .compiling import Compiled, written
from .cuda_variants import CUBIN, checked_on_device, compile_sources, opened, table_of, write_parts
from .cuda_variants import MODULE as DEVICE
from .dense_weights import Asked
from .line import LINE
from .package import LoadedModel, save_params
from .planned import TOP
from .remote_model import RemoteModel
from .tasks import task_of
from .variant_worker import MODULE
from .variants import Call, Graph
from .worker_side import layout_mode

#: Name of a model's own kernels among the files of a GPU's library.
BASE = "base"
#: Seconds that a variant may take to compile.
LIMIT_S = 120.0
#: TVM's names of a function's inputs.
_INPUT = re.compile(r"p(\d+)")


@dataclass
class _Own:
    """A class under construction: beside its plans, the position of the graph's inputs and outputs in its task.

    Parameters
    ----------
    sources : list of (kind, int)
        Of each tensor of the task, which input or output of a call it is.
    start : dict of int to index
        Operands that the start wants packed: which element of the plain operand each of theirs is.
    variants : dict of label to the same
        Those that were compiled.
    """

    known: Class
    sources: list[tuple[str, int]]
    start: dict[int, np.ndarray] = field(default_factory=dict)
    variants: dict[str, dict[int, np.ndarray]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


def operator_seconds(built: Any, loaded: Any, inputs: Mapping[str, Any], folder: Path) -> dict[str, float]:
    """Return the seconds of each kernel; see ``models.line.ModelLine.operator_seconds``.

    Sites take the times here too: TVM's profiler ends its threads first, which takes minutes on a busy machine, as they
    give way 300,000 times before they end.
    """
    _require(built)
    seconds: Counter[str] = Counter()
    if _on_card(built):
        for row in loaded.kernel_times(inputs, PROFILED_RUNS):
            seconds[row.name] += row.seconds
        return dict(seconds)
    graph = Graph(built.graph_json, built.params)
    for call in graph.calls:
        call.start("start")
    sites = [call.site() for call in graph.calls]
    library, model = _loaded(graph, built, sites, [], folder / "profiled.so")
    table = Table(library, len(sites))
    model.call(inputs)
    table.choose([0] * len(sites))
    for _ in range(PROFILED_RUNS):
        model.call(inputs)
    for call, own in zip(graph.calls, table.seconds(), strict=True):
        seconds[call.kernel] += own
    return dict(seconds)


def _require(built: Any) -> None:
    if find_compiler() is None:
        remedy = system_install("g++")
        raise ToolchainError("a library with variants cannot be linked: there is no C++ compiler", "explore", remedy)
    if not isinstance(built, Compiled) and not _on_card(built):
        remedy = "tune, or take a CPU or an NVIDIA GPU as the target"
        raise UsageError("its kernels are not compiled one by one", "explore", remedy)


def _on_card(built: Any) -> bool:
    """Return whether the kernels of a built model are an NVIDIA GPU's."""
    return any(module.type_key == "cuda" for module in built.get_lib().imported_modules)


def explorable(
    job: Any, built: Any, top: int, share: Callable[[str], float], least: float, folder: Path, threads: int,
    memory_bytes: int, tell: Callable[[str], None], server: Server | None = None,
) -> Explorable:  # fmt: skip
    """Link the `top` best plans of each operator to a built model; see ``models.line.ModelLine.explorable``."""
    _require(built)
    aim, card = job.aim, _on_card(built)
    if card and server is not None:
        raise no_server("cuda")
    asked: dict[str, Asked] = getattr(built, ASKED)
    with Pool(threads, 1, DEVICE if card else MODULE) as pool:
        pool.start()  # they import TVM meanwhile
        tell("plan")
        graph = Graph(built.graph_json, built.params)
        found = {call.kernel: asked[call.kernel] for call in graph.calls if call.kernel in asked}
        classes = {name: one.key for name, one in found.items()}
        shares: Counter[str] = Counter()
        for name, key in classes.items():
            shares[key] += share(name)
        owns: dict[str, _Own] = {}
        for name, one in found.items():
            if (key := classes[name]) not in owns:
                owns[key] = _planned(one, name, aim, wanted_plans(shares[key], top, least))
        tell("compile")
        write = "write_cuda_variant" if card else "write_variant"
        objects = _compiled(pool, owns, found, classes, folder, job.packed and not card, write)
        if card:
            bad = compile_sources(list(objects.values()), str(aim.target.arch), threads)
            for (key, label), path in list(objects.items()):
                if path in bad:
                    owns[key].failed[label] = bad[path]
                    del objects[key, label]
        linked = _linked(graph, built, owns, classes, objects, folder, memory_bytes, job.model.inputs, server)
        tell("check")
        known = {key: own.known for key, own in owns.items()}
        if card:
            cubins = _cubins(map(str, objects.values()), folder)
            failed = checked_on_device(pool, aim.target, linked, cubins, classes, known)
        elif server is not None:
            with server.checkers(threads) as checkers:
                failed = checked(checkers, LINE, aim.target, linked, classes, known)
        else:
            failed = checked(pool, LINE, aim.target, linked, classes, known)
    return Explorable(linked.model, linked, classes, known, failed, LINE, aim.target)


def _planned(one: Asked, name: str, aim: Any, top: int) -> _Own:
    """Return a workload's plans, the first being what the build took."""
    task = task_of(one.workload, aim.target, aim.device, name, one.dag)
    known = Class(task, LINE.candidates(task, aim.device, max(top, TOP)))
    if one.how != "planned":
        known.plans[RECORD if one.how == "record" else TVM] = None
    sources = _sources(task)
    for candidate, schedule in known.found.schedules():
        if len(known.plans) >= (max(1, top) if sources else 1):
            break
        known.add(candidate, schedule)
    if len(known.plans) > 1:
        known.add_fewer(for_fewer_cores(LINE, task, aim.device, known.found.plans[0]))
    if not known.plans:
        known.plans[TVM] = None
    return _Own(known, sources)


def _sources(task: Any) -> list[tuple[str, int]]:
    """Return which input or output of a call each tensor of a task is; [] if its names do not tell."""
    found, outputs = [], 0
    for tensor in task.search_task.compute_dag.tensors:
        if not isinstance(tensor.op, tvm.te.PlaceholderOp):
            found.append(("out", outputs))
            outputs += 1
        elif told := _INPUT.fullmatch(str(tensor.op.name)):
            found.append(("in", int(told[1])))
        else:
            return []
    return found


def _compiled(
    pool: Pool, owns: Mapping[str, _Own], found: Mapping[str, Asked], classes: Mapping[str, str], folder: Path,
    packed: bool, write: str,
) -> dict[tuple[str, str], Path]:
    """Compile all variants but the starts; return their object files by class and label.

    Parameters
    ----------
    packed : bool
        Whether the starts want weights packed.
    write : str
        Function of the workers.
    """
    calls, where = [], []
    states = {classes[name]: one.state for name, one in found.items()}
    for number, (key, own) in enumerate(owns.items()):
        task = own.known.task
        work, mode = LINE.work(task, None), layout_mode(task.search_task)
        labels = list(own.known.plans)
        for n, label in enumerate(labels):
            path = folder / f"v{number}_{n}"
            chosen = own.known.plans[label]
            state = states[key] if n == 0 else chosen[1] if chosen is not None else None
            if len(labels) == 1 or state is None or (n == 0 and not packed):
                continue
            given = (work.text, work.target, LINE.record(task, state, None), mode)
            calls.append((write, (*given, path.name, str(path)), LIMIT_S) if n else
                         ("write_layouts", (*given, str(path)), LIMIT_S))  # fmt: skip
            where.append((key, label, n, path))
    objects = {}
    for (key, label, n, path), (_, _, reply) in zip(where, pool.map(calls), strict=True):
        own = owns[key]
        maps = {at: np.load(f"{path}.{at}.npy") for at in reply.value} if reply.ok else {}
        if n and reply.ok:
            own.variants[label] = maps
            objects[key, label] = path
        elif n:
            own.failed[label] = _why(reply)
        elif reply.ok:
            own.start = maps
        else:  # nothing else can stand in for it
            own.failed.update({one: _why(reply) for one in list(own.known.plans)[1:]})
    return objects


def _why(reply: Reply) -> str:
    return f"{reply.kind}: {reply.text}"


def _linked(
    graph: Graph, built: Any, owns: Mapping[str, _Own], classes: Mapping[str, str],
    objects: Mapping[tuple[str, str], Path], folder: Path, memory: int, inputs: Any, server: Server | None,
) -> Linked:  # fmt: skip
    """Link the model's kernels, their variants and the sites, and load the graph that calls them."""
    failed: dict[tuple[str, str], str] = {}
    arguments: list[dict[str, Arguments]] = []
    weights: list[Mapping[int, np.ndarray]] = []
    for call in graph.calls:
        own = owns.get(classes.get(call.kernel, ""))
        options = _Options(call, own) if own is not None else None
        call.start("start" if own is None else next(iter(own.known.plans)))
        arguments.append({} if options is None else {call.options[0][0]: options.start()})
        weights.append({} if options is None else options.plain)
        for label in [] if own is None or options is None else list(own.known.plans)[1:]:
            why = own.failed.get(label, "") or options.refusal(label)
            before = sum(w.nbytes for w in call.more)
            if not why:
                arguments[-1][label] = options.add(label, objects[classes[call.kernel], label].name)
                memory -= sum(w.nbytes for w in call.more) - before
                if memory < 0:
                    why = "its weights in another layout need more memory than is given"
            if why:
                failed[call.kernel, label] = why
    _drop(graph.calls, classes, failed)
    sites = [call.site() for call in graph.calls]
    own_objects = [f"{path}.o" for path in objects.values()]
    if server is not None:
        library, text = _written(built, sites, own_objects, folder / "variants.so"), graph.through_sites(sites)
        weights_there = bytearray(save_params(graph.params))
        model: Any = RemoteModel(sent := Sent(server, library), _executor(text, weights_there), inputs,
                                 getattr(built, REPORT))  # fmt: skip
        return Linked(model, library, sites, SentTable(sent, len(sites)), failed, arguments, weights)
    library, model = _loaded(graph, built, sites, own_objects, folder / "variants.so")
    if _on_card(built):
        table: Table = table_of(library, len(sites))
    else:
        table = Table(library, len(sites))
    return Linked(model, library, sites, table, failed, arguments, weights)


def _loaded(
    graph: Graph, built: Any, sites: Sequence[Site], objects: Sequence[str], library: Path
) -> tuple[Path, LoadedModel]:
    """Return a library of the model's kernels, further object files and sites, and the graph that calls them, loaded.
    """
    _written(built, sites, objects, library)
    text = graph.through_sites(sites)
    if _on_card(built):
        run = opened(os.fspath(library), _cubins(objects, library.parent))
    else:
        run = tvm.runtime.load_module(os.fspath(library))
        for other in built.empty.imported_modules:
            run.import_module(other)
    return library, LoadedModel.of_parts(run, text, graph.params, getattr(built, REPORT))


def _executor(text: str, weights: bytearray) -> Callable[[Any, Any], Any]:
    """Return a function of a library and a device: the executor of a graph."""

    def made(library: Any, device: Any) -> Any:
        module = graph_executor.create(text, library, device)
        module.load_params(weights)
        return module

    return made


def _written(built: Any, sites: Sequence[Site], objects: Sequence[str], library: Path) -> Path:
    """Link the model's kernels, further object files and sites into a library; return its path."""
    code, card = library.with_suffix(".cc"), _on_card(built)
    code.write_text(source(sites, CONVENTION, events=card), encoding="utf-8")
    if card:
        write_parts(built.get_lib(), str(library.with_name(BASE)))
        own = [str(library.with_name(f"{BASE}.o"))]
    else:
        own = written(built.kernels.objects, str(library.parent))
    cc.create_shared(os.fspath(library), [*objects, *own, os.fspath(code)], options=["-O2"])
    return library


def _cubins(objects: Iterable[str], folder: Path) -> list[str]:
    """Return the files of device code: the model's, and those of the variants."""
    return [f"{path.removesuffix('.o')}{CUBIN}" for path in (str(folder / BASE), *objects)]


def _drop(calls: Sequence[Call], classes: Mapping[str, str], failed: Mapping[tuple[str, str], str]) -> None:
    """Take options out of all calls of a class where one of them cannot have it."""
    out = {(classes[name], label) for name, label in failed}
    for call in calls:
        key = classes.get(call.kernel, "")
        call.options = [o for n, o in enumerate(call.options) if not n or (key, o[0]) not in out]


class _Options:
    """The variants of a call, and the constants of its task.

    Attributes
    ----------
    plain : dict of int to array
        Values of the task's constants, by position in the task.
    """

    def __init__(self, call: Call, own: _Own) -> None:
        self.call, self.own = call, own
        self.plain: dict[int, np.ndarray] = {}
        self.given: dict[int, np.ndarray] = {}
        tensors = own.known.task.search_task.compute_dag.tensors
        for at, (kind, n) in enumerate(own.sources):
            if kind == "in" and n in call.weights:
                self.given[at] = call.weights[n]
                self.plain[at] = _unpacked(call.weights[n], own.start.get(at), [int(e) for e in tensors[at].shape])

    def start(self) -> Arguments:
        """Return the arguments of the kernel as built, which takes inputs and outputs in the graph's order."""
        in_graph = sorted(range(len(self.own.sources)), key=lambda at: self.own.sources[at])
        return Arguments({at: self.given[at] for at in self.own.start if at in self.given}, {}, tuple(in_graph))

    def refusal(self, label: str) -> str:
        """Return why a variant cannot stand in here, or ''."""
        packed = {*self.own.start, *self.own.variants[label]}
        return "" if packed <= set(self.plain) else "its weights are no constants"

    def add(self, label: str, kernel: str) -> Arguments:
        """Add a variant to the call; return its arguments."""
        packed = {at: self.plain[at].reshape(-1)[index] for at, index in self.own.variants[label].items()}
        sources = []
        for at, (kind, n) in enumerate(self.own.sources):
            wanted = packed.get(at, self.plain.get(at))
            sources.append((kind, n) if wanted is None or kind == "out" else self.call.weight(n, wanted))
        self.call.options.append((label, kernel, sources))
        return Arguments(packed)


def _unpacked(values: np.ndarray, index: np.ndarray | None, shape: Sequence[int]) -> np.ndarray:
    """Return a weight as the task has it."""
    if index is None:
        return values.reshape(tuple(shape))
    plain = np.empty(values.size, values.dtype)
    plain[index.reshape(-1)] = values.reshape(-1)
    return plain.reshape(tuple(shape))
