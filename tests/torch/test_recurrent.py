"""torch's LSTM, GRU and RNN: a loop over the steps, whatever their number."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tvm")

import roller_tvm  # noqa: E402
from roller_tvm.relax.recurrent_torch import kept  # noqa: E402


class Classifier(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(50, 24)
        self.layers = torch.nn.LSTM(24, 32, batch_first=True, num_layers=2, dropout=0.5)
        self.last = torch.nn.Linear(32, 5)

    def forward(self, x):
        return self.last(self.layers(self.words(x))[0][:, -1])


CASES = {
    "lstm": (torch.nn.LSTM(8, 16, num_layers=2, bidirectional=True, batch_first=True), [torch.randn(2, 5, 8)]),
    "gru": (torch.nn.GRU(8, 20, num_layers=2, bidirectional=True), [torch.randn(5, 2, 8), torch.randn(4, 2, 20)]),
    "rnn": (torch.nn.RNN(8, 20, nonlinearity="relu", bias=False), [torch.randn(5, 8)]),
    "classifier": (Classifier(), [torch.randint(0, 50, (3, 11))]),
}


@pytest.mark.parametrize("name", CASES)
def test_modules(name):
    module, inputs = CASES[name]
    with torch.no_grad():
        wanted = torch.utils._pytree.tree_leaves(module.eval()(*inputs))
    built = roller_tvm.compile(module, example_inputs=tuple(inputs))
    made = built.run(dict(zip(built.inputs, [x.numpy() for x in inputs], strict=True)))
    made = list(made.values()) if isinstance(made, dict) else [made] if hasattr(made, "shape") else list(made)
    for one, other in zip(made, wanted, strict=True):
        torch.testing.assert_close(torch.from_numpy(one), other, atol=2e-6, rtol=0)
    assert any(" units, " in plan.plan for plan in built.report().plans)


def test_a_projection_is_written_out():
    module = torch.nn.LSTM(8, 16, proj_size=6).eval()
    assert not kept(torch.export.export(module, (torch.randn(5, 2, 8),)))
