"""Find the operator of a record from Ansor's workload key, or from the file's name."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from roller_tvm.errors import RollerError
from roller_tvm.ir import TensorExpression
from roller_tvm.ir.operators import operator
from roller_tvm.ir.pattern import pattern

from .state import StageInfo, Unreadable


@dataclass(frozen=True)
class Workload:
    """An operator with its stages in Ansor's numbering."""

    kind: str  # 'conv2d', 'depthwise', 'matmul', 'pooling', 'reduction' (see ``kind_of``)
    expression: TensorExpression
    #: Stages, named as in the expression. An empty padding has a stage in Ansor's DAG, also named 'pad'.
    stages: tuple[StageInfo, ...]
    anchor: str  # name of the stage with the reduction
    #: Stage read by the anchor, and the expression's tensor for it, if their names differ.
    operands: tuple[tuple[str, str], ...] = ()
    name: str = ""  # name of the operator in its model

    def operand_of(self, stage: str) -> str:
        return dict(self.operands).get(stage, stage)


def kind_of(expression: TensorExpression) -> str:
    """Return the kind of an operator, as ``replay`` names it.

    Examples
    --------
    >>> kind_of(operator("conv2d_nchw", n=1, c=8, h=8, w=8, f=8, kh=3, kw=3, stride=1, padding="SAME"))
    'conv2d'
    """
    kind = pattern(expression)
    if kind == "contraction":
        windows = any(len(index.axes) > 1 for access in expression.anchor.reads for index in access.indices)
        return "conv2d" if windows else "matmul"
    return kind


def _padding(value: Any) -> Any:
    """Return a padding as text: 'SAME', 'VALID', a number, or several."""
    if isinstance(value, str) and not value.isdigit():
        return value
    return str(value) if isinstance(value, int | str) else "x".join(map(str, value))


def _windowed(kind: str, build: str, args: Sequence[Any], names: Sequence[str], pads: bool = True) -> Workload:
    *numbers, stride, padding = args
    if len(numbers) != len(names):
        raise Unreadable(f"a {kind} of {len(args)} arguments, not {len(names) + 2}")
    given = dict(zip(names, numbers, strict=True))
    expression = operator(build, **given, stride=_padding(stride), padding=_padding(padding))
    return _staged(kind, expression, pads or "pad" in [s.name for s in expression.stages])


def _staged(kind: str, expression: TensorExpression, pads: bool) -> Workload:
    """Return the workload with stages in Ansor's order: an input before its reader, padding right after the data."""
    anchor = expression.anchor
    stages: list[StageInfo] = []
    operands: list[tuple[str, str]] = []
    for access in anchor.reads:
        tensor = expression.tensors[access.tensor]
        shape = tensor.shape
        if access.tensor == "pad":
            stages.append(StageInfo("data", expression.tensors["data"].shape, is_input=True))
            stages.append(StageInfo("pad", shape))
        else:
            stages.append(StageInfo(access.tensor, shape, is_input=True))
            if access.tensor == "data" and pads:
                stages.append(StageInfo("pad", shape))
        operands += [("pad", access.tensor)] if access.tensor == "data" else []
    computed = [s for s in expression.stages if s.name != "pad"]
    for stage in computed:
        extents = [(a.extent, a.is_reduce) for a in stage.axes]
        stages.append(StageInfo(
            stage.name, tuple(e for e, r in extents if not r), tuple(e for e, r in extents if r)
        ))  # fmt: skip
    return Workload(kind, expression, tuple(stages), anchor.name, tuple(operands))


def _conv2d(*args: Any) -> Workload:
    return _windowed("conv2d", "conv2d_nchw", args, ("n", "c", "h", "w", "f", "kh", "kw"))


def _depthwise(*args: Any) -> Workload:
    return _windowed("depthwise", "depthwise_conv2d_nchw", args, ("n", "c", "h", "w", "kh", "kw"))


def _pooling(mode: str, *args: Any) -> Workload:
    if mode not in ("avg", "max"):
        raise Unreadable(f"pooling by {mode!r}, not 'avg' or 'max'")
    names = ("n", "c", "h", "w", "kh", "kw")
    return _windowed("pooling", f"{mode}_pool2d_nchw", args, names, pads=False)


def _matmul(m: int, k: int, n: int) -> Workload:
    return _staged("matmul", operator("matmul", m=m, n=n, k=k), False)


def _reduction(shape: Sequence[int], axes: Any, keepdims: Any = False) -> Workload:
    axes = [axes] if isinstance(axes, int) else list(axes)
    text = {"shape": "x".join(map(str, shape)), "axis": "x".join(map(str, axes))}
    return _staged("reduction", operator("reduce_sum", **text, keepdims=str(bool(keepdims)).lower()), False)


#: Names of workloads, in keys and at the start of file names.
KINDS: dict[str, Callable[..., Workload]] = {
    "conv2d_layer": _conv2d, "conv2d": _conv2d, "conv": _conv2d,
    "depthwise_conv2d_layer": _depthwise, "depthwise_layer": _depthwise, "depthwise": _depthwise,
    "pool_layer": _pooling, "pooling": _pooling,
    "matmul_layer": _matmul, "matmul": _matmul,
    "reduction_layer": _reduction,
}  # fmt: skip


#: Ansor's name for a task extracted from a network: blake2b or md5 of its DAG, from which no operator can be derived.
HASH = re.compile(r"[0-9a-f]{32}")
HASHED = "its workload is known by a hash alone"


def hashed(key: str) -> bool:
    """Return True if a workload key identifies its operator only by a hash.

    Examples
    --------
    >>> hashed('["c75fea8a729fa8512d4c275837a40cc4", [1, 64, 56, 56]]'), hashed('["matmul", 8, 8, 8]')
    (True, False)
    """
    try:
        name = json.loads(key)[0]
    except (ValueError, TypeError, IndexError, KeyError, RecursionError):
        return False
    return isinstance(name, str) and HASH.fullmatch(name) is not None


def workload_of(key: str, file_name: str = "") -> Workload:
    """Return the operator named by a workload key, or by the file's name if the key is a hash.

    Raises
    ------
    Unreadable
        Neither names a known operator.

    Examples
    --------
    >>> workload_of('["matmul_layer", 128, 4032, 1000]').expression.output.shape
    (128, 1000)
    >>> workload_of('["0123abcd"]', "conv_128_64_56_56_64_3_3_1_SAME.json.gz").kind
    'conv2d'
    """
    return _workload(key, file_name.split(".")[0])


@functools.lru_cache(maxsize=1024)
def _workload(key: str, stem: str) -> Workload:
    try:
        name, *args = json.loads(key)
    except (ValueError, TypeError):
        raise Unreadable(f"workload key {key!r:.60} is no list") from None
    build = KINDS.get(name) if isinstance(name, str) else None
    if build is None:
        words = re.split(r"[_\s]+", stem)
        build = KINDS.get(words[0])
        args = [int(w) if w.lstrip("-").isdigit() else w for w in words[1:]]
    if build is None and hashed(key):
        raise Unreadable(
            f"{HASHED} ({name[:8]}..): pass the model it came from, --tasks-of MODEL, or name the file after the "
            "operator, as matmul_1024_1024_1024"
        )
    if build is None:
        known = ", ".join(sorted(KINDS))
        raise Unreadable(f"workload {name!r:.60} is not one of {known}, and neither is the file's name")
    try:
        return build(*args)
    except (TypeError, ValueError, RollerError) as error:
        raise Unreadable(f"workload {key!r:.80}: {str(error).splitlines()[0]}") from None
