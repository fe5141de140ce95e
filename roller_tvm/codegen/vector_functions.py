"""exp, erf, tanh, sigmoid and sums of lanes in LLVM's language, of float32, which LLVM writes into their callers.

TVM's code generator simplifies every name of an expression in all that follows. Of functions of functions, written as
expressions of TVM, that takes it minutes; LLVM's own text passes it by.

The first four rest on one step: exp(x) = (1 + growth) * power of 2, where growth is a polynomial and less than 1.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache, partial

from ..te import fits

#: Ways to compare float32: NaN is neither less nor more. TVM 0.17 tells LLVM that there is none.
_LESS, _MORE = "olt", "ogt"
#: Bits of a float32 without its sign; those of infinity.
_SIZE, _INFINITY = 0x7FFFFFFF, 0x7F800000
#: Functions of LLVM that the text calls, and numbers that each takes.
_OWN = {"fmuladd": 3, "fabs": 1, "copysign": 2}


class Writer:
    """Instructions of one function, in order; a value is its name or a constant."""

    def __init__(self, lanes: int, loses_nan: bool) -> None:
        self._lanes, self._loses_nan = lanes, loses_nan
        self.float, self.int = self._type("float"), self._type("i32")
        self._bit = self._type("i1")
        self.lines: list[str] = []

    def _type(self, name: str) -> str:
        return f"<{self._lanes} x {name}>" if self._lanes > 1 else name

    def _said(self, instruction: str) -> str:
        name = f"%v{len(self.lines)}"
        self.lines.append(f"  {name} = {instruction}")
        return name

    def number(self, value: float) -> str:
        """Return a constant, rounded to float32."""
        return self._lane("float", f"0x{struct.pack('>d', struct.unpack('f', struct.pack('f', value))[0]).hex()}")

    def whole(self, value: int) -> str:
        return self._lane("i32", str(value))

    def _lane(self, kind: str, text: str) -> str:
        return text if self._lanes == 1 else f"<{', '.join([f'{kind} {text}'] * self._lanes)}>"

    def add(self, a: str, b: str) -> str:
        return self._said(f"fadd {self.float} {a}, {b}")

    def minus(self, a: str, b: str) -> str:
        return self._said(f"fsub {self.float} {a}, {b}")

    def mul(self, a: str, b: str) -> str:
        return self._said(f"fmul {self.float} {a}, {b}")

    def div(self, a: str, b: str) -> str:
        return self._said(f"fdiv {self.float} {a}, {b}")

    def own(self, function: str, *arguments: str) -> str:
        """Return the result of one of LLVM's functions."""
        given = ", ".join(f"{self.float} {argument}" for argument in arguments)
        return self._said(f"call {self.float} @{self.name_of(function)}({given})")

    def name_of(self, function: str) -> str:
        return f"llvm.{function}.{f'v{self._lanes}' if self._lanes > 1 else ''}f32"

    def fma(self, a: str, b: str, c: str) -> str:
        """Return a * b + c, rounded once where the CPU has that."""
        return self.own("fmuladd", a, b, c)

    def where(self, how: str, a: str, b: str, first: str, second: str) -> str:
        """Return `first` where the comparison of `a` and `b` holds, `second` elsewhere."""
        holds = self._said(f"fcmp {how} {self.float} {a}, {b}")
        return self._said(f"select {self._bit} {holds}, {self.float} {first}, {self.float} {second}")

    def or_nan(self, x: str, value: str) -> str:
        """Return `value`, or `x` where that is NaN and comparisons may have lost it, as its bits tell."""
        if not self._loses_nan:
            return value
        bits = self._said(f"bitcast {self.float} {x} to {self.int}")
        size = self._said(f"and {self.int} {bits}, {self.whole(_SIZE)}")
        holds = self._said(f"icmp ugt {self.int} {size}, {self.whole(_INFINITY)}")
        return self._said(f"select {self._bit} {holds}, {self.float} {x}, {self.float} {value}")

    def at_most(self, value: str, bound: float) -> str:
        limit = self.number(bound)
        return self.where(_LESS, value, limit, value, limit)

    def power_of_two(self, rounded: str) -> str:
        """Return 2 to the power of a whole number to which `fits.ROUNDING` was added: its last bits are the number."""
        bits = self._said(f"bitcast {self.float} {rounded} to {self.int}")
        exponent = self._said(f"shl {self.int} {bits}, {self.whole(fits.MANTISSA)}")
        biased = self._said(f"add {self.int} {exponent}, {self.whole(fits.BIAS << fits.MANTISSA)}")
        return self._said(f"bitcast {self.int} {biased} to {self.float}")

    def opposite_power(self, x: str) -> str:
        """Return a normal power of two whose product with `x` is from 1/2 to 1, or near it where there is none."""
        bits = self._said(f"bitcast {self.float} {x} to {self.int}")
        exponent = self._said(f"and {self.int} {bits}, {self.whole(_INFINITY)}")
        most = self.whole((2 * fits.BIAS - 2) << fits.MANTISSA)  # the opposite of more is no normal number
        less = self._said(f"icmp ult {self.int} {exponent}, {most}")
        held = self._said(f"select {self._bit} {less}, {self.int} {exponent}, {self.int} {most}")
        opposite = self._said(f"sub {self.int} {self.whole((2 * fits.BIAS - 1) << fits.MANTISSA)}, {held}")
        return self._said(f"bitcast {self.int} {opposite} to {self.float}")

    def part(self, vector: str, length: int, first: int) -> str:
        """Return lanes of a vector of `length`, from the first of them on."""
        of = f"<{length} x float>"
        if self._lanes == 1:
            return self._said(f"extractelement {of} {vector}, i32 {first}")
        lanes = ", ".join(f"i32 {first + n}" for n in range(self._lanes))
        return self._said(f"shufflevector {of} {vector}, {of} undef, <{self._lanes} x i32> <{lanes}>")

    def polynomial(self, coefficients: tuple[float, ...], x: str) -> str:
        """Return a polynomial of `x` by Horner's rule; coefficients are in ascending order."""
        *rest, result = (self.number(c) for c in coefficients)
        for coefficient in reversed(rest):
            result = self.fma(result, x, coefficient)
        return result


