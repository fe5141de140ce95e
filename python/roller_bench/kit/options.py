"""Options for making a kit, and files that stand: made again if options, compiler or code changed."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import roller_bench
import roller_tvm
from roller_bench.kit.archive import KitOperator, read_operator
from roller_bench.kit.cases import Case
from roller_tvm.codegen import find_compilers
from roller_tvm.errors import RollerError

#: Architecture -> device that its plans are made for.
DEVICES = {"sm_80": "a100", "sm_90": "h200"}
PRODUCT, TOOLS = (Path(str(package.__file__)).resolve().parent for package in (roller_tvm, roller_bench))
#: Folders of the product on which no kernel of the kit depends, and modules of the tools on which they do.
_NO_KERNELS = ("auto_scheduler", "cli", "models", "relay", "tuning", "tvm_env")
_MAKES = (*(f"kit/{name}.py" for name in ("build", "graphs", "options", "archive", "cases", "reference", "inputs")),
          "branchy.py")  # fmt: skip


@dataclass(frozen=True)
class Options:
    """Options for making a kit."""

    top: int = 10  # number of plans per operator
    compiler: str = "auto"  # 'auto', 'nvrtc' or 'nvcc'
    sources: str = "best"  # plans whose CUDA C++ is kept: 'none', 'best' or 'all'
    spread: bool = False  # True to draw plans from all candidates instead of taking the best
    keep: bool = False  # True to keep existing files even if other code or another compiler made them

    def __post_init__(self) -> None:
        if self.top < 1:
            raise ValueError(f"'top' must be at least 1 (got {self.top})")
        if self.sources not in ("none", "best", "all"):
            raise ValueError(f"'sources' must be none, best or all (got {self.sources!r})")


def standing(path: Path, case: Case, made_by: str, options: Options) -> KitOperator | None:
    """Return a case's operator from its existing file if this code and compiler made it, else None.

    A damaged file counts as absent. With ``options.keep`` any readable file of the case is accepted.
    """
    if not path.is_file():
        return None
    try:
        found = read_operator(path)
    except RollerError:
        return None
    return found if found.case == case and (options.keep or found.made_by == made_by) else None


@functools.lru_cache(maxsize=8)
def state(options: Options) -> str:
    """Return the compiler, the options and a digest of the code that makes kernels.

    If any of them changes, files are made again.
    """
    digest = hashlib.sha256()
    product = [p for p in PRODUCT.iterdir() if p.name not in _NO_KERNELS]
    for path in sources_of([*product, *(TOOLS / name for name in _MAKES)]):
        digest.update(name_of(path).encode() + path.read_bytes())
    compilers = [c for c in find_compilers() if options.compiler in ("auto", c.name)]
    name = f"{compilers[0].name} {compilers[0].version[0]}.{compilers[0].version[1]}" if compilers else "no compiler"
    which = "drawn" if options.spread else "top"
    return f"{name}, {which} {options.top}, sources {options.sources}, code {digest.hexdigest()[:12]}"


def name_of(path: Path) -> str:
    """Return the path of a module below the folder that holds its package."""
    package = next(p for p in (PRODUCT, TOOLS) if p in path.parents)
    return path.relative_to(package.parent).as_posix()


def sources_of(of: Sequence[Path]) -> list[Path]:
    """Return the files among and below some paths, in order."""
    found: list[Path] = []
    for path in of:
        inside = [path] if path.is_file() else path.rglob("*")
        found += [p for p in inside if p.is_file() and "__pycache__" not in p.parts]
    return sorted(found)
