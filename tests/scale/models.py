"""Models to share among nodes: a product, a block of a transformer, convolutions, a step of a decoder."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper

ADD, MATMUL, CONV, RELU, MUL = "Add", "MatMul", "Conv", "Relu", "Mul"


def model(nodes, inputs, outputs, weights):
    """Return a model of `nodes`; inputs and outputs are name -> shape (of float32), or (shape, type)."""

    def infos(tensors):
        whole = {n: t if isinstance(t[0], (list, tuple)) else (t, TensorProto.FLOAT) for n, t in tensors.items()}
        return [helper.make_tensor_value_info(n, kind, shape) for n, (shape, kind) in whole.items()]

    held = [numpy_helper.from_array(np.asarray(w), n) for n, w in weights.items()]
    graph = helper.make_graph(nodes, "model", infos(inputs), infos(outputs), held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


class Weights(dict):
    """Seeded weights by name."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def new(self, name, *shape):
        self[name] = (self.rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)
        return name


def node(kind, inputs, outputs, **attributes):
    return helper.make_node(kind, inputs.split(), outputs.split(), **attributes)


def product(m=16, k=64, n=32):
    weights = Weights(0)
    weights.new("w", k, n)
    return model([node(MATMUL, "x w", "y0"), node(RELU, "y0", "y")], {"x": [m, k]}, {"y": [m, n]}, weights)