def _grown(to: Writer, x: str, large: bool = False) -> tuple[str, str]:
    """Return (growth, scale), scale a power of 2: exp(x) = scale * growth + scale.

    `large` says whether exp(x) may be infinite: growth then becomes large, or infinite, beside the largest scale.
    """
    rounded = to.fma(x, to.number(fits.LOG2_E), to.number(fits.ROUNDING))
    if large:
        rounded = to.at_most(rounded, fits.ROUNDING + fits.EXPONENT)
    power, rest = to.minus(rounded, to.number(fits.ROUNDING)), x
    for part in fits.LN2:
        rest = to.fma(power, to.number(-part), rest)
    growth = to.fma(to.mul(rest, rest), to.polynomial(fits.EXP, rest), rest)
    return growth, to.power_of_two(rounded)


def _exp(to: Writer, x: str) -> str:
    """The scale of what is taken for 0 is 2 to the power of -127, the bits of which are those of 0."""
    limited = to.where(_MORE, least := to.number(fits.NOTHING), x, least, x)
    growth, scale = _grown(to, limited, large=True)
    return to.or_nan(x, to.fma(scale, growth, scale))


def _sigmoid(to: Writer, x: str) -> str:
    """1 / (exp(-x) + 1)."""
    one, opposite = to.number(1.0), to.minus(to.number(-0.0), x)
    limited = to.where(_MORE, least := to.number(fits.SMALLEST), opposite, least, opposite)
    growth, scale = _grown(to, limited, large=True)
    return to.or_nan(x, to.div(one, to.add(scale, to.fma(scale, growth, one))))


def _tanh(to: Writer, x: str) -> str:
    """1 - 2 / (exp(2t) + 1) of t = abs(x); a polynomial near 0, where that loses digits."""
    one, two, t = to.number(1.0), to.number(2.0), to.own("fabs", x)
    growth, scale = _grown(to, to.add(t, t), large=True)
    far = to.minus(one, to.div(two, to.fma(scale, growth, to.add(scale, one))))
    square = to.mul(t, t)
    near = to.fma(to.mul(t, square), to.polynomial(fits.TANH, square), t)
    return to.own("copysign", to.where(_LESS, t, to.number(fits.TANH_NEAR), near, far), x)


