"""The table by which a built model picks a kernel at each call: C text for its library, and its owner in Python.

Each call of a kernel in the model is a site, a function of its own in the library. It looks up which variant to run,
hands on the arguments that this one takes, and adds up nanoseconds: two readings of the clock and a copied argument
list, some 50 ns a call. Kernels of a GPU are queued: there a site leaves an event before and one behind the kernel
(`device_times`), and what it adds up is only the number of calls.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

#: Begins the names of sites.
SITE = "roller_tvm_site_"

@dataclass(frozen=True)
class Convention:
    """A calling convention of kernels, in C.

    Parameters
    ----------
    prefix : str
        Begins the symbols of kernels.
    types : str
        Defines `Value`, an argument.
    parameters : str
        Of a kernel; `given` are the arguments.
    names : str
        Of the parameters.
    own : str
        Declares what is handed on instead of them, room for `MOST` arguments.
    take : str
        Takes the argument `place` as the n-th.
    handed : str
        Arguments of the call of a variant.
    data : str
        Where the data of the first argument, a tensor, are.
    """

    prefix: str
    types: str
    parameters: str
    names: str
    own: str
    take: str
    handed: str
    data: str


#: That of TVM FFI.
FFI = Convention(
    "__tvm_ffi_", "typedef struct { int32_t type; uint32_t zero; int64_t value; } Value;",
    "void* self, const Value* given, int32_t count, Value* result", "self, given, count, result",
    "Value own[MOST];", "own[n] = given[place];", "0, own, variant->count, result",
    "*(void**)(given->value + (given->type == 7 ? 0 : 24))",  # a DLTensor, or one behind the head of an object
)  # fmt: skip
#: That of packed functions before.
PACKED = Convention(
    "", "typedef union { int64_t whole; double real; void* pointer; } Value;",
    "Value* given, int32_t* types, int32_t count, Value* result, int32_t* result_type, void* resource",
    "given, types, count, result, result_type, resource",
    "Value own[MOST]; int32_t own_types[MOST];", "own[n] = given[place]; own_types[n] = types[place];",
    "own, own_types, variant->count, result, result_type, resource", "*(void**)given->pointer",
)  # fmt: skip

_HEAD = """#include <stdint.h>
#include <string.h>
#include <time.h>
#ifdef __cplusplus
#define C extern "C"
#else
#define C extern
#endif
"""

_NOW = """
static inline int64_t now() {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}
"""
_RUN = """static int run(int site, PARAMETERS) {
  const Variant* variant = sites[site] + roller_tvm_chosen[site];
  OWN
  for (int32_t n = 0; n < variant->count; ++n) {
    int16_t place = variant->places[n];
    TAKE
  }
  BEFORE
  int code = variant->kernel(HANDED);
  BEHIND
  roller_tvm_calls[site] += 1;
  return code;
}
"""
#: Functions by which another machine sets and reads the table: its variants, and then nanoseconds and calls.
CHOOSE, READ = "roller_tvm_choose", "roller_tvm_read"
_FROM_AFAR = """C int CHOOSE(PARAMETERS);
int CHOOSE(PARAMETERS) {
  memcpy(roller_tvm_chosen, DATA, sizeof roller_tvm_chosen);
  memset(roller_tvm_ns, 0, sizeof roller_tvm_ns);
  memset(roller_tvm_calls, 0, sizeof roller_tvm_calls);
  return 0;
}
C int READ(PARAMETERS);
int READ(PARAMETERS) {
  char* to = (char*)DATA;
  memcpy(to, roller_tvm_ns, sizeof roller_tvm_ns);
  memcpy(to + sizeof roller_tvm_ns, roller_tvm_calls, sizeof roller_tvm_calls);
  return 0;
}
"""
#: What a site does before and behind a kernel: on a CPU it reads the clock, on a GPU it leaves events.
_CLOCK = {"BEFORE": "int64_t start = now();", "BEHIND": "roller_tvm_ns[site] += now() - start;"}
_EVENTS = {
    "BEFORE": "Record record = roller_tvm_record; void* stream = record ? roller_tvm_stream(CUDA, 0) : 0;\n"
    "  if (record) record(roller_tvm_events[2 * site], stream);",
    "BEHIND": "if (record) record(roller_tvm_events[2 * site + 1], stream);\n  roller_tvm_last_ns = now();",
}
_POINTERS = """#define CUDA 2
typedef void* (*Stream)(int32_t, int32_t);
typedef int (*Record)(void*, void*);
C Stream roller_tvm_stream; Stream roller_tvm_stream;
C Record roller_tvm_record; Record roller_tvm_record;
C int64_t roller_tvm_last_ns; int64_t roller_tvm_last_ns;
C void* roller_tvm_events[2 * COUNT]; void* roller_tvm_events[2 * COUNT];
C void* NO_STREAM(int32_t kind, int32_t device); void* NO_STREAM(int32_t kind, int32_t device) { return 0; }
"""
#: Function of a library with events: the default stream.
NO_STREAM = "roller_tvm_no_stream"


@dataclass(frozen=True)
class Variant:
    """A kernel, and which of the site's arguments it takes."""

    kernel: str
    places: tuple[int, ...]


