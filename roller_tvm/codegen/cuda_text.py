"""CUDA C++ taken apart without parsing it: strings, comments, brackets; kernels with their parameters."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np

from roller_tvm.codegen.errors import NotEmulated

# A comment, a string or a character: nothing in it is code.
OPAQUE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.S)
_PAIRS = {"(": ")", "[": "]", "{": "}"}
_KERNEL = re.compile(
    r"\b__global__\s+(?:void\s+)?(?:__launch_bounds__\s*\((?P<bounds>[^)]*)\)\s*)?(?:void\s+)?"
    r"(?P<name>\w+)\s*\("
)
# C++ type of a parameter as TVM writes it -> dtype.
_DTYPES = {
    "float": "float32", "double": "float64", "half": "float16", "__half": "float16", "nv_bfloat16": "bfloat16",
    "__nv_bfloat16": "bfloat16", "bool": "bool", "void": "void",
    "char": "int8", "signed char": "int8", "int8_t": "int8", "short": "int16", "int16_t": "int16", "int": "int32",
    "signed int": "int32", "int32_t": "int32", "long": "int64", "long long": "int64", "int64_t": "int64",
    "unsigned char": "uint8", "uchar": "uint8", "uint8_t": "uint8", "unsigned short": "uint16", "ushort": "uint16",
    "uint16_t": "uint16", "unsigned int": "uint32", "unsigned": "uint32", "uint": "uint32", "uint32_t": "uint32",
    "unsigned long": "uint64", "unsigned long long": "uint64", "uint64_t": "uint64",
}  # fmt: skip


@dataclass(frozen=True)
class Parameter:
    """A parameter of a kernel."""

    name: str
    c_type: str  # C++ type as written, without the pointer
    dtype: str  # name of the numpy type, 'bfloat16' (two bytes, no numpy type), or '' for any other type
    pointer: bool

    def __str__(self) -> str:
        return f"{self.c_type}{'*' if self.pointer else ''} {self.name}"


@dataclass(frozen=True)
class Kernel:
    """A ``__global__`` function."""

    name: str
    parameters: tuple[Parameter, ...]
    most_threads: int  # most threads per block by ``__launch_bounds__``; 0 if it has none
    line: int

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.parameters))})"


@dataclass(frozen=True)
class CudaSource:
    """A CUDA C++ source and the kernels in it.

    Examples
    --------
    >>> source = CudaSource('extern "C" __global__ void __launch_bounds__(32) twice(float* A, int n) { }')
    >>> print(source.kernels[0], source.kernels[0].most_threads)
    twice(float* A, int n) 32
    """

    text: str

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """Kernels with a body, in the order of the source."""
        plain = blanked(self.text)
        found = []
        for match in _KERNEL.finditer(plain):
            opened = match.end() - 1
            closed = matching(plain, opened)
            if closed < 0 or not plain[closed + 1 :].lstrip().startswith("{"):
                continue  # a declaration
            parameters = tuple(_parameter(p) for p in split_top(self.text[opened + 1 : closed], ",") if p.strip())
            bounds = (match["bounds"] or "").split(",")[0].strip()
            line = self.text.count("\n", 0, match.start()) + 1
            found.append(Kernel(match["name"], parameters, int(bounds) if bounds.isdigit() else 0, line))
        return tuple(found)

    def kernel(self, name: str) -> Kernel:
        """Return the kernel of that name.

        Raises
        ------
        NotEmulated
            No kernel has that name; the remedy lists the kernels.
        """
        for kernel in self.kernels:
            if kernel.name == name:
                return kernel
        names = ", ".join(k.name for k in self.kernels) or "none"
        raise NotEmulated(f"the source has no kernel {name!r}", remedy=f"its kernels are: {names}")

    def only(self, names: Collection[str]) -> CudaSource:
        """Return the source with only these kernels, and everything that is no kernel.

        Examples
        --------
        >>> source = CudaSource("__global__ void f() { } // of f\\nint g; __global__ void h() { }")
        >>> source.only(["h"]).text
        ' // of f\\nint g; __global__ void h() { }'
        """
        plain, kept, done = blanked(self.text), [], 0
        for match in _KERNEL.finditer(plain):
            if match["name"] in names or match.start() < done:
                continue
            closed = matching(plain, match.end() - 1)
            ends = re.compile(r"\s*(;|\{)").match(plain, closed + 1)
            if closed < 0 or not ends:
                continue
            end = ends.end() if ends[1] == ";" else matching(plain, ends.end() - 1) + 1
            linkage = re.compile(r'extern\s*"\s*"\s*$').search(plain, done, match.start())
            kept.append(self.text[done : linkage.start() if linkage else match.start()])
            done = end
        return CudaSource("".join([*kept, self.text[done:]]))


def _parameter(text: str) -> Parameter:
    words = re.sub(r"\b(?:const|volatile|__restrict__|__restrict|__grid_constant__)\b", " ", text)
    found = re.match(r"\s*(.*?)([\s*&]+)(\w+)\s*$", words, re.S)
    if not found:
        what = f"a kernel's parameter {text.strip()!r} is no C++: a CUDA compiler would refuse this source too"
        raise NotEmulated(what, remedy="give the tensor a name of letters, digits and underscores")
    c_type, stars, name = " ".join(found[1].split()), found[2], found[3]
    return Parameter(name, c_type, _DTYPES.get(c_type, ""), "*" in stars)


def dtype_bytes(dtype: str) -> int:
    """Return the bytes of an element; bfloat16, unknown to numpy, has two.

    Examples
    --------
    >>> dtype_bytes("bfloat16"), dtype_bytes("float32")
    (2, 4)
    """
    return 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize


def blanked(text: str) -> str:
    """Return the text with comments and the contents of strings replaced by spaces; every character keeps its position.

    Examples
    --------
    >>> blanked('f("a;b"); // c')
    'f("   ");     '
    """

    def hide(match: re.Match[str]) -> str:
        found = match.group()
        if found[0] in "\"'":
            return found[0] + " " * (len(found) - 2) + found[-1]
        return re.sub(r"[^\n]", " ", found)

    return OPAQUE.sub(hide, text)


def matching(plain: str, at: int) -> int:
    """Return the position of the bracket that closes the one at `at`, or -1 if none does; `plain` is blanked text."""
    opened, closes = plain[at], _PAIRS[plain[at]]
    depth = 0
    for position in range(at, len(plain)):
        if plain[position] == opened:
            depth += 1
        elif plain[position] == closes:
            depth -= 1
            if depth == 0:
                return position
    return -1


def split_top(text: str, separator: str) -> list[str]:
    """Return the parts between separators outside all brackets, strings and comments.

    Examples
    --------
    >>> split_top('"a,b", f(x, y), {1, 2}', ",")
    ['"a,b"', ' f(x, y)', ' {1, 2}']
    """
    return [text[start:end] for start, end in _parts(blanked(text), separator)]


def _parts(plain: str, separator: str) -> Iterator[tuple[int, int]]:
    depth = start = 0
    for position, char in enumerate(plain):
        if char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
        elif char == separator and depth == 0:
            yield start, position
            start = position + 1
    yield start, len(plain)
