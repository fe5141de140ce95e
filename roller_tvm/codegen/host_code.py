"""Host code of kernels: memory between them, and launches. Sizes may be open until a call."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from roller_tvm.codegen.errors import NotEmulated
from roller_tvm.errors import UsageError

#: A number, the name of a size known when the function is called, or (operation, left, right).
Extent = Any
# Extents are not negative: quotients round down either way.
_OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "Add": operator.add, "Sub": operator.sub, "Mul": operator.mul, "FloorDiv": operator.floordiv,
    "Div": operator.floordiv, "FloorMod": operator.mod, "Mod": operator.mod, "Min": min, "Max": max,
    "shift_right": operator.rshift, "shift_left": operator.lshift,
    "LT": operator.lt, "LE": operator.le, "GT": operator.gt, "GE": operator.ge, "EQ": operator.eq, "NE": operator.ne,
    "And": lambda a, b: a and b, "Or": lambda a, b: a or b,
}  # fmt: skip
#: TVM's names of the operations of `extent`.
OPERATIONS = tuple(_OPERATIONS)


def extent(value: Extent, sizes: Mapping[str, int]) -> int:
    """Return the value of an extent for given sizes.

    Raises
    ------
    NotEmulated
        A size is missing from `sizes`.

    Examples
    --------
    >>> extent(("FloorDiv", ("Add", "n", 31), 32), {"n": 70})
    3
    """
    if isinstance(value, str):
        if value not in sizes:
            text = f"a size known only when the function is called: {value}"
            raise NotEmulated(text, remedy="give it in sizes=")
        return int(sizes[value])
    if isinstance(value, (tuple, list)):
        return _OPERATIONS[value[0]](extent(value[1], sizes), extent(value[2], sizes))
    return int(value)


@dataclass(frozen=True)
class BufferSpec:
    """A buffer of a function: one of its parameters, or memory between its kernels."""

    name: str
    shape: tuple[Extent, ...]  # extents; of type `Extent` before sizes are known
    dtype: str

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class Launch:
    """One launch of a kernel."""

    kernel: str
    #: Names of buffers, and numbers. An extent that is not yet a number is wrapped in a tuple of one.
    arguments: tuple[Any, ...]
    grid: tuple[Extent, Extent, Extent]  # extents along x, y and z
    block: tuple[Extent, Extent, Extent]
    dynamic_shared: Extent = 0  # bytes of dynamic shared memory
    condition: Extent = 1  # it takes place unless this is 0

    def __str__(self) -> str:
        shared = f", {self.dynamic_shared} B" if self.dynamic_shared else ""
        return f"{self.kernel}<<<{self.grid}, {self.block}{shared}>>>({', '.join(map(str, self.arguments))})"


@dataclass(frozen=True)
class HostCode:
    """The host's part of a function.

    Examples
    --------
    >>> code = HostCode((BufferSpec("A", ("n",), "float32"),), (), (launch_of("f", ["A"], ["blockIdx.x"], ["n"]),))
    >>> print(code.sized(code.sizes([(70,)])).launches[0])
    f<<<(70, 1, 1), (1, 1, 1)>>>(A)
    >>> HostCode.from_json(code.to_json()) == code
    True
    """

    parameters: tuple[BufferSpec | str, ...]  # buffers; a name stands for a number argument
    between: tuple[BufferSpec, ...]
    launches: tuple[Launch, ...]
    #: Parameters used as memory between launches or within one; nobody reads them after the call.
    scratch: tuple[str, ...] = ()

    @property
    def kernels(self) -> tuple[str, ...]:
        """Names of the kernels, each once."""
        return tuple(dict.fromkeys(launch.kernel for launch in self.launches))

    def sizes(self, given: Sequence[Any]) -> dict[str, int]:
        """Return the open sizes, given the shape (or the number) of each parameter."""
        if len(given) != len(self.parameters):
            raise UsageError(f"{len(given)} arguments for {len(self.parameters)} parameters")
        found: dict[str, int] = {}
        for parameter, value in zip(self.parameters, given, strict=True):
            if isinstance(parameter, str):
                found[parameter] = int(value)
            else:
                found |= {e: int(v) for e, v in zip(parameter.shape, value, strict=True) if isinstance(e, str)}
        return found

    def sized(self, sizes: Mapping[str, int]) -> HostCode:
        """Return the host code with every extent a number and without number parameters."""

        def buffer(spec: BufferSpec) -> BufferSpec:
            return BufferSpec(spec.name, tuple(extent(e, sizes) for e in spec.shape), spec.dtype)

        def triple(values: tuple[Extent, Extent, Extent]) -> tuple[int, int, int]:
            x, y, z = (extent(e, sizes) for e in values)
            return x, y, z

        def launch(one: Launch) -> Launch:
            arguments = tuple(extent(a[0], sizes) if isinstance(a, tuple) else a for a in one.arguments)
            dynamic = extent(one.dynamic_shared, sizes)
            return Launch(one.kernel, arguments, triple(one.grid), triple(one.block), dynamic)

        launches = [one for one in self.launches if extent(one.condition, sizes)]
        parameters = tuple(buffer(p) for p in self.parameters if isinstance(p, BufferSpec))
        return HostCode(parameters, tuple(map(buffer, self.between)), tuple(map(launch, launches)), self.scratch)

    def to_json(self) -> dict[str, Any]:
        """Return the host code as plain values."""
        return {
            "parameters": [p if isinstance(p, str) else _plain(p) for p in self.parameters],
            "between": [_plain(b) for b in self.between],
            "launches": [
                [x.kernel, x.arguments, x.grid, x.block, x.dynamic_shared, *([x.condition] if x.condition != 1 else [])]
                for x in self.launches
            ],
            **({"scratch": list(self.scratch)} if self.scratch else {}),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> HostCode:
        """Return the host code that `to_json` wrote."""

        def buffer(values: Any) -> BufferSpec:
            return BufferSpec(values[0], tuple(map(_tuples, values[1])), values[2])

        return cls(
            tuple(p if isinstance(p, str) else buffer(p) for p in data["parameters"]),
            tuple(map(buffer, data["between"])),
            tuple(Launch(x[0], *map(_tuples, x[1:])) for x in data["launches"]),
            tuple(data.get("scratch", ())),
        )


def _plain(spec: BufferSpec) -> list[Any]:
    return [spec.name, list(spec.shape), spec.dtype]


def _tuples(value: Any) -> Any:
    """Turn JSON's lists back into tuples."""
    return tuple(map(_tuples, value)) if isinstance(value, (list, tuple)) else value


def launch_of(kernel: str, arguments: Sequence[Any], tags: Sequence[str], extents: Sequence[Extent]) -> Launch:
    """Return a launch from TVM's launch parameters ('blockIdx.x', ...; last the bytes of dynamic shared memory).

    Examples
    --------
    >>> print(launch_of("f", ["A"], ["blockIdx.x", "threadIdx.y"], [8, 4]))
    f<<<(8, 1, 1), (1, 4, 1)>>>(A)
    """
    values: Mapping[str, Extent] = dict(zip(tags, extents, strict=True))
    known = {f"{what}.{axis}" for what in ("blockIdx", "threadIdx") for axis in "xyz"}
    dynamic = [v for tag, v in values.items() if tag.endswith("use_dyn_shared_memory")]
    strange = [tag for tag in values if tag not in known and not tag.endswith("use_dyn_shared_memory")]
    if strange:
        raise UsageError(f"unknown launch parameter {strange[0]!r}", where=kernel)

    def triple(what: str) -> tuple[Extent, Extent, Extent]:
        return values.get(f"{what}.x", 1), values.get(f"{what}.y", 1), values.get(f"{what}.z", 1)

    return Launch(kernel, tuple(arguments), triple("blockIdx"), triple("threadIdx"), *dynamic)
