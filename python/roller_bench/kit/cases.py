"""The kit's operators: the paper's in float32, their products on tensor cores, and further matrix products."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from roller_bench.kit.inputs import TYPES
from roller_tvm.errors import UsageError
from roller_tvm.ir.operators import parse_params

#: Matrix products beside the paper's: sizes from too small to fill a card to large, and sizes that no tile divides.
PRODUCTS = (
    ("G0", "m=512 n=512 k=512"), ("G1", "m=1024 n=1024 k=1024"), ("G2", "m=2048 n=2048 k=2048"),
    ("G3", "m=4096 n=4096 k=4096"), ("G4", "m=8192 n=8192 k=8192"), ("G5", "m=4000 n=1000 k=3000"),
    ("G6", "m=128 n=4096 k=4096"),
)  # fmt: skip
#: Graphs of many small operators (models of ``roller_bench.branchy``), run fused by rTasks and operator by operator.
GRAPHS = (("F0", "inception"), ("F1", "nasnet_cell"), ("F2", "attention"), ("F3", "lstm"))
#: Operator name of the cases in GRAPHS.
RTASKS = "rtasks"
#: Type -> first letters of the ids measured in that type; '' for all.
FAMILIES = {"float32": "", "float16": "CMG", "bfloat16": "MG"}


@dataclass(frozen=True)
class Case:
    """One operator in one type.

    Examples
    --------
    >>> print(Case("M1", "matmul", "m=128 n=1000 k=4032", "float16"))
    M1.float16
    """

    id: str  # letters of the family and a number: 'C12'
    operator: str  # operator name in ``roller_tvm.ir.operators``
    params: str  # parameters, as on the command line
    dtype: str  # type of inputs and output; sums are taken in float32

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Z]+\d+", self.id):
            raise ValueError(f"'id' must be letters and a number (got {self.id!r})")
        if self.dtype not in TYPES:
            raise ValueError(f"'dtype' must be one of {', '.join(TYPES)} (got {self.dtype!r})")
        parse_params(self.params)

    def __str__(self) -> str:
        return f"{self.id}.{self.dtype}"

    @property
    def family(self) -> str:
        """Name of the group of similar operators: the letters of the id, and the type."""
        return f"{self.id.rstrip('0123456789')}.{self.dtype}"


def all_cases(operators: Path, dtypes: Sequence[str] = tuple(FAMILIES), only: Iterable[str] = ()) -> list[Case]:
    """Return every case in the file's order, type by type.

    Parameters
    ----------
    operators : Path
        A CSV file with the columns id, operator, params.
    only : iterable of str
        Ids of the wanted cases; empty for all.

    Raises
    ------
    UsageError
        A type or an id is unknown.
    """
    with operators.open(newline="") as file:
        rows = [(row["id"], row["operator"], row["params"]) for row in csv.DictReader(file)]
    products = [(name, "matmul", params) for name, params in PRODUCTS]
    products += [(name, RTASKS, f"model={model}") for name, model in GRAPHS]
    wanted = set(only)
    if strange := sorted(wanted - {r[0] for r in rows + products}):
        remedy = f"see {operators.name}; or G0 to G6, F0 to F3"
        raise UsageError(f"no operator has the id {strange[0]!r}", "--only", remedy)
    if strange := [d for d in dtypes if d not in TYPES]:
        raise UsageError(f"the kit has no type {strange[0]!r}", "--dtypes", f"choose from {', '.join(TYPES)}")
    return [
        Case(*row, dtype) for dtype in dtypes for row in rows + products
        if (row[0] in wanted if wanted else True) and row[0].startswith(tuple(FAMILIES[dtype]) or "")
    ]  # fmt: skip


def fair(cases: Sequence[Case]) -> list[Case]:
    """Return the cases in an order whose every prefix samples all families in proportion to their size.

    Examples
    --------
    >>> names = ["C0", "C1", "C2", "C3", "M0"]
    >>> [c.id for c in fair([Case(name, "relu", "shape=1", "float32") for name in names])]
    ['C0', 'C1', 'M0', 'C2', 'C3']
    """
    families: dict[str, list[Case]] = {}
    for case in cases:
        families.setdefault(case.family, []).append(case)
    places = []
    for members in families.values():
        for n, case in enumerate(sorted(members, key=_scrambled)):
            places.append(((n + 0.5) / len(members), str(case), case))
    return [case for *_, case in sorted(places, key=lambda p: p[:2])]


def _scrambled(case: Case) -> int:
    """Return a sort key that is unrelated to sizes and always the same."""
    return sum(ord(letter) * 31**n for n, letter in enumerate(str(case))) * 2654435769 % (1 << 32)
