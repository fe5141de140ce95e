"""Inputs of a model: tensors of other devices pass as they are, whatever their library calls its types."""

import pytest

from roller_tvm.errors import BadInput
from roller_tvm.models.arguments import checked

WANTED = {"x": (("n", 2), "float32")}


class Elsewhere:
    """A tensor of a card, whose type prints as torch's does."""

    shape = (3, 2)

    def __init__(self, dtype):
        self.dtype = dtype

    def __dlpack_device__(self):
        return 2, 0


@pytest.mark.parametrize("dtype", ["torch.float32", "float32"])
def test_tensors_of_a_card_pass(dtype):
    given = Elsewhere(dtype)
    assert checked({"x": given}, WANTED, "model")["x"] is given


def test_another_type_is_refused():
    with pytest.raises(BadInput, match="is torch.float16, the model takes float32"):
        checked({"x": Elsewhere("torch.float16")}, WANTED, "model")
