"""Kernels of a built model kept in its package, CUDA C++ and host code, for ``run --emulate``.

A package holds the kernels compiled for a GPU. Their source is added as two more members of a .tar, or as a small
archive behind a library: loaders ignore it there, and ``unzip`` finds it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from roller_tvm.codegen.host_code import HostCode
from roller_tvm.errors import BadInput
from roller_tvm.package_members import BROKEN, check_seal, read_members

#: Names of the members.
SOURCE, HOST = "roller_tvm.cu", "roller_tvm.host.json"
_REMEDY = "build it again with this version: roller-tvm compile MODEL --target cuda..., or save_model(build(...))"


@dataclass(frozen=True)
class BuiltKernels:
    """Sources and host code of a package's kernels.

    Attributes
    ----------
    source : str
        CUDA C++ of all kernels.
    arch : str
        Architecture, such as 'sm_90'.
    functions : dict
        Name of a function that the model calls -> its `HostCode`.
    refused : dict
        Name of a function -> reason that it cannot be emulated: its host code does more than launch kernels.
    more : tuple of str
        CUDA C++ of kernels in modules of their own.

    Examples
    --------
    >>> kernels = BuiltKernels("__global__ void f() { }", "sm_80", {"g": HostCode((), (), ())}, {})
    >>> BuiltKernels.from_members(kernels.members()) == kernels
    True
    """

    source: str = field(repr=False)
    arch: str
    functions: Mapping[str, HostCode]
    refused: Mapping[str, str]
    more: tuple[str, ...] = field(default=(), repr=False)

    def members(self) -> dict[str, bytes]:
        """Return the files that hold the kernels, by name."""
        functions = {name: code.to_json() for name, code in self.functions.items()}
        host = {"arch": self.arch, "functions": functions, "refused": dict(self.refused), "more": self.more}
        return {SOURCE: self.source.encode(), HOST: json.dumps(host).encode()}

    @classmethod
    def from_members(cls, members: Mapping[str, bytes]) -> BuiltKernels:
        """Return the kernels that `members` wrote."""
        host = json.loads(members[HOST])
        functions = {name: HostCode.from_json(code) for name, code in host["functions"].items()}
        more = tuple(host.get("more", ()))
        return cls(members[SOURCE].decode(), str(host["arch"]), functions, host["refused"], more)

    @classmethod
    def of_package(cls, path: str | os.PathLike[str]) -> BuiltKernels:
        """Read the kernels from a package.

        Raises
        ------
        BadInput
            The file is missing, or holds no kernels.
        """
        path = Path(path)
        if not path.is_file():
            raise BadInput("no such file", str(path), "give an output of 'roller-tvm compile' (.tar or .so)")
        check_seal(path)
        try:
            return cls.from_members(read_members(path, (SOURCE, HOST)))
        except (*BROKEN, TypeError) as error:
            what = "holds no source of kernels for a GPU, as emulation needs"
            remedy = f"a model for a CPU is run without --emulate; one for cuda: {_REMEDY}"
            raise BadInput(what, str(path), remedy) from error
