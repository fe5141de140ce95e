"""From a model to a package for several nodes: read, shared, lowered, proven, each piece built as any model is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..device import DeviceSpec, spec_text
from ..errors import BadInput, UsageError
from ..folders import work_folder
from ..models.line import ModelLine, Request
from ..session import Session
from .choose import Choice, choose_nodes
from .lowering import Lowered, lower
from .onnx_reader import Source, read_graph
from .package import SUFFIX, write
from .pieces import piece_model
from .program import Program
from .proof import prove
from .times import Times


def planned(
    model: Any, name: str, device: DeviceSpec, nodes: int | None = None, shapes: Mapping[str, Any] | None = None,
    states: Mapping[str, str] | None = None, along: Mapping[str, str] | None = None,
) -> tuple[Source, Lowered]:  # fmt: skip
    """Return the program of an ONNX model, with predictions for other numbers of nodes.

    Parameters
    ----------
    model : onnx.ModelProto
    name : str
    device : DeviceSpec
        A node, with its network.
    nodes : int, optional
        By default the number that is predicted to be done first, of those that the network has.
    along : mapping of operator (or its first output) to axis, optional
        Axes that are not the model's to choose; 'none' has each node compute all of it.

    Raises
    ------
    SpecError, UsageError, BadInput, UnsupportedOperator, WrongAnswer
    """
    source = _along(read_graph(model, name, shapes, states), along or {})
    times = Times(source.graph, device, 1)  # refuses a device without a network
    most = times.network.nodes
    if nodes is not None and not 1 <= nodes <= most:
        raise UsageError(f"{nodes} nodes, and {device.name} has {most}", "--nodes", f"give 1 to {most}, or auto")
    made = {c.nodes: lowered(source, device, c) for c in choose_nodes(source.graph, device, most)}
    if nodes is None:
        nodes = min(made, key=lambda n: (made[n].program.predicted[0].seconds, made[n].program.bytes_sent))
    elif nodes not in made:
        made[nodes] = lowered(source, device, choose_nodes(source.graph, device, nodes)[-1])
    chosen = made[nodes]
    others = tuple([m.program.predicted[0] for n, m in sorted(made.items()) if n != nodes])
    program = replace(chosen.program, predicted=(*chosen.program.predicted, *others))
    prove(program)
    return source, replace(chosen, program=program)


def _along(source: Source, along: Mapping[str, str]) -> Source:
    """Return the model with the axes of some operators decided."""
    ops = list(source.graph.ops)
    for name, axis in along.items():
        number = next((n for n, op in enumerate(ops) if name in (op.name, op.outputs[0])), None)
        if number is None:
            raise BadInput(f"has no operator '{name}'", source.graph.name, "name one by its name or its first output")
        wanted = "" if axis == "none" else axis
        ways = tuple([way for way in ops[number].ways if way.axis == wanted])
        if not ways:
            known = ", ".join(way.axis or "none" for way in ops[number].ways)
            raise BadInput(f"'{name}' is not shared along '{axis}'", source.graph.name, f"its axes are {known}")
        ops[number] = replace(ops[number], ways=ways)
    return replace(source, graph=replace(source.graph, ops=tuple(ops)))


def lowered(source: Source, device: DeviceSpec, choice: Choice) -> Lowered:
    """Return the program of a choice."""
    return lower(source.graph, Times(source.graph, device, choice.nodes), choice)


def build(
    source: Source, made: Lowered, line: ModelLine, request: Request, output: Path,
    tell: Callable[[str], None] | None = None,
) -> Program:  # fmt: skip
    """Build each node's pieces, and write the package; return the program."""
    program = made.program
    assert isinstance(request.device, DeviceSpec)
    with work_folder() as folder:
        pieces: list[tuple[int, int, Path]] = []
        known: dict[bytes, Path] = {}  # nodes often compute the same: built once
        for node in range(program.nodes):
            for number in range(len(program.pieces)):
                if tell is not None:
                    tell(f"node {node}, piece {number + 1} of {len(program.pieces)}")
                model = piece_model(source, made, number, node)
                text = model.SerializeToString(deterministic=True)
                if text not in known:
                    path = Path(folder, f"piece{len(known)}.so")
                    known[text] = Session(line, request).read(model).save(path)
                pieces.append((node, number, known[text]))
        write(output, program, spec_text(request.device), line.folder, pieces)
    return program


def check_output(path: Path) -> Path:
    """Return a path that a package can be written to."""
    if path.suffix != SUFFIX:
        raise UsageError(f"'{path}' does not end in {SUFFIX}", "--output", f"give a name such as model{SUFFIX}")
    if not path.resolve().parent.is_dir():
        raise BadInput("no such folder", str(path.parent), f"mkdir -p {path.parent}")
    return path
