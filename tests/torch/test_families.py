"""Torch in float64 judges answers where float32 is far off (`roller_bench.family_jobs`)."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: make test-torch")

from roller_bench.family_jobs import TOLERANCE, in_float64, largest, wide  # noqa: E402


class Cancelling(torch.nn.Module):
    """Loses the last digits of its input in float32."""

    def __init__(self):
        super().__init__()
        self.large = torch.nn.Parameter(torch.tensor(4096.0))

    def forward(self, x, at):
        return (x + self.large) - self.large, at + 1


def test_float64_tells_how_far_float32_is_off():
    module, at = Cancelling(), torch.tensor([2])
    samples = [(torch.tensor([0.1, 0.2]), at), (torch.tensor([0.15, 0.3]), at)]
    exact = in_float64(module, samples)
    assert [a[0].dtype for a in exact] == [np.float64] * 2 and exact[0][1].dtype == np.int64
    assert exact[0][0] == pytest.approx(samples[0][0].double().numpy(), abs=1e-12)
    answers = [[part.detach().numpy() for part in module(*sample)] for sample in samples]
    assert answers[0][0].dtype == np.float32, "the module stays as it was"
    assert TOLERANCE < largest(wide(answers), exact) < 4096 * 2.0**-24 / 0.1, "half a unit of 4096's last place"
