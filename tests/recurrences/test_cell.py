"""Values of recurrences: activations as attributes tell them, nodes that are refused, JSON."""

import numpy as np
import pytest

from roller_tvm.errors import UnsupportedOperator
from roller_tvm.recurrences.cell import Activation, Cell, Recurrence, activations
from roller_tvm.recurrences.onnx import of_node


def test_alphas_go_to_the_functions_that_take_one():
    names = ["HardSigmoid", "tanh", "LeakyRelu", "Sigmoid"]
    both = activations("GRU", 2, names, [0.3, 0.4], [0.6])
    assert both == ((Activation("HardSigmoid", 0.3, 0.6), Activation("Tanh")),
                    (Activation("LeakyRelu", 0.4), Activation("Sigmoid")))  # fmt: skip
    assert activations("RNN", 1, ["HardSigmoid"], [], [])[0][0] == Activation("HardSigmoid", 0.2, 0.5)


def test_a_layer_goes_through_json():
    cell = Cell("LSTM", activations("LSTM", 2, [], [], []), clip=0.5, peepholes=True)
    layer = Recurrence(cell, 7, 3, 20, (False, True), lengths=True)
    assert Recurrence.from_json(layer.to_json()) == layer


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"attributes": {"activations": [b"Gauss"]}}, "Gauss"),
        ({"attributes": {"activations": [b"Tanh", b"Tanh"]}}, "1 activations, not 2"),
        ({"attributes": {"direction": b"sideways"}}, "sideways"),
        ({"attributes": {"hidden_size": 9}}, "hidden size"),
        ({"shape": ("T", 1, 4)}, "open extents"),
        ({"shape": (0, 1, 4)}, "no elements"),
        ({"dtype": "float16"}, "float16"),
        ({"without": "R"}, "R is computed"),
    ],
)
def test_what_cannot_be_computed_is_refused_with_a_reason(change, told):
    weights = {"W": np.zeros((1, 8, 4), "float32"), "R": np.zeros((1, 8, 8), "float32"), "B": None, "P": None}
    weights = {name: array for name, array in weights.items() if name != change.get("without")}
    shape, dtype = change.get("shape", (5, 1, 4)), change.get("dtype", "float32")
    with pytest.raises(UnsupportedOperator, match=told) as error:
        of_node("RNN", change.get("attributes", {}), shape, dtype, weights, False)
    assert error.value.remedy
