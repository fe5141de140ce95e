"""Modules of float16: products and convolutions are summed in float32, as torch sums them."""

import pytest

torch = pytest.importorskip("torch", reason="needs torch: make test-torch")

import roller_tvm  # noqa: E402
from roller_tvm.errors import UnsupportedOperator  # noqa: E402

pytestmark = pytest.mark.relax


class Net(torch.nn.Module):
    """A convolution, products with and without a bias, a product of two inputs."""

    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.first, self.second = torch.nn.Linear(64, 40), torch.nn.Linear(40, 16, bias=False)

    def forward(self, pixels, x):
        y = self.second(torch.nn.functional.gelu(self.first(x)))
        return self.conv(pixels), y @ y.transpose(-1, -2), y


def made(dtype):
    torch.manual_seed(0)
    return Net().eval().to(dtype), [torch.randn(1, 3, 8, 8).to(dtype), torch.randn(2, 5, 64).to(dtype)]


def test_float16():
    net, inputs = made(torch.float16)
    model = roller_tvm.compile(net, example_inputs=tuple(inputs))
    exact = net.float()(*(x.float() for x in inputs))
    for got, due in zip(model.run(dict(zip(model.inputs, inputs, strict=True))), exact, strict=True):
        assert got.dtype == "float16"
        assert abs(got.astype("float32") - due.detach().numpy()).max() < 4 * 2**-10 * float(due.abs().max())


def test_bfloat16_is_refused():
    net, inputs = made(torch.bfloat16)
    with pytest.raises(UnsupportedOperator, match="conv.weight is of bfloat16"):
        roller_tvm.compile(net, example_inputs=tuple(inputs))
