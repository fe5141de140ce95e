"""Parameters of named operators: from text to checked values, each mistake named with its remedy."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from ..errors import BadInput, UsageError, must_be
from .stage import DTYPE_BYTES

Padding = str | tuple[int, int, int, int]
REQUIRED = object()

# Kernels index with 32 bits: a tensor of more elements cannot be addressed.
MAX_ELEMENTS = 2**31 - 1


@dataclass(frozen=True)
class Window:
    """A sliding window on one dimension: padding before and after, and the number of outputs.

    Examples
    --------
    >>> Window.fit("conv", "h", size=83, kernel=5, stride=2, dilation=1, padding="SAME", side=0)
    Window(size=83, kernel=5, stride=2, dilation=1, before=2, after=2, out=42)
    """

    size: int
    kernel: int
    stride: int
    dilation: int
    before: int
    after: int
    out: int

    @property
    def padded(self) -> int:
        return self.size + self.before + self.after

    @classmethod
    def fit(
        cls,
        operator: str,
        axis: str,
        size: int,
        kernel: int,
        stride: int,
        dilation: int,
        padding: Padding,
        side: int,
    ) -> Window:
        """Place a window on a dimension; `side` is 0 for height, 1 for width.

        'SAME' is TensorFlow's: ceil(size / stride) outputs; if the padding is odd, the larger half comes
        after.
        """
        reach = (kernel - 1) * dilation + 1
        if padding == "SAME":
            out = -(-size // stride)
            total = max((out - 1) * stride + reach - size, 0)
            before, after = total // 2, total - total // 2
        else:
            before, after = (0, 0) if isinstance(padding, str) else (padding[side], padding[side + 2])
            out = (size + before + after - reach) // stride + 1
        if reach > size + before + after:
            raise BadInput(
                f"the window of 'k{axis}'={kernel} with dilation {dilation} reaches over {reach} elements, "
                f"the padded '{axis}' has {size + before + after}",
                operator,
                f"give 'k{axis}' <= {max((size + before + after - 1) // dilation + 1, 1)} or more padding",
            )
        return cls(size, kernel, stride, dilation, before, after, out)


def _error(operator: str, name: str, expected: str, got: object, remedy: str) -> BadInput:
    if isinstance(got, str):  # from a command line or a file: everything is text there
        return BadInput(f"{name!r} must be {expected} (got {got})", operator, remedy)
    return BadInput(must_be(name, expected, got), operator, remedy)


def _integer(raw: object) -> int | None:
    if isinstance(raw, bool):
        return None
    if isinstance(raw, str):
        return int(raw) if re.fullmatch(r"[+-]?\d+", raw.strip()) else None
    try:
        value = int(raw)  # type: ignore[call-overload]
    except (TypeError, ValueError):
        return None
    return value if value == raw else None


def _integers(raw: object) -> tuple[int, ...] | None:
    """Return the integers of '1x2x3', '1,2,3', 5 or a sequence; None if one of them is not an integer."""
    parts: Iterable[object]
    if isinstance(raw, str):
        parts = [p for p in re.split(r"[x,]", raw.strip().strip("()[]")) if p.strip()]
    elif isinstance(raw, Iterable):
        parts = raw
    else:
        parts = [raw]
    values = [_integer(p) for p in parts]
    return None if None in values else tuple(v for v in values if v is not None)


def _extent(operator: str, name: str, raw: object) -> int:
    value = _integer(raw)
    if value is None or value < 1:
        raise _error(operator, name, "an int >= 1", raw, f"give {name}=1 or more")
    return value


def _pair(operator: str, name: str, raw: object) -> tuple[int, int]:
    value = _integers(raw)
    if value is None or len(value) not in (1, 2) or min(value) < 1:
        raise _error(
            operator, name, "one or two ints >= 1", raw, f"give {name}=2, or {name}=2x1 for height and width"
        )
    return (value[0], value[-1])


def _padding(operator: str, name: str, raw: object) -> Padding:
    if isinstance(raw, str) and raw.upper() in ("SAME", "VALID"):
        return raw.upper()
    value = _integers(raw)
    if value is None or len(value) not in (1, 2, 4) or min(value) < 0:
        raise _error(
            operator,
            name,
            "SAME, VALID or 1, 2 or 4 ints >= 0",
            raw,
            f"give {name}=SAME, {name}=1, {name}=1x2 (h, w) or {name}=0x0x1x1 (top, left, bottom, right)",
        )
    top, left, bottom, right = {1: value * 4, 2: value * 2, 4: value}[len(value)]
    return (top, left, bottom, right)


def _shape(operator: str, name: str, raw: object) -> tuple[int, ...]:
    value = _integers(raw)
    if not value or min(value) < 1:
        raise _error(operator, name, "one or more ints >= 1", raw, f"give {name}=128x256x14x14")
    return value


def _axes(operator: str, name: str, raw: object) -> tuple[int, ...]:
    value = _integers(raw)
    if not value:
        raise _error(
            operator, name, "one or more ints", raw, f"give {name}=2,3; negative numbers count from the end"
        )
    return value


def _flag(operator: str, name: str, raw: object) -> bool:
    text = str(raw).strip().lower()
    if text in ("1", "true", "yes", "on"):
        return True
    if text in ("0", "false", "no", "off"):
        return False
    raise _error(operator, name, "0 or 1", raw, f"give {name}=1 or leave it out")


def _choice(*choices: str) -> Callable[[str, str, object], str]:
    def convert(operator: str, name: str, raw: object) -> str:
        for choice in choices:
            if str(raw).lower() == choice.lower():
                return choice
        raise _error(operator, name, f"one of {', '.join(choices)}", raw, f"give {name}={choices[0]}")

    return convert


_CONVERTERS: dict[str, Callable[[str, str, object], Any]] = {
    **dict.fromkeys(("n", "c", "h", "w", "f", "k", "kh", "kw", "m", "b", "groups", "multiplier"), _extent),
    **dict.fromkeys(("stride", "dilation"), _pair),
    **dict.fromkeys(("shape", "other"), _shape),
    **dict.fromkeys(("axis", "perm"), _axes),
    **dict.fromkeys(("bias", "relu", "keepdims"), _flag),
    "padding": _padding,
    "layout": _choice("NN", "NT", "TN", "TT"),
    "kind": _choice("avg", "max"),
    "dtype": _choice(*DTYPE_BYTES),
}


def convert(operator: str, defaults: Mapping[str, Any], given: Mapping[str, object]) -> dict[str, Any]:
    """Return every parameter of an operator as a checked value: the given ones, and defaults for the rest.

    Parameters
    ----------
    operator : str
        Its name, for the messages.
    defaults : mapping
        Parameter -> default, or ``REQUIRED``.
    given : mapping
        Parameter -> text or value.
    """
    usage = " ".join(n if v is not REQUIRED else f"{n}=..." for n, v in defaults.items() if v is REQUIRED)
    for name in given:
        if name not in defaults:
            raise UsageError(
                f"unknown parameter {name!r}", operator, f"its parameters are {', '.join(defaults)}"
            )
    values: dict[str, Any] = {}
    for name, default in defaults.items():
        if name not in given:
            if default is REQUIRED:
                raise UsageError(f"parameter {name!r} is missing", operator, f"it needs at least {usage}")
            values[name] = default
            continue
        values[name] = _CONVERTERS[name](operator, name, given[name])
    return values


def check_elements(operator: str, name: str, shape: tuple[int, ...]) -> None:
    """Raise `BadInput` if a tensor is too large for 32-bit indices."""
    if prod(shape) > MAX_ELEMENTS:
        raise BadInput(
            f"tensor '{name}' of shape {shape} has {prod(shape)} elements, the limit is {MAX_ELEMENTS} "
            "(32-bit indices)",
            operator,
            "split the operator, for instance along its batch",
        )


def parse_params(text: str) -> dict[str, str]:
    """Split ``"n=128 c=64 padding=SAME"`` into a dictionary.

    Examples
    --------
    >>> parse_params("shape=128x256x14x14")
    {'shape': '128x256x14x14'}
    """
    result: dict[str, str] = {}
    for word in text.split():
        name, equals, value = word.partition("=")
        if not equals or not name or not value:
            raise UsageError(
                f"{word!r} is not of the form name=value", remedy="write parameters as n=1 c=64 h=56"
            )
        if name in result:
            raise UsageError(
                f"parameter {name!r} is given twice: {result[name]} and {value}", remedy=f"give {name} once"
            )
        result[name] = value
    return result
