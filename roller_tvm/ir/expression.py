"""TensorExpression: the computation of an operator, free of any TVM.

A tensor expression is a small DAG of *stages*. One stage is the *anchor* (the contraction or the
reduction that is tiled); stages before it are *prologues* (padding, casts), stages after it are
*epilogues* (bias, activation, residual add).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from .affine import Index
from .stage import Access, Axis, Stage, Tensor


@dataclass(frozen=True)
class TensorExpression:
    """A fused operator: inputs, stages in topological order, and the name of the anchor stage.

    ``stored`` names stages that are outputs although other stages read them.

    Examples
    --------
    >>> from roller_tvm.ir.operators import matmul
    >>> e = matmul(m=64, n=32, k=16)
    >>> e.anchor.flops
    65536
    """

    name: str
    inputs: tuple[Tensor, ...]
    stages: tuple[Stage, ...]
    anchor_name: str
    tags: tuple[str, ...] = field(default=(), compare=False)
    stored: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        known = {t.name: t.shape for t in self.inputs}
        if len(known) != len(self.inputs):
            raise ValueError(f"expression '{self.name}': input names must differ")
        for stage in self.stages:
            where = f"expression '{self.name}': stage '{stage.name}'"
            for access in stage.reads:
                if access.tensor not in known:
                    raise ValueError(f"{where} reads '{access.tensor}', which is no input and no earlier stage")
                if len(access.indices) != len(known[access.tensor]):
                    raise ValueError(f"{where}: {access} has {len(access.indices)} indices, the tensor "
                                     f"{len(known[access.tensor])} dimensions")
            if stage.name in known:
                raise ValueError(f"expression '{self.name}': '{stage.name}' is defined twice")
            known[stage.name] = stage.shape
        if stray := set(self.stored) - {s.name for s in self.stages}:
            raise ValueError(f"expression '{self.name}': stored outputs {sorted(stray)} are not stages")
        if self.anchor_name not in {s.name for s in self.stages}:
            raise ValueError(f"expression '{self.name}': the anchor '{self.anchor_name}' is not a stage")

    @cached_property
    def _by_name(self) -> dict[str, Stage]:
        return {s.name: s for s in self.stages}

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """Every tensor, inputs and stages, by name."""
        every = {t.name: t for t in self.inputs}
        every.update({s.name: Tensor(s.name, s.shape, s.dtype) for s in self.stages})
        return every

    def stage(self, name: str) -> Stage:
        return self._by_name[name]

    def is_stage(self, name: str) -> bool:
        return name in self._by_name

    @cached_property
    def anchor(self) -> Stage:
        return self._by_name[self.anchor_name]

    @cached_property
    def output(self) -> Stage:
        """The last stage."""
        return self.stages[-1]

    @cached_property
    def outputs(self) -> tuple[Stage, ...]:
        """Output stages: those that no other stage reads, and those named in `stored`."""
        read = {a.tensor for s in self.stages for a in s.reads} - set(self.stored)
        return tuple(s for s in self.stages if s.name not in read)

    def consumers(self, name: str) -> tuple[Stage, ...]:
        return tuple(s for s in self.stages if any(a.tensor == name for a in s.reads))

    def _producers(self, name: str) -> set[str]:
        seen: set[str] = set()
        todo = [name]
        while todo:
            for access in self._by_name[todo.pop()].reads:
                if access.tensor in self._by_name and access.tensor not in seen:
                    seen.add(access.tensor)
                    todo.append(access.tensor)
        return seen

    @cached_property
    def prologues(self) -> tuple[Stage, ...]:
        """Stages that the anchor depends on."""
        before = self._producers(self.anchor_name)
        return tuple(s for s in self.stages if s.name in before)

    @cached_property
    def epilogues(self) -> tuple[Stage, ...]:
        """Stages that depend on the anchor."""
        return tuple(s for s in self.stages if self.anchor_name in self._producers(s.name))

    @cached_property
    def reductions(self) -> tuple[Stage, ...]:
        return tuple(s for s in self.stages if s.reduce)

    def resolve(self, stage: Stage, inlined: Iterable[str]) -> tuple[Access, ...]:
        """Return the reads of a stage, with the stages named in `inlined` composed away."""
        return self._resolved(stage, frozenset(inlined), {})

    def _resolved(
        self, stage: Stage, inline: frozenset[str], known: dict[str, tuple[Access, ...]]
    ) -> tuple[Access, ...]:  # fmt: skip
        if stage.name in known:
            return known[stage.name]
        result: dict[Access, None] = {}
        for access in stage.reads:
            if access.tensor not in inline:
                result[access] = None
                continue
            producer = self._by_name[access.tensor]
            inner = axis_values(producer, access, stage.extents)
            for deeper in self._resolved(producer, inline, known):
                result[replace(deeper.substitute(inner), guarded=deeper.guarded or access.guarded)] = None
        known[stage.name] = tuple(result)
        return known[stage.name]

    @cached_property
    def flops(self) -> int:
        return sum(s.flops for s in self.stages)

    @cached_property
    def io_bytes(self) -> int:
        """Bytes of all inputs and outputs: the least traffic any plan can have."""
        tensors = self.tensors
        return sum(t.bytes for t in self.inputs) + sum(tensors[s.name].bytes for s in self.outputs)

    def __str__(self) -> str:
        lines = [f"{self.name}  anchor {self.anchor_name}"]
        lines += [f"  in  {t}" for t in self.inputs]
        lines += [f"  {s}" for s in self.stages]
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary; ``from_json`` gives the same expression back."""
        stored = {"stored": list(self.stored)} if self.stored else {}
        return stored | {
            "name": self.name,
            "anchor": self.anchor_name,
            "inputs": [{"name": t.name, "shape": list(t.shape), "dtype": t.dtype, "constant": t.constant,
                        **({"fused_of": [list(e) for e in t.fused_of]} if t.fused_of else {})}
                       for t in self.inputs],
            "stages": [
                {
                    "name": s.name, "dtype": s.dtype, "combiner": s.combiner, "ops": [list(o) for o in s.ops],
                    "axes": [a.to_json() for a in s.axes],
                    "reads": [a.to_json() for a in s.reads],
                    **({"results": s.results} if s.results > 1 else {}),
                    **({"initial": True} if s.initial else {}),
                    **({"uneven": list(s.uneven)} if s.uneven else {}),
                }
                for s in self.stages
            ],
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TensorExpression:
        inputs = tuple(
            Tensor(t["name"], tuple(t["shape"]), t["dtype"], t["constant"], tuple(map(tuple, t.get("fused_of", ()))))
            for t in data["inputs"]
        )
        stages = tuple(
            Stage(
                s["name"],
                tuple(map(Axis.from_json, s["axes"])),
                tuple(Access.from_json(a) for a in s["reads"]),
                s["dtype"],
                tuple((k, n) for k, n in s["ops"]),
                s["combiner"],
                s.get("results", 1),
                s.get("initial", False),
                tuple(s.get("uneven", ())),
            )
            for s in data["stages"]
        )
        return cls(data["name"], inputs, stages, data["anchor"], stored=tuple(data.get("stored", ())))

    def identity(self) -> dict[str, Any]:
        """Return the part of ``to_json`` that determines the computation: without the name and without ``fused_of``."""
        data = self.to_json()
        del data["name"]
        for tensor in data["inputs"]:
            tensor.pop("fused_of", None)
        return data

    def digest(self) -> str:
        """Return a stable hash (16 hex digits) of the computation; the name does not count."""
        return hashlib.sha256(json.dumps(self.identity(), sort_keys=True).encode()).hexdigest()[:16]


def axis_values(producer: Stage, access: Access, extents: Mapping[str, int]) -> dict[str, Index]:
    """Return the index of each spatial axis of `producer` in `access`; `extents` are those of the reader's axes."""
    values: dict[str, Index] = {}
    for own, read in zip(producer.write().indices, access.indices, strict=True):
        if len(own.terms) == 1:
            values[own.terms[0][0]] = read
        else:  # parts of one dimension: recover each part from the terms of the read
            values.update(_part_values(own, read, producer.extents, extents))
    return values


def _part_values(
    own: Index, read: Index, parts: Mapping[str, int], extents: Mapping[str, int]
) -> dict[str, Index]:
    unknown = {name: Index.whole() for name, _ in own.terms}
    if not read.is_affine:
        return unknown
    rest, const, result = list(read.terms), read.const, {}
    for name, stride in sorted(own.terms, key=lambda t: -t[1]):
        mine = Index.of({n: c // stride for n, c in rest if c % stride == 0}, const // stride)
        rest, const = [(n, c) for n, c in rest if c % stride], const % stride
        # The part must hold what falls to it, or the digits of the sum carry over.
        low = mine.const + sum(c * (extents[n] - 1) for n, c in mine.terms if c < 0)
        high = mine.const + sum(c * (extents[n] - 1) for n, c in mine.terms if c > 0)
        if low < 0 or high >= parts[name]:
            return unknown
        result[name] = mine
    return result if not rest and not const else unknown