def block(tokens=16, width=64, heads=4, inner=128):
    """A block of a transformer: attention and two dense layers."""
    w = Weights(1)
    for name in ("wq", "wk", "wv", "wo"):
        w.new(name, width, width)
    for name, size in (("g1", width), ("b1", width), ("bo", width), ("g2", width), ("b2", width), ("c1", inner),
                       ("c2", width)):  # fmt: skip
        w.new(name, size)
    w.new("w1", width, inner), w.new("w2", inner, width)
    w |= {"split": np.array([1, tokens, heads, width // heads]), "join": np.array([1, tokens, width]),
          "scale": np.float32((width // heads) ** -0.5)}  # fmt: skip
    nodes = [node("LayerNormalization", "x g1 b1", "n1")]
    for part in "qkv":
        nodes += [node(MATMUL, f"n1 w{part}", f"{part}0"), node("Reshape", f"{part}0 split", f"{part}1"),
                  node("Transpose", f"{part}1", part, perm=[0, 2, 3, 1] if part == "k" else [0, 2, 1, 3])]  # fmt: skip
    nodes += [
        node(MATMUL, "q k", "s0"), node(MUL, "s0 scale", "s1"), node("Softmax", "s1", "p", axis=-1),
        node(MATMUL, "p v", "a0"), node("Transpose", "a0", "a1", perm=[0, 2, 1, 3]), node("Reshape", "a1 join", "a2"),
        node(MATMUL, "a2 wo", "o0"), node(ADD, "o0 bo", "o1"), node(ADD, "x o1", "x1"),
        node("LayerNormalization", "x1 g2 b2", "n2"), node(MATMUL, "n2 w1", "h0"), node(ADD, "h0 c1", "h1"),
        node(RELU, "h1", "h2"), node(MATMUL, "h2 w2", "y0"), node(ADD, "y0 c2", "y1"), node(ADD, "x1 y1", "y"),
    ]  # fmt: skip
    return model(nodes, {"x": [1, tokens, width]}, {"y": [1, tokens, width]}, w)


def convolutions(size=16, channels=8):
    w = Weights(2)
    w.new("w1", channels, channels, 3, 3), w.new("w2", channels, channels, 3, 3), w.new("b1", channels)
    nodes = [node(CONV, "x w1 b1", "a", pads=[1] * 4), node(RELU, "a", "b"), node(CONV, "b w2", "c", pads=[1] * 4),
             node(RELU, "c", "y")]  # fmt: skip
    shape = [1, channels, size, size]
    return model(nodes, {"x": shape}, {"y": shape}, w)


#: States of `decoder`: input -> output.
STATES = {"token": "next_token", "at": "next_at", "keys": "new_keys", "values": "new_values"}


def decoder(width=32, heads=4, inner=64, words=24, length=8):
    """A step of a Llama-like decoder: a token in, its logits and the next token out; keys and values are kept."""
    w, deep = Weights(3), width // heads
    w.new("embedding", words, width)
    for name in ("wq", "wk", "wv", "wo"):
        w.new(name, width, width)
    w.new("up", width, inner), w.new("gate", width, inner), w.new("down", inner, width), w.new("head", width, words)
    angles = np.arange(length)[:, None] / 100 ** (np.arange(0, deep, 2) / deep)
    w |= {"cos": np.cos(np.tile(angles, 2)).astype(np.float32), "sin": np.sin(np.tile(angles, 2)).astype(np.float32),
          "split": np.array([1, heads, 1, deep]), "join": np.array([1, 1, width]), "eps": np.float32(1e-5),
          "places": np.arange(length).reshape(1, 1, length, 1), "before": np.arange(length).reshape(1, 1, 1, length),
          "one": np.array([1]), "minus": np.float32(-1e9), "scale": np.float32(deep**-0.5),
          "zero": np.array([0]), "half": np.array([deep // 2]), "deep": np.array([deep]), "last": np.array([-1]),
          "two": np.float32(2)}  # fmt: skip

    def norm(x, to):
        return [node("Pow", f"{x} two", f"{to}2"), node("ReduceMean", f"{to}2", f"{to}m", axes=[-1]),
                node(ADD, f"{to}m eps", f"{to}e"), node("Sqrt", f"{to}e", f"{to}s"),
                node("Div", f"{x} {to}s", to)]  # fmt: skip

    def rotated(x, to):
        return [node("Slice", f"{x} zero half last", f"{to}l"), node("Slice", f"{x} half deep last", f"{to}h"),
                node("Neg", f"{to}h", f"{to}n"), node("Concat", f"{to}n {to}l", f"{to}r", axis=-1),
                node(MUL, f"{x} c", f"{to}c"), node(MUL, f"{to}r s", f"{to}t"),
                node(ADD, f"{to}c {to}t", to)]  # fmt: skip

    nodes = [node("Gather", "embedding token", "x"), *norm("x", "n1"), node("Gather", "cos at", "c"),
             node("Gather", "sin at", "s")]  # fmt: skip
    for part in "qkv":
        nodes += [node(MATMUL, f"n1 w{part}", f"{part}0"), node("Reshape", f"{part}0 split", f"{part}1")]
    nodes += [*rotated("q1", "q"), *rotated("k1", "k"), node("Equal", "places at", "here")]
    nodes += [node("Where", "here k keys", "new_keys"), node("Where", "here v1 values", "new_values")]
    nodes += [
        node("Transpose", "new_keys", "keys_t", perm=[0, 1, 3, 2]), node(MATMUL, "q keys_t", "s0"),
        node(MUL, "s0 scale", "s1"),
        node("LessOrEqual", "before at", "seen"), node("Where", "seen s1 minus", "s2"),
        node("Softmax", "s2", "p", axis=-1), node(MATMUL, "p new_values", "a0"), node("Reshape", "a0 join", "a1"),
        node(MATMUL, "a1 wo", "o"), node(ADD, "x o", "x1"), *norm("x1", "n2"), node(MATMUL, "n2 up", "u"),
        node(MATMUL, "n2 gate", "g0"), node("Sigmoid", "g0", "g1"), node(MUL, "g0 g1", "g"), node(MUL, "g u", "gu"),
        node(MATMUL, "gu down", "d"), node(ADD, "x1 d", "x2"), *norm("x2", "n3"), node(MATMUL, "n3 head", "logits"),
        node("ArgMax", "logits", "next_token", axis=-1, keepdims=0), node(ADD, "at one", "next_at"),
    ]  # fmt: skip
    cache, whole = [1, heads, length, deep], TensorProto.INT64
    ins = {"token": ([1, 1], whole), "at": ([1], whole), "keys": cache, "values": cache}
    outs = {"logits": [1, 1, words], "next_token": ([1, 1], whole), "next_at": ([1], whole), "new_keys": cache,
            "new_values": cache}  # fmt: skip
    return model(nodes, ins, outs, w)


def inputs_of(made, seed=5):
    """Return inputs of a model: random numbers, whole ones 0."""
    rng, found = np.random.default_rng(seed), {}
    for tensor in made.graph.input:
        shape = [d.dim_value for d in tensor.type.tensor_type.shape.dim]
        whole = tensor.type.tensor_type.elem_type == TensorProto.INT64
        found[tensor.name] = np.zeros(shape, np.int64) if whole else rng.standard_normal(shape).astype(np.float32)
    return found
