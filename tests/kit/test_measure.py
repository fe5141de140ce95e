"""How times are taken: what keeps the card busy before a sample lasts long enough, however fast its clock is."""

from __future__ import annotations

import zipfile

import pytest

from roller_bench.kit.measure import Bench
from roller_bench.kit.support import ARCHIVE

from ..device.made_up_card import facts


class WakingCard:
    """An H200 that idled: the first launches find its clock at 345 MHz. `spent`: microseconds of each `hold`."""

    LOW, HIGH, LAUNCHES = 345.0, 1980.0, 3

    def __init__(self):
        self.facts, self.spent = facts(l2_bytes=1 << 16), []

    def alloc(self, size):
        return 1 << 20

    def load(self, image):
        return image

    def launch(self, module, kernel, grid, block, args, dynamic_shared=0):
        assert kernel == "hold"
        self.spent.append(args[0].value / (self.LOW if len(self.spent) < self.LAUNCHES else self.HIGH))

    def start(self):
        pass

    def stop(self):
        return self.spent[-1]


@pytest.mark.parametrize("us", [1.0, 80.0, 50e3])
def test_a_card_whose_clock_was_low_is_held_long_enough(tmp_path, us):
    (tmp_path / "sm_90").mkdir()
    with zipfile.ZipFile(tmp_path / "sm_90" / ARCHIVE, "w") as archive:
        archive.writestr("float32.cubin", "an image")
    card = WakingCard()
    bench = Bench(card, tmp_path, "sm_90")
    for _ in range(8):
        bench.hold(us)
    assert min(card.spent[-8:]) >= us and max(card.spent[-2:]) < 1.1 * us + 1
