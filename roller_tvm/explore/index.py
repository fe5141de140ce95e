"""The profile index: times of all runs by configuration and place; as JSON, another process goes on with it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any

from ..errors import RecordError
from .tree import Configuration

#: Samples of a configuration at one place that are kept: older ones tell of another state of the machine.
KEPT = 256


class ProfileIndex:
    """Seconds by epoch, configuration and member.

    Examples
    --------
    >>> index = ProfileIndex()
    >>> index.add("conv2d", (("kernel", "a"),), "block1", 2e-6)
    >>> index.typical("conv2d", (("kernel", "a"),))
    2e-06
    >>> ProfileIndex.from_json(index.to_json()).typical("conv2d", (("kernel", "a"),))
    2e-06
    """

    def __init__(self) -> None:
        self._samples: dict[tuple[str, Configuration], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        self._typical: dict[tuple[str, Configuration], float] = {}  # asked for over and over in each run

    def add(self, epoch: str, chosen: Configuration, member: str, seconds: float) -> None:
        """Add a sample."""
        self._typical.pop((epoch, chosen), None)
        samples = self._samples[epoch, chosen][member]
        samples.append(seconds)
        if len(samples) > KEPT:
            del samples[0]

    def forget(self, epoch: str) -> None:
        """Drop all samples of an epoch."""
        for key in [key for key in self._samples if key[0] == epoch]:
            del self._samples[key]
            self._typical.pop(key, None)

    def __iter__(self) -> Iterator[tuple[str, Configuration]]:
        """Yield the epochs and configurations that have samples."""
        return iter(self._samples)

    def of(self, epoch: str, chosen: Configuration) -> Mapping[str, list[float]]:
        """Return the samples by member."""
        return self._samples.get((epoch, chosen), {})

    def count(self, epoch: str, chosen: Configuration) -> int:
        """Return the number of samples."""
        return sum(map(len, self.of(epoch, chosen).values()))

    def typical(self, epoch: str, chosen: Configuration) -> float:
        """Return the median; nan without a sample."""
        found = self._typical.get((epoch, chosen))
        if found is None:
            samples = [s for own in self.of(epoch, chosen).values() for s in own]
            found = self._typical[epoch, chosen] = median(samples) if samples else float("nan")
        return found

    def pairs(self, epoch: str, one: Configuration, other: Configuration) -> Iterator[tuple[float, float]]:
        """Yield samples of two configurations taken at the same member, one after the other."""
        others = self.of(epoch, other)
        for member, samples in self.of(epoch, one).items():
            yield from zip(samples, others.get(member, ()), strict=False)

    def to_json(self) -> list[Any]:
        """Return the samples as JSON values."""
        return [[epoch, list(map(list, chosen)), dict(own)] for (epoch, chosen), own in self._samples.items()]

    @classmethod
    def from_json(cls, data: Any) -> ProfileIndex:
        """Return the index that `to_json` took apart; raise ``RecordError`` if it is none."""
        index = cls()
        try:
            for epoch, chosen, own in data:
                key = tuple((str(name), str(option)) for name, option in chosen)
                for member, samples in own.items():
                    index._samples[str(epoch), key][str(member)] = [float(s) for s in samples][-KEPT:]
        except (TypeError, ValueError, AttributeError) as error:
            raise RecordError("is no profile index", "exploration", "delete it; exploring starts anew") from error
        return index