@dataclass(frozen=True)
class Site:
    """A call of a kernel: what may run there, the start first.

    Parameters
    ----------
    operator : str
        Name of the function that the model calls.
    options : tuple of str
        A label for each variant.
    """

    operator: str
    options: tuple[str, ...]
    variants: tuple[Variant, ...]


def source(sites: Sequence[Site], by: Convention, events: bool = False) -> str:
    """Return the text in C of the sites, by a calling convention.

    Parameters
    ----------
    events : bool
        Kernels run on a GPU.

    Examples
    --------
    >>> text = source([Site("dense", ("a", "b"), (Variant("k0", (0, 1, 3)), Variant("k1", (0, 2, 3))))], FFI)
    >>> "int __tvm_ffi_roller_tvm_site_0(" in text and "{__tvm_ffi_k1, places_0_1, 3}" in text
    True
    """
    kernels = dict.fromkeys(v.kernel for site in sites for v in site.variants)
    lines = [_HEAD + by.types, f"typedef int (*Kernel)({by.parameters});",
             "typedef struct { Kernel kernel; const int16_t* places; int32_t count; } Variant;",
             *(f"C int {by.prefix}{k}({by.parameters});" for k in kernels)]  # fmt: skip
    for at, site in enumerate(sites):
        for n, variant in enumerate(site.variants):
            lines.append(f"static const int16_t places_{at}_{n}[] = {{{', '.join(map(str, variant.places))}}};")
        own = ", ".join(f"{{{by.prefix}{v.kernel}, places_{at}_{n}, {len(v.places)}}}"
                        for n, v in enumerate(site.variants))  # fmt: skip
        lines.append(f"static const Variant variants_{at}[] = {{{own}}};")
    lines.append(f"static const Variant* const sites[] = {{{', '.join(f'variants_{n}' for n in range(len(sites)))}}};")
    lines.append(f"#define MOST {max(len(v.places) for site in sites for v in site.variants)}")
    for kind, name in (("int32_t", "chosen"), ("int64_t", "ns"), ("int64_t", "calls")):
        lines += [f"C {kind} roller_tvm_{name}[{len(sites)}];", f"{kind} roller_tvm_{name}[{len(sites)}];"]
    words = {"PARAMETERS": by.parameters, "OWN": by.own, "TAKE": by.take, "HANDED": by.handed, "DATA": by.data,
             "CHOOSE": by.prefix + CHOOSE, "READ": by.prefix + READ, **(_EVENTS if events else _CLOCK)}  # fmt: skip
    lines.append(_NOW + (_POINTERS.replace("COUNT", str(len(sites))).replace("NO_STREAM", NO_STREAM) if events else ""))
    lines.append(reduce(lambda text, word: text.replace(word, words[word]), words, _RUN + _FROM_AFAR))
    for n in range(len(sites)):
        head = f"int {by.prefix}{SITE}{n}({by.parameters})"
        lines += [f"C {head};", f"{head} {{ return run({n}, {by.names}); }}"]
    return "\n".join(lines) + "\n"


class Table:
    """The table of a loaded library.

    Parameters
    ----------
    library : path
        The file that the model's kernels were loaded from; it may be gone afterwards.
    count : int
        Number of sites.
    """

    #: Whether a kernel is loaded when it is called first.
    lazy = False

    def __init__(self, library: Path, count: int) -> None:
        self._library = ctypes.CDLL(str(library))
        self._chosen = (ctypes.c_int32 * count).in_dll(self._library, "roller_tvm_chosen")
        self._ns = (ctypes.c_int64 * count).in_dll(self._library, "roller_tvm_ns")
        self._calls = (ctypes.c_int64 * count).in_dll(self._library, "roller_tvm_calls")

    def start(self) -> None:
        """Begin a run; called right before it where nobody waits for the answer."""

    def choose(self, variants: Sequence[int]) -> None:
        """Set the variant of each site, from the next call on; forget the times."""
        self._chosen[:] = list(variants)
        ctypes.memset(self._ns, 0, ctypes.sizeof(self._ns))
        ctypes.memset(self._calls, 0, ctypes.sizeof(self._calls))

    @property
    def chosen(self) -> list[int]:
        """The variant of each site."""
        return list(self._chosen)

    def seconds(self) -> list[float]:
        """Return the seconds of each site since `choose`, all its calls together; nan if it was not called."""
        return seconds_of(self._ns, self._calls)


def seconds_of(ns: Iterable[int], calls: Iterable[int]) -> list[float]:
    """Return the seconds of sites; nan of those that were not called.

    Examples
    --------
    >>> seconds_of([1, 0], [1, 0])
    [1e-09, nan]
    """
    return [spent * 1e-9 if count else float("nan") for spent, count in zip(ns, calls, strict=True)]
