"""ONNX's equations of LSTM, GRU and RNN, a step and a row at a time, in float64; and random nodes."""

import numpy as np


def activation(f, x):
    a, b = f.alpha, f.beta
    return {
        "Affine": lambda: a * x + b, "Elu": lambda: np.where(x < 0, a * np.expm1(np.minimum(x, 0)), x),
        "HardSigmoid": lambda: np.clip(a * x + b, 0, 1), "LeakyRelu": lambda: np.where(x < 0, a * x, x),
        "Relu": lambda: np.maximum(x, 0), "ScaledTanh": lambda: a * np.tanh(b * x),
        "Sigmoid": lambda: 1 / (1 + np.exp(-x)), "Softplus": lambda: np.logaddexp(0, x),
        "Softsign": lambda: x / (1 + np.abs(x)), "Tanh": lambda: np.tanh(x),
        "ThresholdedRelu": lambda: np.where(x > a, x, 0),
    }[f.name]()  # fmt: skip


def reference(layer, x, weights, h0=None, c0=None, lengths=None):
    """Y [steps, direction, row, unit], Y_h and Y_c of a layer."""
    cell, hidden = layer.cell, layer.hidden
    y = np.zeros((layer.steps, layer.directions, layer.batch, hidden))
    last = [np.zeros((layer.directions, layer.batch, hidden)) for _ in range(2)]
    for d, backward in enumerate(layer.backward):
        w, r = (np.split(weights[name][d].astype("float64"), len(cell.gates)) for name in "WR")
        b = np.zeros(2 * len(cell.gates) * hidden) if weights["B"] is None else weights["B"][d].astype("float64")
        wb, rb = (np.split(half, len(cell.gates)) for half in np.split(b, 2))
        p = np.split(weights["P"][d].astype("float64"), 3) if cell.peepholes else [0.0] * 3

        def act(which, value, d=d):
            bounded = np.clip(value, -cell.clip, cell.clip) if cell.clip else value
            return activation(cell.activations[d][which], bounded)

        for n in range(layer.batch):
            h = np.zeros(hidden) if h0 is None else h0[d, n].astype("float64")
            c = np.zeros(hidden) if c0 is None else c0[d, n].astype("float64")
            steps = layer.steps if lengths is None else lengths[n]
            for t in reversed(range(steps)) if backward else range(steps):
                given = [w[g] @ x[t, n] + wb[g] for g in range(len(w))]
                if cell.kind == "RNN":
                    h = act(0, given[0] + r[0] @ h + rb[0])
                elif cell.kind == "GRU":
                    z, reset = (act(0, given[g] + r[g] @ h + rb[g]) for g in (0, 1))
                    inner = reset * (r[2] @ h + rb[2]) if cell.linear_before_reset else r[2] @ (reset * h) + rb[2]
                    h = (1 - z) * act(1, given[2] + inner) + z * h
                else:
                    i, o, f, new = (given[g] + r[g] @ h + rb[g] for g in range(4))
                    i = act(0, i + p[0] * c)
                    forget = 1 - i if cell.input_forget else act(0, f + p[2] * c)
                    c = forget * c + i * act(1, new)
                    h = act(0, o + p[1] * c) * activation(cell.activations[d][2], c)
                y[t, d, n] = h
            last[0][d, n], last[1][d, n] = h, c
    return [y, *last] if cell.kind == "LSTM" else [y, last[0]]


def random_weights(layer, features, seed=0, biases=True):
    rng, gates, d, hidden = np.random.default_rng(seed), len(layer.cell.gates), layer.directions, layer.hidden
    w = rng.normal(0, features**-0.5, (d, gates * hidden, features))
    r, b = rng.normal(0, hidden**-0.5, (d, gates * hidden, hidden)), rng.normal(0, 0.3, (d, 2 * gates * hidden))
    made = {"W": w, "R": r, "B": b if biases else None}
    made["P"] = rng.normal(0, 0.5, (d, 3 * hidden)) if layer.cell.peepholes else None
    return {name: None if array is None else array.astype("float32") for name, array in made.items()}
