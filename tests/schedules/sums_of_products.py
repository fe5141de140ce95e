"""Operators whose values are sums of products of several inputs, or chosen by data: which of them meet is asked."""


def made(shapes, value, extents):
    """Return the inputs of some shapes, and the tensor of a value of theirs."""
    from tvm import te

    given = [te.placeholder(shape, name=f"x{n}") for n, shape in enumerate(shapes)]
    return [*given, te.compute(extents, value(*given), name="z")]


def pairs():
    return made([(48,)] * 4, lambda x, y, u, v: lambda i: x[i] * u[i] + y[i] * v[i], (48,))


def rotated():
    """Positions of a language model: halves of a row turned by angles."""
    return made([(6, 16), (16,), (16,)], lambda x, c, s: lambda i, j: x[i, j] * c[j] + x[i, (j + 8) % 16] * s[j],
                (6, 16))  # fmt: skip


def complex_product():
    from tvm import te

    k = te.reduce_axis((0, 6), name="k")

    def value(x, y, u, v):
        return lambda i, j: te.sum(x[i, k] * u[k, j] - y[i, k] * v[k, j], axis=k)

    return made([(4, 6), (4, 6), (6, 8), (6, 8)], value, (4, 8))


def three_factors():
    from tvm import te

    k = te.reduce_axis((0, 8), name="k")
    return made([(4, 8), (8,), (8, 6)], lambda x, s, w: lambda i, j: te.sum(x[i, k] * s[k] * w[k, j], axis=k), (4, 6))


def scaled_and_shifted():
    return made([(4, 12), (12,), (4,)], lambda x, g, b: lambda i, j: x[i, j] * g[j] + b[i] * g[j], (4, 12))


def filtered():
    """Three neighbours, each by a constant."""
    from tvm import tirx

    a, b, c = (tirx.const(v, "float32") for v in (0.25, 0.5, 0.125))
    return made([(50,)], lambda x: lambda i: x[i] * a + x[i + 1] * b + x[i + 2] * c, (48,))


def chosen_by_data():
    """Values that data choose, by comparing them with a number."""
    from tvm import tirx

    limit = tirx.const(0.5, "float32")
    return made([(48,)] * 3, lambda x, y, z: lambda i: tirx.Select(x[i] < limit, y[i], x[i] * z[i]), (48,))


def quotients_below_0():
    """Elements at places that a quotient of numbers below 0 tells."""
    from tvm import te

    return made([(32,), (48,)], lambda x, y: lambda i: x[te.floordiv(i - 5, 2) + 3] * y[i], (48,))


PRODUCTS = {
    f"te {f.__name__}": f
    for f in (pairs, rotated, complex_product, three_factors, scaled_and_shifted, filtered, chosen_by_data,
              quotients_below_0)
}  # fmt: skip
