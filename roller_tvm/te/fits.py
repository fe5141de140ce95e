"""Coefficients for computing exp, erf and tanh of float32 with arithmetic alone; both lines use them."""

from __future__ import annotations

#: (exp(r) - 1 - r) / r^2 for r from -ln 2 / 2, where it serves most, to ln 2 (numbers whose power of 2 would be 128),
#: ascending. Fitted for this project (reweighted least squares against 50 digits): exp within 9e-10 before rounding.
EXP = (
    0.5, 0.1666669398546219, 0.04166679456830025, 0.008327876217663288, 0.001390276593156159, 0.00022470729891210794,
)  # fmt: skip
#: (-ln(1 - erf t) - t) / t for t from 0 to ERF_END, from where erf rounds to 1 in float32. Fitted likewise (against
#: float64, errors weighted as they show in erf): 4e-9 of erf.
ERF = (
    0.12837916612625122, 0.6366193890571594, 0.10277783125638962, -0.019153064116835594, -0.00016039650654420257,
    0.0016670278273522854, -0.0006328370654955506, 0.00011764132068492472, -9.256270459445659e-06,
)  # fmt: skip
ERF_END = 4.0
#: (tanh t - t) / t^3 as a polynomial of t^2, up to t = TANH_NEAR; fitted likewise: 4e-9 of tanh.
TANH = (-0.3333328068256378, 0.13331441581249237, -0.05373970419168472, 0.020639052614569664, -0.0057049463503062725)
TANH_NEAR = 0.625
#: Faster: f(x) = x P(x^2) / Q(x^2), P and Q ascending, and the x from which f rounds to 1 in float32. Fitted against
#: float64; before rounding 5e-8 and 4e-9; 5.3 and 4.3 units in the last place.
FAST_ERF = (
    (1.1283791089809179, 0.19992535114063034, 0.05057344164669627, 0.0037016461807441916, 0.00014185141690603156,
     -1.9578403058447647e-06, 1.992424510184105e-08),
    (1.0, 0.5105108841505295, 0.11499875855707585, 0.014353277134533422, 0.000956048203854332),
    3.92,
)  # fmt: skip
FAST_TANH = (
    (1.0, 0.1310476145446631, 0.003127251088941968, 1.1402229753470477e-05, -2.126492751019186e-08,
     5.802538005062684e-11, -9.91366872763993e-14),
    (1.0, 0.4643809131061595, 0.024587612525081567, 0.0002580297844140312),
    8.5,
)  # fmt: skip
LOG2_E = 1.4426950408889634
#: ln 2 in two parts, so that n * first is exact for every exponent n.
LN2 = (0.693145751953125, 1.428606765330187e-06)
#: exp of less is less than the smallest normal number of float32.
SMALLEST = -87.33654
#: exp of this and less is taken for 0: its power of 2 is -127, one below the least.
NOTHING = -88.0
EXPONENT, BIAS, MANTISSA = 127, 127, 23
#: Added to a small float32, it leaves the nearest whole number, in the last bits.
ROUNDING = 1.5 * 2.0**23
