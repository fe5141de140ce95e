"""Backend of ``torch.compile``: ``torch.compile(module, backend="roller")``, found by its entry point.

A graph that torch captured is exported, built with Roller's schedules at its first call, and run on torch's own memory.
A graph that cannot be built runs in torch as it is, and a warning tells the reason.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from roller_tvm import api
from roller_tvm.errors import BadInput, RollerError, UnsupportedOperator, UsageError, last_line
from roller_tvm.models.arguments import bind
from roller_tvm.torch_graph import Captured, Program, number

#: Keywords of `api.compile` that ``options=`` may hold.
OPTIONS = ("target", "records", "schedules", "layout", "device", "threads", "fuse_rtasks")
#: Builds of one graph, one for each shape that the exporter fixed and each number; torch's own limit is 8 too.
MOST_BUILDS = 8


class RunsInTorch(UserWarning):
    """A graph that Roller did not build, with the reason; torch runs it."""


def roller(graph: Any, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None, **_: Any) -> Any:
    """Return a function that computes a captured graph; the backend "roller" of ``torch.compile``.

    Parameters
    ----------
    graph : torch.fx.GraphModule
    example_inputs : sequence
        Its arguments: tensors, weights among them, and open extents.
    options : mapping, optional
        Keywords of `roller_tvm.compile`: target, records, schedules, layout, device, threads, fuse_rtasks.

    Raises
    ------
    UsageError
        An option is unknown.

    Examples
    --------
    >>> fast = torch.compile(module.eval(), backend="roller")
    >>> with torch.no_grad():
    ...     y = fast(x)
    """
    import torch

    options = dict(options or {})
    if unknown := [name for name in options if name not in OPTIONS]:
        told = f"torch.compile has no option '{unknown[0]}' for the backend roller"
        raise UsageError(told, "options", f"give {', '.join(OPTIONS)}")
    if torch.is_grad_enabled() and any(getattr(one, "requires_grad", False) for one in example_inputs):
        _warn("gradients are computed", "call it under torch.no_grad() or torch.inference_mode()")
        return graph.forward
    try:
        return _Compiled(Captured(graph, example_inputs), options)
    except UnsupportedOperator as error:
        _warn(error.what, error.remedy)
        return graph.forward


def _warn(what: str, remedy: str) -> None:
    warnings.warn(f"roller: torch runs this graph: {what}; {remedy}", RunsInTorch, stacklevel=3)


@dataclass(frozen=True)
class _Build:
    """A built program, and the numbers that it holds for."""

    model: api.Model
    program: Program
    numbers: tuple[Any, ...]


class _Compiled:
    """A captured graph, built when it is first called and again when its weights change.

    Each shape that the exporter fixed although torch leaves it open, and each number, gets a build of its own.
    """

    def __init__(self, captured: Captured, options: Mapping[str, Any]) -> None:
        self._captured, self._options = captured, options
        self._builds: list[_Build] = []
        self._versions: dict[int, tuple[int, int]] = {}
        self._changes: Counter[int] = Counter()
        self._in_torch = False

    def __call__(self, *arguments: Any) -> Any:
        if not self._in_torch:
            try:
                return self._run(arguments)
            except RollerError as error:
                self._leave(f"{error.what} ({error.where})" if error.where else error.what, error.remedy)
            except Warning:  # which the user made errors
                raise
            except Exception as error:  # of TVM or torch, whatever went wrong there
                self._leave(f"{type(error).__name__}: {last_line(error)}", "report it: this is an internal error")
        return self._captured.graph(*arguments)

    def _leave(self, what: str, remedy: str) -> None:
        """Run in torch from now on, and tell why."""
        self._in_torch, self._builds = True, []
        _warn(what, remedy)

    def _run(self, arguments: Sequence[Any]) -> tuple[Any, ...]:
        import torch

        captured = self._captured
        self._see_weights(arguments)
        numbers = tuple(arguments[n] for n in captured.numbers)
        given = [arguments[n] for n in captured.inputs]
        build = next((one for one in self._builds if one.numbers == numbers and _takes(one.model, given)), None)
        if build is None:
            build = self._built(arguments, numbers)
            given = [arguments[n] for n in captured.inputs]  # weights that the graph changes are inputs now
        program = build.program
        if program.changed and _overlap(given):
            raise UnsupportedOperator("it changes an input that shares memory with another", remedy="give copies")
        inputs = dict(zip(build.model.inputs, map(_plain, given), strict=True))
        made = [_tensor(one) for one in build.model.run(inputs, True)]
        changed = len(program.changed)
        extents = captured.extents(arguments)
        outputs = _apart(made[changed:], program, given, extents)
        with torch.no_grad():
            for position, value in zip(program.changed, made, strict=False):
                arguments[position].copy_(value)
        return tuple(result.of(outputs, arguments, extents) for result in program.results)

    def _see_weights(self, arguments: Sequence[Any]) -> None:
        """Forget builds if weights have changed; one that changes again is an input from then on."""
        versions = {n: _version(arguments[n]) for n in self._captured.weights}
        if changed := [n for n, version in versions.items() if self._versions.get(n, version) != version]:
            warnings.warn("roller: weights have changed; the graph is built again", stacklevel=4)
            self._builds = []
            self._changes.update(changed)
            self._captured.changing([n for n in changed if self._changes[n] > 1])
        self._versions = versions

    def _built(self, arguments: Sequence[Any], numbers: tuple[Any, ...]) -> _Build:
        if len(self._builds) == MOST_BUILDS:
            remedy = "mark open dimensions: torch._dynamo.mark_dynamic; give numbers as tensors"
            raise UnsupportedOperator(f"{MOST_BUILDS} shapes or numbers are built", remedy=remedy)
        program = self._captured.program(arguments)
        options = dict(self._options)
        if self._captured.device == "cuda":
            options.setdefault("target", "cuda")
        model = api.compile(program.exported, **options)
        if not _takes(model, [arguments[n] for n in self._captured.inputs]):
            told = ", ".join(f"{name} {list(shape)}" for name, (shape, _) in model.inputs.items())
            raise BadInput(f"the importer changed its inputs to {told}", "graph", "report it")
        build = _Build(model, program, numbers)
        self._builds.append(build)
        return build


def _version(weight: Any) -> tuple[int, int]:
    """Return values that change when a weight changes in place or is another."""
    return weight.data_ptr(), 0 if weight.is_inference() else weight._version


def _plain(tensor: Any) -> Any:
    """Return a tensor without gradient that DLPack can export; one of a type that numpy lacks as an array."""
    import torch

    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    if plain.dtype is torch.bfloat16 and plain.device.type == "cpu":
        import ml_dtypes

        return plain.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return plain


def _tensor(made: Any) -> Any:
    """Return an output as a tensor of torch, in the same memory."""
    import torch

    return torch.from_dlpack(made) if hasattr(made, "__dlpack__") else torch.as_tensor(made)


def _apart(outputs: Sequence[Any], program: Program, inputs: Sequence[Any], extents: Mapping[Any, Any]) -> list[Any]:
    """Return outputs in memory of their own, with the strides that torch gives them.

    TVM may return an input, a constant, or one tensor twice where torch returns copies.
    """
    import torch

    found: list[Any] = []
    for one, strides, own in zip(outputs, program.strides, program.own, strict=True):
        wanted = tuple(number(n, extents) for n in strides)
        if not one.numel() or any(a != b for a, b, n in zip(wanted, one.stride(), one.shape, strict=True) if n > 1):
            one = torch.empty_strided(one.shape, wanted, dtype=one.dtype, device=one.device).copy_(one)
        elif not own or _overlap([one, *inputs, *found], first_only=True):
            one = one.clone()
        found.append(one)
    return found


def _overlap(tensors: Sequence[Any], first_only: bool = False) -> bool:
    """Return True if two tensors, or the first and another, share memory."""
    spans = [_span(one) for one in tensors]
    pairs = [(0, n) for n in range(1, len(spans))] if first_only else list(combinations(range(len(spans)), 2))
    return any(spans[a][0] < spans[b][1] and spans[b][0] < spans[a][1] for a, b in pairs)


def _span(tensor: Any) -> tuple[int, int]:
    """Return the first and the last address of a tensor's elements."""
    start = tensor.data_ptr()
    if not tensor.numel():
        return start, start
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + (last + 1) * tensor.element_size()


def _takes(model: api.Model, tensors: Any) -> bool:
    """Return True if a model takes tensors of these shapes."""
    extents: dict[str, int] = {}
    shapes = [shape for shape, _ in model.inputs.values()]
    try:
        for shape, one in zip(shapes, tensors, strict=True):
            bind(extents, "input", tuple(one.shape), shape, "graph")
    except (BadInput, ValueError):
        return False
    return True
