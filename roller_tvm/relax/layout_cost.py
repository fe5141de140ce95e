"""Predicted seconds of convolutions in each arrangement, and of the transformations between arrangements."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..codegen.kernel_cache import kept_answer, kernel_cache
from ..device import DeviceSpec
from ..forks import shared
from ..roller.features import NO_FEATURES, Features
from .arrangement import Arrangement, Convolution, Shape

#: How much faster Winograd's algorithm, which is less exact, must be predicted: the model's error. On an AVX-512 server
#: of Intel it takes, with transforms an axis at a time, 0.98 to 1.12 of its predicted time (eight sizes), direct
#: convolutions 0.94 to 1.06.
GAIN = 1.15


class LayoutCosts:
    """Asks the micro-performance model, once for each operator.

    Parameters
    ----------
    device : DeviceSpec
    winograd : bool
        Whether Winograd's algorithm may compute a convolution.
    """

    def __init__(self, device: DeviceSpec, winograd: bool = True) -> None:
        self.device, self.winograd = device, winograd
        self._known: dict[Any, float] = {}

    def ask(self, questions: Iterable[tuple[Convolution, Arrangement | None]]) -> None:
        """Ask all that `convolution` will, on all cores."""
        every = [form for q in dict.fromkeys(questions) for form in self._forms(*q)]
        asked = [(*form, 0, 0) for form in every]
        asked += [
            (*form, tile, strip) for form in every for tile in self._tiles(*form) for strip in form[0].strips(tile)
        ]
        shared(lambda question: self._by(*question), asked, kernel_cache())

    def convolution(self, conv: Convolution, arrangement: Arrangement | None) -> float:
        """Seconds of the best plan, by the algorithm that `tile` chooses; infinite where there is none."""
        if tile := self.tile(conv, arrangement):
            return self._squares(conv, arrangement, tile)
        return self._direct(conv, arrangement)

    @staticmethod
    def _forms(conv: Convolution, arrangement: Arrangement | None) -> list[tuple[Convolution, Arrangement | None]]:
        """Return the convolution, and as `MergeAxes` computes it."""
        merged = conv.merged if arrangement is None else None
        return [(one, arrangement) for one in (conv, merged) if one is not None]

    def tile(self, conv: Convolution, arrangement: Arrangement | None) -> int:
        """Tile of Winograd's algorithm where that is predicted to be faster by `GAIN`; else 0: computed directly."""
        best = min(self._tiles(conv, arrangement), key=lambda tile: self._squares(conv, arrangement, tile), default=0)
        return best if best and self._squares(conv, arrangement, best) * GAIN < self._direct(conv, arrangement) else 0

    def strip(self, conv: Convolution, arrangement: Arrangement | None, tile: int) -> int:
        """Rows of tiles of a strip that cores take through all stages; 0: stage by stage."""
        return min(conv.strips(tile), key=lambda strip: self._by(conv, arrangement, tile, strip))

    def _squares(self, conv: Convolution, arrangement: Arrangement | None, tile: int) -> float:
        """Seconds by Winograd's algorithm."""
        return self._by(conv, arrangement, tile, self.strip(conv, arrangement, tile))

    def _direct(self, conv: Convolution, arrangement: Arrangement | None) -> float:
        """Seconds without Winograd's algorithm, by vectors or on the matrix unit."""
        vectors = min(self._by(*form, 0) for form in self._forms(conv, arrangement))
        if arrangement is None or not arrangement.holds(conv.data[1]):
            return vectors
        return min(vectors, self._on_unit(conv))

    def _on_unit(self, conv: Convolution) -> float:
        """Seconds on the matrix unit; infinite where it has no such form."""
        if conv not in self._known:
            tiles = conv.on_matrix_unit(self.device)
            self._known[conv] = float("inf") if tiles is None else tiles.seconds
        return self._known[conv]

    def _tiles(self, conv: Convolution, arrangement: Arrangement | None) -> Sequence[int]:
        """Return the tiles of Winograd's algorithm that may be taken."""
        return conv.tiles if self.winograd and arrangement is not None and arrangement.holds(conv.data[1]) else ()

    def _by(self, conv: Convolution, arrangement: Arrangement | None, tile: int, strip: int = 0) -> float:
        if tile:  # its transforms move whole vectors of channels: blocks of them take as long
            arrangement = Arrangement()

        def seconds() -> float:
            inputs, output = conv.compute(arrangement, tile, strip)
            return self._seconds([*inputs, output], inputs[1:], Features(slices=strip > 0))

        return self._asked((conv, arrangement, tile, strip), seconds)

    def transformation(self, shape: Shape, arrangement: Arrangement) -> float:
        """Seconds of arranging a tensor (or of the way back, which moves as much)."""
        from tvm import te

        def seconds() -> float:
            data, x = te.placeholder(shape, "float32", name="data"), arrangement.block
            if x:
                out = te.compute(
                    arrangement.shape(shape), lambda n, c, h, w, v: data[n, c * x + v, h, w], name="arranged"
                )
            else:
                out = te.compute(arrangement.shape(shape), lambda n, h, w, c: data[n, c, h, w], name="arranged")
            return self._seconds([data, out])

        return self._asked((shape, arrangement), seconds)

    def _asked(self, question: tuple[Any, ...], seconds: Callable[[], float]) -> float:
        """Return the answer to a question, of this build or an earlier one, else what the function says."""
        if question not in self._known:
            words = *question, self.device.name, self.device.digest()
            self._known[question] = float(kept_answer(seconds, "layout", *words))
        return self._known[question]

    def _seconds(
        self, tensors: list[Any], constants: list[Any] | None = None, features: Features = NO_FEATURES
    ) -> float:  # fmt: skip
        from ..errors import UnsupportedOperator
        from ..planner.plan_cache import plan_cache
        from ..te.read import read_te

        try:
            reading = read_te(tensors, constants=constants or ())
            return plan_cache().construct(reading.expression, self.device, 1, features).best.seconds
        except UnsupportedOperator:
            return float("inf")
