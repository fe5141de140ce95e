"""One file of the kit: an operator's kernels for one architecture, with everything needed to run and check them."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Any

from roller_tvm.errors import BadInput
from roller_tvm.kit.cases import Case
from roller_tvm.kit.inputs import TYPES
from roller_tvm.kit.reference import Reference

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

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Tensor:
        return cls(data["name"], tuple(data["shape"]), data["dtype"])


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

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> KernelLaunch:
        return cls(data["kernel"], tuple(data["arguments"]), triple(data["grid"]), triple(data["block"]),
                   data["dynamic_shared"], data.get("image", ""))  # fmt: skip


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
    """A plan with its predicted time and its compiled kernels.

    Parameters
    ----------
    rank : int
        Rank by predicted time; 0 is the best.
    recipes : tuple of str
        Recipe of each rProgram.
    variant : str
        Change made to the plan so that the compiler does not spill registers; '' for the plan as constructed.
    predicted_us : float
        Predicted time in microseconds, on the device that the plan was made for.
    bound : str
        Name of the bottleneck in the model.
    plan : dict
        ``Plan.to_json()``.
    image : str
        Name of the cubin in the archive.
    source : str
        Name of the CUDA C++ source in the archive, or '' if it was not kept.
    parameters : tuple of Tensor
        Inputs in the reference's order, then the output.
    between : tuple of Tensor
        Buffers that one kernel writes and a later one reads.
    launches : tuple of KernelLaunch
        Launches in order.
    resources : tuple of dict
        Registers, shared memory and spills of each kernel, as compiled.
    """

    rank: int
    recipes: tuple[str, ...]
    variant: str
    predicted_us: float
    bound: str
    plan: Mapping[str, Any]
    image: str
    source: str
    parameters: tuple[Tensor, ...]
    between: tuple[Tensor, ...]
    launches: tuple[KernelLaunch, ...]
    resources: tuple[Mapping[str, Any], ...] = ()

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

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> KitPlan:
        lists = {
            "recipes": tuple(data["recipes"]), "resources": tuple(data["resources"]),
            "parameters": tuple(map(Tensor.from_json, data["parameters"])),
            "between": tuple(map(Tensor.from_json, data["between"])),
            "launches": tuple(map(KernelLaunch.from_json, data["launches"])),
        }  # fmt: skip
        return cls(**{**data, **lists})


@dataclass(frozen=True)
class KitOperator:
    """An operator's plans for one architecture.

    Parameters
    ----------
    case : Case
    arch : str
        Architecture of the cubins, such as 'sm_90'.
    device : str
        Name of the device that the plans were made for.
    reference : Reference
    plans : tuple of KitPlan
        Plans, the best by prediction first.
    dropped : tuple of str
        Plans left out, each with the reason.
    made_by : str
        Compiler and version, options, and a digest of the planning code.
    """

    case: Case
    arch: str
    device: str
    reference: Reference
    plans: tuple[KitPlan, ...]
    dropped: tuple[str, ...] = ()
    made_by: str = ""

    def __str__(self) -> str:
        return f"{self.case} for {self.arch}: {len(self.plans)} plans"

    def to_json(self) -> dict[str, Any]:
        """Return the operator as plain values."""
        return {"version": VERSION, **asdict(self), "reference": self.reference.to_json()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> KitOperator:
        """Return the operator that `to_json` wrote."""
        return cls(Case(**data["case"]), data["arch"], data["device"], Reference.from_json(data["reference"]),
                   tuple(map(KitPlan.from_json, data["plans"])), tuple(data["dropped"]), data["made_by"])  # fmt: skip


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
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            archive.writestr(MANIFEST, json.dumps(operator.to_json(), separators=(",", ":")))
            for name, data in files.items():
                archive.writestr(name, data)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


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
        return KitOperator.from_json(data)
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
