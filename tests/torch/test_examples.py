"""The examples in the docstrings that need torch run."""

import pytest

torch = pytest.importorskip("torch", reason="needs torch: make test-torch")

from tests.docs.test_examples import OF_TORCH, run  # noqa: E402

pytestmark = pytest.mark.relax


class Summed(torch.nn.Module):
    """Sums as models of transformers do; with a constant of its own to fold."""

    def forward(self, x):
        return torch.cumsum(x > 0, 1), x + torch.arange(4).sin()


@pytest.mark.parametrize("name", sorted(OF_TORCH))
def test_examples(name):
    run(name, {"torch": torch, "module": Summed(), "x": torch.ones(2, 4)})
