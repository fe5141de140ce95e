"""One file of the kit: an operator's kernels for one architecture, with everything needed to run and check them."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from itertools import repeat
from math import prod
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from roller_bench.kit.cases import Case
from roller_bench.kit.inputs import TYPES
from roller_bench.kit.reference import Reference
from roller_tvm.errors import BadInput
from roller_tvm.folders import beside

#: Version of the archive format; an archive of another version is refused.
VERSION = 2
MANIFEST = "manifest.json"
REMEDY = "make the kit again: make gpu-kit"


@dataclass(frozen=True)
class Tensor:
    """A buffer that a kernel reads or writes.

    Examples
    --------
    >>> Tensor("A", (2, 3), "float16").nbytes
    12
    """

    name: str
    shape: tuple[int, ...]
    dtype: str

    def __post_init__(self) -> None:
        if self.dtype not in TYPES:
            raise ValueError(f"'dtype' must be one of {', '.join(TYPES)} (got {self.dtype!r})")

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.elements * TYPES[self.dtype][0]


@dataclass(frozen=True)
class KernelLaunch:
    """One launch of a kernel; `arguments` are names of buffers.

    `image` is the cubin's name in the archive if it is not the plan's own, else ''.
    """

    kernel: str
    arguments: tuple[str, ...]
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    dynamic_shared: int = 0
    image: str = ""

    def __str__(self) -> str:
        shared = f", {self.dynamic_shared} B" if self.dynamic_shared else ""
        return f"{self.kernel}<<<{self.grid}, {self.block}{shared}>>>({', '.join(self.arguments)})"


def triple(data: Sequence[int]) -> tuple[int, int, int]:
    """Return three extents as a tuple (x, y, z).

    Examples
    --------
    >>> triple([4, 1, 1])
    (4, 1, 1)
    """
    x, y, z = map(int, data)
    return (x, y, z)


@dataclass(frozen=True)
class KitPlan:
    """A plan with its predicted time and its compiled kernels."""

    rank: int  # rank by predicted time; 0 is the best
    recipes: tuple[str, ...]  # recipe of each rProgram
    #: Change made to the plan so that the compiler does not spill registers; '' for the plan as constructed.
    variant: str
    predicted_us: float  # predicted time in microseconds, on the device that the plan was made for
    bound: str  # name of the bottleneck in the model
    plan: Mapping[str, Any]  # ``Plan.to_json()``
    image: str  # name of the cubin in the archive
    source: str  # name of the CUDA C++ source in the archive, or '' if it was not kept
    parameters: tuple[Tensor, ...]  # inputs in the reference's order, then the output
    between: tuple[Tensor, ...]  # buffers that one kernel writes and a later one reads
    launches: tuple[KernelLaunch, ...]  # launches in order
    resources: tuple[Mapping[str, Any], ...] = ()  # registers, shared memory and spills of each kernel, as compiled

    def __post_init__(self) -> None:
        known = {t.name for t in (*self.parameters, *self.between)}
        for launch in self.launches:
            if strange := [a for a in launch.arguments if a not in known]:
                raise ValueError(f"{launch} takes {strange[0]!r}; there are {', '.join(sorted(known))}")
        if not self.launches:
            raise ValueError(f"plan {self.rank} launches nothing")

    @property
    def images(self) -> tuple[str, ...]:
        """Names of all cubins with kernels that the plan launches, without repetition."""
        return tuple(dict.fromkeys(launch.image or self.image for launch in self.launches))


@dataclass(frozen=True)
class KitOperator:
    """An operator's plans for one architecture."""

    case: Case
    arch: str  # architecture of the cubins, such as 'sm_90'
    device: str  # name of the device that the plans were made for
    reference: Reference
    plans: tuple[KitPlan, ...]  # plans, the best by prediction first
    dropped: tuple[str, ...] = ()  # plans left out, each with the reason
    made_by: str = ""  # compiler and version, options, and a digest of the planning code

    def __str__(self) -> str:
        return f"{self.case} for {self.arch}: {len(self.plans)} plans"


def restored(kind: Any, data: Any) -> Any:
    """Return the value of a type from what JSON made of it; `kind` is a dataclass, a tuple of types, or a plain type.

    Examples
    --------
    >>> restored(Tensor, {"name": "A", "shape": [2, 3], "dtype": "float16"})
    Tensor(name='A', shape=(2, 3), dtype='float16')
    """
    if is_dataclass(kind):
        make: Any = kind
        hints = get_type_hints(kind)
        return make(**{f.name: restored(hints[f.name], data[f.name]) for f in fields(kind)})
    if get_origin(kind) is tuple:
        first, *rest = get_args(kind)
        kinds = repeat(first) if rest == [...] else (first, *rest)
        return tuple(restored(k, v) for k, v in zip(kinds, data))  # noqa: B905
    return data


def archive_path(kit: Path, arch: str, case: Case) -> Path:
    """Return the path of an operator's file.

    Examples
    --------
    >>> print(archive_path(Path("kit"), "sm_90", Case("M1", "matmul", "m=1 n=1 k=1", "float16")))
    kit/sm_90/M1.float16.zip
    """
    return kit / arch / f"{case}.zip"


def write_archive(path: Path, operator: KitOperator, files: Mapping[str, bytes]) -> None:
    """Write an operator's file, whole or not at all.

    Parameters
    ----------
    files : mapping of str to bytes
        Contents of cubins and sources, by the names that the plans use.
    """
    manifest = json.dumps({"version": VERSION, **asdict(operator)}, separators=(",", ":"))
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        beside(path) as temporary,
        zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive,
    ):
        archive.writestr(MANIFEST, manifest)
        for name, data in files.items():
            archive.writestr(name, data)


def read_operator(path: Path) -> KitOperator:
    """Read the operator described in an operator's file.

    Raises
    ------
    BadInput
        The file is absent, damaged, or of another version.
    """
    try:
        data = json.loads(read_member(path, MANIFEST))
        if data.get("version") != VERSION:
            raise BadInput(f"has format version {data.get('version')}, not {VERSION}", str(path), REMEDY)
        operator: KitOperator = restored(KitOperator, data)
        return operator
    except (ValueError, KeyError, TypeError) as error:
        raise BadInput(f"has a damaged {MANIFEST}: {error}", str(path), REMEDY) from error


def read_member(path: Path, name: str) -> bytes:
    """Read one member of an archive as bytes.

    Raises
    ------
    BadInput
        The archive or the member cannot be read.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.read(name)
    except (OSError, KeyError, zipfile.BadZipFile, RuntimeError) as error:
        raise BadInput(f"{name} cannot be read: {error}", str(path), REMEDY) from error
