"""Contexts in which kernels for LLVM are built with Roller's rewrites of CPU code.

Results stay the same; schedules and records do not change, so TVM's, Ansor's and Roller's schedules all gain. Flattened
functions are rewritten (``codegen.rewrites``) right before TVM hands them to LLVM, later than any pass a user can add.
"""

from __future__ import annotations

from contextvars import ContextVar
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

from ..codegen.rewrites import rewritten
from .vector_math import erf_of_vectors, replace_rules

if TYPE_CHECKING:
    from typing import Self  # Python 3.11

#: TVM's function from flattened functions to code for LLVM.
GENERATE = "target.build.llvm"
#: Names of the rewrites that are on here, separately in each thread.
_ON: ContextVar[frozenset[str]] = ContextVar("roller_cpu_rewrites", default=frozenset())


class CpuRewrites:
    """A context in which some rewrites are on and others off; the rest stay as around it. It may be entered again.

    Parameters
    ----------
    **ways : bool
        ``vector_math``, ``wide_indices``, ``stack_tiles``, ``prefetch``, ``edge_vectors``, ``fast_math``.
    """

    def __init__(self, **ways: bool) -> None:
        self.ways = ways
        self._before: list[Any] = []

    def __enter__(self) -> Self:
        if any(self.ways.values()):
            _stand_before_llvm()
        if self.ways.get("vector_math"):
            replace_rules(VectorMath.active)
            erf_of_vectors(1)
        on = frozenset(name for name, is_on in self.ways.items() if is_on)
        self._before.append(_ON.set(_ON.get() - self.ways.keys() | on))
        return self

    def __exit__(self, *_: object) -> None:
        _ON.reset(self._before.pop())
        if self.ways.get("vector_math"):
            erf_of_vectors(-1)


class _One(CpuRewrites):
    """A context of one rewrite.

    Parameters
    ----------
    on : bool
        False restores TVM's own code inside of another such context.
    """

    name: ClassVar[str]

    def __init__(self, on: bool = True) -> None:
        super().__init__(**{self.name: on})

    @classmethod
    def active(cls) -> bool:
        """Return whether the rewrite is on here and now."""
        return cls.name in _ON.get()


class VectorMath(_One):
    """A context in which kernels for LLVM compute exp, erf, tanh and sigmoid of float32 with arithmetic.

    See ``codegen.rewrites.vector_math``.

    Examples
    --------
    >>> with VectorMath():
    ...     lib = relay.build(mod, "llvm -mcpu=skylake-avx512", params=params)
    """

    name = "vector_math"


class WideIndices(_One):
    """A context in which kernels for LLVM compute addresses in 64 bits. See ``codegen.rewrites.wide_indices``."""

    name = "wide_indices"


class StackTiles(_One):
    """A context in which kernels for LLVM keep buffers that fit into the registers on the stack.

    See ``codegen.rewrites.stack_tiles``.
    """

    name = "stack_tiles"


class PrefetchPanels(_One):
    """A context in which kernels for LLVM prefetch the tensors they only read.

    See ``codegen.rewrites.prefetch_panels``.
    """

    name = "prefetch"


class EdgeVectors(_One):
    """A context in which kernels for LLVM compute whole vectors in every tile that does not cross an edge.

    Some of Roller's plans rely on this: built without it, they are slow. See ``codegen.rewrites.whole_vectors``.
    """

    name = "edge_vectors"


def cpu_code(
    vector_math: bool = True, wide_indices: bool = True, stack_tiles: bool = True, prefetch: bool = True,
    edge_vectors: bool = True, fast_math: bool = False,
) -> CpuRewrites:  # fmt: skip
    """Return a context in which kernels for LLVM are built with Roller's rewrites, or with some of them off.

    Examples
    --------
    >>> with cpu_code():
    ...     module = tvm.build(schedule, args, "llvm")
    """
    return CpuRewrites(
        vector_math=vector_math, wide_indices=wide_indices, stack_tiles=stack_tiles, prefetch=prefetch,
        edge_vectors=edge_vectors, fast_math=fast_math,
    )  # fmt: skip


def as_tvm() -> CpuRewrites:
    """Return a context in which kernels for LLVM are built without Roller's rewrites, even inside of another context.
    """
    return cpu_code(False, False, False, False, False)


def rewrites_on() -> frozenset[str]:
    """Return the names of the rewrites that are on here and now."""
    return _ON.get()


def code_of(mod: Any, target: Any, names: frozenset[str]) -> Any:
    """Return TVM's code for LLVM of flattened functions, with rewrites of these names."""
    import tvm

    if names:
        functions = mod.functions.items()
        made = {var: rewritten(f, names) if isinstance(f, tvm.tir.PrimFunc) else f for var, f in functions}
        mod = tvm.IRModule(made, attrs=mod.attrs)
    return _generator()(mod, target)


@cache
def _generator() -> Any:
    """Return TVM's own code generator."""
    import tvm

    return tvm.get_global_func(GENERATE)


@cache
def _stand_before_llvm() -> None:
    """Put the rewrites that are on before TVM's LLVM code generator, once a process."""
    import tvm

    _generator()
    tvm.register_func(GENERATE, lambda mod, target: code_of(mod, target, _ON.get()), override=True)