def _erf(to: Writer, x: str) -> str:
    """1 - exp(-g) of t = abs(x), where g is t and t times a polynomial of t."""
    one, end, size = to.number(1.0), to.number(fits.ERF_END), to.own("fabs", x)
    t = to.where(_MORE, size, end, end, size)
    minus_t = to.minus(to.number(-0.0), t)
    growth, scale = _grown(to, to.fma(minus_t, to.polynomial(fits.ERF, t), minus_t))
    return to.or_nan(x, to.own("copysign", to.fma(scale, growth, to.minus(scale, one)), x))


def _rational(fit: tuple[tuple[float, ...], tuple[float, ...], float], to: Writer, x: str) -> str:
    above, below, end = fit
    limit, size = to.number(end), to.own("fabs", x)
    t = to.where(_MORE, size, limit, limit, size)
    square = to.mul(t, t)
    quotient = to.div(to.mul(t, to.polynomial(above, square)), to.polynomial(below, square))
    most = to.where(_MORE, quotient, one := to.number(1.0), one, quotient)
    return to.or_nan(x, to.own("copysign", most, x))


#: Name of a function -> what writes its instructions.
FUNCTIONS: dict[str, Callable[[Writer, str], str]] = {"exp": _exp, "erf": _erf, "tanh": _tanh, "sigmoid": _sigmoid}
#: Those of them that are faster if they need not be exact.
FAST: dict[str, Callable[[Writer, str], str]] = {
    "erf": partial(_rational, fits.FAST_ERF), "tanh": partial(_rational, fits.FAST_TANH),
}  # fmt: skip


def _reciprocal(to: Writer, x: str) -> str:
    return to.div(to.number(1.0), to.mul(x, to.opposite_power(x)))


#: Name -> what writes the factors by which a number is multiplied, in this order, in order to be divided by x.
RECIPROCAL: dict[str, Callable[[Writer, str], str]] = {
    "scale": Writer.opposite_power, "reciprocal": _reciprocal,
}  # fmt: skip


def _sum(to: Writer, a: str, b: str) -> str:
    return to.add(a, b)


def _most(to: Writer, a: str, b: str) -> str:
    return to.where(_MORE, a, b, a, b)


def _least(to: Writer, a: str, b: str) -> str:
    return to.where(_LESS, a, b, a, b)


#: Kind of a node that merges two numbers -> the function that merges all lanes of a vector.
MERGED = {"Add": "sum", "Max": "most", "Min": "least"}
_MERGERS: dict[str, Callable[[Writer, str, str], str]] = {"sum": _sum, "most": _most, "least": _least}


def _merging(function: str, lanes: int) -> list[str]:
    """Return the text of a function from a vector to the number that its lanes make: halves are merged first."""
    x, lines, length = "%x", list[str](), lanes
    while length > 1:
        to = Writer(length // 2, False)
        to.lines = lines
        x = _MERGERS[function](to, to.part(x, length, 0), to.part(x, length, length // 2))
        length //= 2
    name = name_of(function, lanes)
    return [f"define float @{name}(<{lanes} x float> %x) alwaysinline nounwind {{", *lines, f"  ret float {x}", "}"]


def name_of(function: str, lanes: int) -> str:
    """Return the name of a function of so many lanes."""
    return f"roller_{function}_x{lanes}"


@cache
def defined(functions: frozenset[tuple[str, int]], loses_nan: bool, fast: bool) -> str:
    """Return a module of LLVM with functions of (name, lanes).

    Parameters
    ----------
    functions : frozenset of (str, int)
        Names among `FUNCTIONS` and those of `MERGED`, and lanes.
    loses_nan : bool
        Whether LLVM is told that there are no NaN: these are then put in last.
    fast : bool
        Take those of `FAST`.
    """
    texts: list[str] = []
    writers = {**FUNCTIONS, **RECIPROCAL, **(FAST if fast else {})}
    for function, lanes in sorted(functions):
        if function not in writers:
            texts += _merging(function, lanes)
            continue
        to = Writer(lanes, loses_nan)
        result = writers[function](to, "%x")
        head = f"define {to.float} @{name_of(function, lanes)}({to.float} %x) alwaysinline nounwind {{"
        texts += [head, *to.lines, f"  ret {to.float} {result}", "}"]
    for lanes in sorted({lanes for _, lanes in functions}):
        to = Writer(lanes, loses_nan)
        texts += [f"declare {to.float} @{to.name_of(own)}({', '.join([to.float] * count)})"
                  for own, count in _OWN.items()]  # fmt: skip
    return "\n".join(texts) + "\n"
