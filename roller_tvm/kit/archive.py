"""One file of the kit: an operator's kernels for one architecture, and all that is needed to run and judge them."""

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

#: Of what is written here; an archive of another version is refused.
VERSION = 2
MANIFEST = "manifest.json"
REMEDY = "make the kit again: make gpu-kit"


@dataclass(frozen=True)
class Tensor:
    """A buffer of a function.

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
    """One kernel, launched: its arguments are names of buffers; `image` where it is not in the plan's own."""

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
    """Extents along x, y and z.

    Examples
    --------
    >>> triple([4, 1, 1])
    (4, 1, 1)
    """
    x, y, z = map(int, data)
    return (x, y, z)


@dataclass(frozen=True)
class KitPlan:
    """A plan, its prediction, and its kernels.

    Parameters
    ----------
    rank : int
        0 is what the model holds to be the best.
    recipes : tuple of str
        Of its programs.
    variant : str
        What was changed so that the compiler does not spill; '' for the plan as constructed.
    predicted_us : float
        On the device that it was made for.
    bound : str
        What limits it, by the model.
    plan : dict
        ``Plan.to_json()``.
    image : str
        The cubin's name in the archive.
    source : str
        The CUDA C++'s name in the archive, or ''.
    parameters : tuple of Tensor
        Inputs in the order of the reference's, then the output.
    between : tuple of Tensor
        What kernels hand one another.
    launches : tuple of KernelLaunch
        In order.
    resources : tuple of dict
        Of each kernel, as the compiler made it: registers, shared memory, spills.
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
        """Every cubin that it launches kernels of."""
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
        Of the cubins.
    device : str
        What the plans were made for.
    reference : Reference
    plans : tuple of KitPlan
        Best first.
    dropped : tuple of str
        Plans left out, and why.
    made_by : str
        The compiler, and the state of the code that planned.
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
        """Plain values."""
        return {"version": VERSION, **asdict(self), "reference": self.reference.to_json()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> KitOperator:
        """Back from `to_json`."""
        return cls(Case(**data["case"]), data["arch"], data["device"], Reference.from_json(data["reference"]),
                   tuple(map(KitPlan.from_json, data["plans"])), tuple(data["dropped"]), data["made_by"])  # fmt: skip


def archive_path(kit: Path, arch: str, case: Case) -> Path:
    """Where an operator's file is.

    Examples
    --------
    >>> print(archive_path(Path("kit"), "sm_90", Case("M1", "matmul", "m=1 n=1 k=1", "float16")))
    kit/sm_90/M1.float16.zip
    """
    return kit / arch / f"{case}.zip"


def write_archive(path: Path, operator: KitOperator, files: Mapping[str, bytes]) -> None:
    """Write an operator's file, all or nothing.

    Parameters
    ----------
    files : mapping of str to bytes
        Images and sources, by the names that the plans have for them.
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
    """What an operator's file says of itself.

    Raises
    ------
    BadInput
        No such file, a damaged one, or one of another version.
    """
    try:
        data = json.loads(read_member(path, MANIFEST))
        if data.get("version") != VERSION:
            raise BadInput(f"is of version {data.get('version')}, not {VERSION}", str(path), REMEDY)
        return KitOperator.from_json(data)
    except (ValueError, KeyError, TypeError) as error:
        raise BadInput(f"says nothing that can be read: {error}", str(path), REMEDY) from error


def read_member(path: Path, name: str) -> bytes:
    """A file of an archive.

    Raises
    ------
    BadInput
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.read(name)
    except (OSError, KeyError, zipfile.BadZipFile, RuntimeError) as error:
        raise BadInput(f"{name} cannot be read: {error}", str(path), REMEDY) from error
