"""Suites: lists of operators to compare, as CSV files that ``roller-tvm plan --operators`` takes too."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from roller_tvm.cli.operators_file import read_operators
from roller_tvm.errors import BadInput, RollerError
from roller_tvm.ir import TensorExpression
from roller_tvm.ir.operators import lookup, operator, parse_params

FOLDER = Path(__file__).with_name("suites")
#: Task of a case that is a whole model.
WHOLE = "whole model"
#: Operators whose second operand is a weight: known at build time, so that a schedule may pack it.
WEIGHTED = ("conv2d_nchw", "conv2d_nhwc", "depthwise_conv2d_nchw", "depthwise_conv2d_nhwc", "dense")


@dataclass(frozen=True)
class Case:
    """One case of a comparison: a named operator, a task of a model, or a whole model.

    Parameters
    ----------
    id : str
        Short id, unique in the comparison.
    operator : str
        Name of an operator; '' for a task of a model.
    params : str
        Parameters of the operator, as on the command line.
    group : str
        Group in the summary. Default: the operator.
    weight : int
        Number of calls in the model.
    title : str
        Title for readers. Default: operator and parameters.
    model : str
        File of the model, with its shapes; '' for an operator.
    task : str
        Key of the task in the model; `WHOLE` for a whole model.

    Examples
    --------
    >>> case = Case("M", "matmul", "m=64 n=32 k=16")
    >>> case.title, case.group, case.expression().anchor.flops
    ('matmul m=64 n=32 k=16', 'matmul', 65536)
    """

    id: str
    operator: str = ""
    params: str = ""
    group: str = ""
    weight: int = 1
    title: str = ""
    model: str = ""
    task: str = ""

    def __post_init__(self) -> None:
        if not self.id:
            raise BadInput("a case needs an id", self.operator or self.model, "give the column 'id' a value")
        if not self.operator and not self.task:
            raise BadInput("is neither an operator nor a task of a model", self.id, "give the column 'operator'")
        if self.weight < 1:
            raise BadInput(f"'weight' must be an int >= 1 (got {self.weight})", self.id, "leave it out")
        if self.operator:
            name = lookup(self.operator).name
            object.__setattr__(self, "group", self.group or name)
            object.__setattr__(self, "title", self.title or f"{name} {self.params}".strip())
        else:
            object.__setattr__(self, "group", self.group or "task")
            object.__setattr__(self, "title", self.title or self.task)

    def expression(self) -> TensorExpression:
        """Return the operator as a tensor expression."""
        return operator(self.operator, **parse_params(self.params))

    @property
    def whole(self) -> bool:
        """True if the case is a whole model."""
        return self.task == WHOLE

    @property
    def weighted(self) -> bool:
        """True if the operator's second operand is a weight."""
        return bool(self.operator) and lookup(self.operator).name in WEIGHTED

    @property
    def digest(self) -> str:
        """Digest of the computation, whatever its name."""
        if not self.operator:
            told = f"{self.model} {self.task}"
        else:
            params = sorted(parse_params(self.params).items())
            told = json.dumps([lookup(self.operator).name, params])
        return hashlib.sha256(told.encode()).hexdigest()[:12]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Case:
        return cls(**{f.name: data[f.name] for f in fields(cls) if f.name in data})


def suites() -> list[str]:
    """Return the names of the suites in the package."""
    return sorted(p.stem for p in FOLDER.glob("*.csv"))


def find_suite(name: str) -> Path:
    """Return the path of a suite, from its name or path.

    Raises
    ------
    BadInput
    """
    path = Path(name) if name.endswith(".csv") else FOLDER / f"{name}.csv"
    if not path.is_file():
        raise BadInput("no such suite", name, f"choose from {', '.join(suites())}, or give a CSV file")
    return path


def load_suite(name: str) -> tuple[Case, ...]:
    """Return the cases of a suite, each checked.

    Parameters
    ----------
    name : str
        Name of a suite in the package, or path of a CSV file.

    Raises
    ------
    BadInput
        A line is wrong; the error names it.

    Examples
    --------
    >>> len(load_suite("paper")), load_suite("paper_batch1")[0].params.split()[0]
    (119, 'n=1')
    """
    path = find_suite(name)
    rows = read_operators(path)
    found: dict[str, Case] = {}
    for line, row in enumerate(rows, 2):
        where = f"{path}, line {line}"
        try:
            weight = int(row.get("weight") or 1)
        except ValueError:
            raise BadInput(f"'weight' must be an int >= 1 (got {row['weight']})", where, "leave it out") from None
        try:
            case = Case(row["id"], row["operator"], row["params"] or "", row.get("group") or "", weight)
            case.expression()
        except RollerError as error:
            raise BadInput(str(error.what), where, error.remedy) from error
        if case.id in found:
            raise BadInput(f"the id {case.id} is used twice", where, "give each case its own id")
        found[case.id] = case
    if not found:
        raise BadInput("holds no operator", str(path), "write one per line, below the names of the columns")
    return tuple(found.values())


def choose(cases: tuple[Case, ...], only: str) -> tuple[Case, ...]:
    """Return the cases chosen by the comma-separated ids, or words of titles and groups, in `only`.

    Examples
    --------
    >>> [c.id for c in choose(load_suite("paper"), "M0,M1")]
    ['M0', 'M1']
    """
    words = [w.strip() for w in only.split(",") if w.strip()]
    if not words:
        return cases
    ids = {c.id for c in cases}
    found = tuple(c for c in cases if any(w == c.id or (w not in ids and w in f"{c.title} {c.group}") for w in words))
    if not found:
        raise BadInput("no case matches", only, "give ids of the suite, or words of its operators: see --list")
    return found
