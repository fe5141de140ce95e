"""A tensor expression computed by numpy: an interpreter of accesses, guards and reductions.

What a stage does with the values it reads is not part of an expression; here it is a product where
something is reduced, else a weighted sum: enough to tell whether two forms read the same elements.
"""

from math import prod

import numpy as np

REDUCE = {"sum": np.sum, "max": np.max, "min": np.min, "prod": np.prod}


def values_of(stage, access, array):
    """What an access reads at every iteration point; 0 outside of the tensor, which needs a guard."""
    rank = len(stage.axes)
    point = {
        a.name: np.arange(a.extent).reshape([-1 if i == at else 1 for i in range(rank)])
        for at, a in enumerate(stage.axes)
    }
    where, inside = [], np.ones([1] * rank, bool)
    for index, extent in zip(access.indices, array.shape, strict=True):
        assert not index.opaque
        at = np.asarray(index.const + sum((c * point[n] for n, c in index.terms), np.zeros([1] * rank, int)))
        inside = inside & (at >= 0) & (at < extent)
        where.append(np.clip(at, 0, extent - 1))
    assert access.guarded or inside.all(), f"{access} leaves the tensor"
    return np.where(inside, array[tuple(where)] if where else array, 0.0)


def evaluate(expression, arrays):
    """Every tensor by name."""
    known = dict(arrays)
    for stage in expression.stages:
        full = tuple(a.extent for a in stage.axes)
        reads = [values_of(stage, a, known[a.tensor]) for a in stage.reads]
        if stage.reduce:
            value = np.broadcast_to(prod(reads), full)
            value = REDUCE[stage.combiner](value, axis=tuple(range(len(stage.spatial), len(full))))
        else:
            value = np.broadcast_to(sum((n + 1) * r for n, r in enumerate(reads)), full)
            if stage.functions:
                value = np.sin(value)
        known[stage.name] = np.asarray(value).reshape(stage.shape)
    return known


def random_arrays(expression, seed=0):
    rng = np.random.default_rng(seed)
    return {t.name: rng.standard_normal(t.shape) for t in expression.inputs}
