"""Compile CUDA C++ source to a cubin."""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from roller_tvm.codegen.compilers import NVRTC_REMEDY, Compiler, find_compilers, include_folders, nvrtc_library
from roller_tvm.errors import TargetError, ToolchainError
from roller_tvm.folders import work_folder

_ARCH = re.compile(r"sm_\d{2,3}[af]?")
_LOG_LINES = 8  # of a compiler's log quoted in an error: the first diagnostics, not the cascade
_NVCC_LIMIT_S = 300.0

# Headers that sources of the Relax line include and the wheels of NVRTC and the runtime lack (CCCL's wheel has them):
# the parts of the C++ standard library in use.
_STANDARD = {
    "cuda/std/cstdint": """
namespace cuda { namespace std {
typedef signed char int8_t; typedef short int16_t; typedef int int32_t; typedef long long int64_t;
typedef unsigned char uint8_t; typedef unsigned short uint16_t;
typedef unsigned int uint32_t; typedef unsigned long long uint64_t;
} }
""",
    "cuda/std/type_traits": """
namespace cuda { namespace std {
template <bool B> struct truth { static constexpr bool value = B; };
template <class A, class B> struct is_same : truth<false> {};
template <class A> struct is_same<A, A> : truth<true> {};
template <class A, class B> inline constexpr bool is_same_v = is_same<A, B>::value;
template <class T> struct is_floating_point : truth<is_same_v<T, float> || is_same_v<T, double>> {};
template <class T> struct is_integral : truth<
    is_same_v<T, bool> || is_same_v<T, char> || is_same_v<T, signed char> || is_same_v<T, unsigned char> ||
    is_same_v<T, short> || is_same_v<T, unsigned short> || is_same_v<T, int> || is_same_v<T, unsigned int> ||
    is_same_v<T, long> || is_same_v<T, unsigned long> || is_same_v<T, long long> || is_same_v<T, unsigned long long>
> {};
template <class T, bool = is_integral<T>::value> struct is_signed : truth<T(-1) < T(0)> {};
template <class T> struct is_signed<T, false> : is_floating_point<T> {};
template <class T, bool = is_integral<T>::value> struct is_unsigned : truth<!(T(-1) < T(0))> {};
template <class T> struct is_unsigned<T, false> : truth<false> {};
template <bool B, class T = void> struct enable_if {};
template <class T> struct enable_if<true, T> { typedef T type; };
template <bool B, class A, class C> struct conditional { typedef A type; };
template <class A, class C> struct conditional<false, A, C> { typedef C type; };
} }
""",
}


@dataclass(frozen=True)
class Cubin:
    """Compiled kernels."""

    data: bytes = field(repr=False)  # the cubin, an ELF file
    log: str = field(repr=False)  # output of the compiler and the assembler, ``ptxas -v`` included
    arch: str  # architecture, such as ``sm_80``
    compiler: str  # ``nvrtc`` or ``nvcc``

    def __post_init__(self) -> None:
        if not self.data.startswith(b"\x7fELF"):
            raise ToolchainError(
                f"{self.compiler} returned {len(self.data)} bytes, not an ELF file", where=self.arch,
                remedy="compile for a real architecture (sm_80), not a virtual one (compute_80)",
            )  # fmt: skip


def compile_cuda(
    source: str, arch: str, compiler: str = "auto", where: str = "", options: Sequence[str] = ()
) -> Cubin:  # fmt: skip
    """Compile CUDA C++ to a cubin.

    Parameters
    ----------
    source : str
        CUDA C++, as TVM generates it; kernels need not be ``extern "C"``.
    arch : str
        Architecture, such as ``sm_75``, ``sm_80``, ``sm_90``, ``sm_90a``.
    compiler : str
        ``nvrtc``, ``nvcc`` or ``auto``: the quickest compiler here that knows `arch`.
    where : str
        Name of the source's operator or plan, for error messages.
    options : sequence of str
        Further options that both nvcc and NVRTC know, such as ``--use_fast_math``.

    Raises
    ------
    TargetError
        `arch` is not a GPU architecture.
    ToolchainError
        No compiler here knows `arch`, or it refused the source; the message quotes its first lines.
    """
    if not _ARCH.fullmatch(arch):
        known = sorted({a for c in find_compilers() for a in c.archs}, key=lambda name: int(name[3:]))
        remedy = f"the compilers here know {', '.join(known)}" if known else "give the target -arch=sm_80 or the like"
        raise TargetError(f"'arch' must look like sm_80 (got {arch!r})", where, remedy)
    chosen = _choose(arch, compiler, where)
    source = _without_wmma(_rename_clashes(source))
    if chosen.name == "nvrtc":
        data, log = _nvrtc(chosen, source, arch, where, options)
    else:
        data, log = _nvcc(chosen, source, arch, where, options)
    return Cubin(data, log, arch, chosen.name)


