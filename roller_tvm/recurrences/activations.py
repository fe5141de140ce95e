"""Activations of recurrent cells as expressions of TVM, on vectors of float32."""

from __future__ import annotations

from typing import Any

from .cell import Activation


def clipped(tir: Any, x: Any, bound: float, lanes: int) -> Any:
    """Return `x` within [-bound, bound]; as it is where the bound is 0."""
    if not bound:
        return x
    dtype = f"float32x{lanes}"
    return tir.max(tir.min(x, tir.const(bound, dtype)), tir.const(-bound, dtype))


def activated(tir: Any, function: Activation, x: Any, lanes: int) -> Any:
    """Return an activation of a vector."""
    dtype = f"float32x{lanes}"

    def like(value: float) -> Any:
        return tir.const(value, dtype)

    zero, one, alpha, beta = like(0.0), like(1.0), like(function.alpha), like(function.beta)
    name = function.name
    if name == "Sigmoid":
        return tir.sigmoid(x)
    if name == "Tanh":
        return tir.tanh(x)
    if name == "Relu":
        return tir.max(x, zero)
    if name == "Affine":
        return alpha * x + beta
    if name == "LeakyRelu":
        return tir.Select(x < zero, alpha * x, x)
    if name == "ThresholdedRelu":
        return tir.Select(x > alpha, x, zero)
    if name == "ScaledTanh":
        return alpha * tir.tanh(beta * x)
    if name == "HardSigmoid":
        return tir.max(tir.min(alpha * x + beta, one), zero)
    if name == "Elu":
        return tir.Select(x < zero, alpha * (tir.exp(tir.min(x, zero)) - one), x)
    if name == "Softsign":
        return x / (one + tir.abs(x))
    # Softplus: of large x, x itself
    return tir.max(x, zero) + tir.log(one + tir.exp(zero - tir.abs(x)))