def _choose(arch: str, wanted: str, where: str) -> Compiler:
    if wanted not in ("auto", "nvrtc", "nvcc"):
        raise ToolchainError(f"'compiler' must be auto, nvrtc or nvcc (got {wanted!r})", where)
    found = [c for c in find_compilers() if wanted in ("auto", c.name)]
    if not found:
        missing = "neither NVRTC nor nvcc" if wanted == "auto" else f"no {wanted}"
        remedy = "put nvcc (CUDA toolkit) on PATH" if wanted == "nvcc" else NVRTC_REMEDY
        raise ToolchainError(f"{missing} found to compile CUDA with", where, remedy)
    for compiler in found:
        if compiler.supports(arch):
            return compiler
    known = "; ".join(f"{c.name} {c.version[0]}.{c.version[1]}: {', '.join(c.archs)}" for c in found)
    raise ToolchainError(
        f"no compiler here makes cubins for {arch} ({known})", where, "use one of these architectures"
    )


def _rename_clashes(source: str) -> str:
    # TVM defines the half functions that cuda_fp16.h lacked; newer headers (CUDA 13) have htanh, and so TVM 0.27 asks
    # for the compiler's version first.
    include = "#include <cuda_fp16.h>\n"
    if include not in source or "htanh" not in source or "__CUDACC_VER_MINOR__ < 8" in source:
        return source
    return source.replace(include, include + "#define htanh tvm_htanh\n", 1)


def _without_wmma(source: str) -> str:
    # TVM includes the header for every kernel on tensor cores; NVRTC's wheels lack its parts.
    return source if "nvcuda::" in source else source.replace("#include <mma.h>\n", "")


def _nvrtc(compiler: Compiler, source: str, arch: str, where: str, more: Sequence[str]) -> tuple[bytes, str]:
    library = nvrtc_library(compiler.path)
    program = ctypes.c_void_p()
    options = [f"--gpu-architecture={arch}", "-default-device", "--ptxas-options=-v", *more]
    options += [f"--include-path={folder}" for folder in include_folders()]
    encoded = [o.encode() for o in options]
    given = {} if any(Path(folder, "cuda/std/cstdint").is_file() for folder in include_folders()) else _STANDARD
    texts = (ctypes.c_char_p * len(given))(*(text.encode() for text in given.values()))
    names = (ctypes.c_char_p * len(given))(*(name.encode() for name in given))
    code = library.nvrtcCreateProgram(
        ctypes.byref(program), source.encode(), b"kernels.cu", len(given), texts, names
    )
    if code:
        raise ToolchainError(f"NVRTC could not start (error {code})", where, NVRTC_REMEDY)
    try:
        code = library.nvrtcCompileProgram(program, len(encoded), (ctypes.c_char_p * len(encoded))(*encoded))
        log = _nvrtc_get(library, program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
        if code:
            raise _refused("NVRTC", arch, log, where)
        return _nvrtc_get(library, program, "CUBIN"), log
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _nvrtc_get(library: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    library[f"nvrtcGet{what}Size"](program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    library[f"nvrtcGet{what}"](program, buffer)
    return buffer.raw


def _nvcc(compiler: Compiler, source: str, arch: str, where: str, more: Sequence[str]) -> tuple[bytes, str]:
    with work_folder() as folder:
        text, out = Path(folder, "kernels.cu"), Path(folder, "kernels.cubin")
        text.write_text(source)
        command = [compiler.path, "-cubin", "-O3", "-arch", arch, "-Xptxas", "-v", *more, "-o", str(out), str(text)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_NVCC_LIMIT_S)
        except subprocess.TimeoutExpired:
            raise ToolchainError(
                f"nvcc took more than {_NVCC_LIMIT_S:.0f} s for {len(source)} characters of source", where,
                "unroll less, or use a smaller tile",
            ) from None  # fmt: skip
        except OSError as error:
            raise ToolchainError(
                f"nvcc could not be run: {error}", where, "repair the CUDA toolkit"
            ) from None
        log = done.stdout + done.stderr
        if done.returncode or not out.is_file():
            raise _refused("nvcc", arch, log.replace(str(text), "kernels.cu"), where)
        return out.read_bytes(), log


def _refused(compiler: str, arch: str, log: str, where: str) -> ToolchainError:
    lines = [line for line in log.splitlines() if line.strip() and not line.startswith("ptxas info")]
    told = "\n    ".join(lines[:_LOG_LINES])
    if re.search(r"cannot open source file|could not open source file", log):
        remedy = f"give the CUDA headers: {NVRTC_REMEDY}"
    elif "too much shared data" in log:
        remedy = "use a smaller tile: static shared memory ends at 48 KiB a block"
    elif "gpu architecture" in log.lower() or "gpu-architecture" in log.lower():
        remedy = "use an architecture that this compiler knows (see roller-tvm doctor)"
    else:
        remedy = "report the operator and the plan: generated source should compile"
    return ToolchainError(f"{compiler} refused the source for {arch}:\n    {told}", where, remedy)
