"""Shared parts of the profiles of CPUs and cards: rates as JSON, and a device's numbers told with their sources."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeVar

from roller_tvm.device.rates import Rates, Request, best
from roller_tvm.errors import ProfileError

V = TypeVar("V")
P = TypeVar("P", bound="Profile")

#: Type of a profile's field, as written -> function that restores its value from JSON.
_RESTORE: dict[str, Callable[[Any], Any]] = {
    "int": int,
    "float": float,
    "dict[str, float]": lambda table: {k: float(v) for k, v in table.items()},
    "dict[int, float]": lambda table: {int(k): float(v) for k, v in table.items()},
    "dict[str, tuple[float, float]]": lambda table: {k: (float(v[0]), float(v[1])) for k, v in table.items()},
}


@dataclass(frozen=True)
class Profile:
    """Base of a device's measured rates: numbers, and tables of numbers."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls: type[P], data: Mapping[str, Any]) -> P:
        """Return the profile that `to_dict` wrote, after JSON; raises ValueError for anything else."""
        try:
            return cls(**{f.name: _RESTORE[str(f.type)](data[f.name]) for f in fields(cls)})
        except (KeyError, TypeError, AttributeError, IndexError) as err:
            raise ValueError(f"not a profile: {err!r}") from err


class Sources(dict[str, str]):
    """Source of each number of a device by its key in spec files, told together with the number.

    Examples
    --------
    >>> sources = Sources()
    >>> sources.told("clock", 1.5, "measured"), sources
    (1.5, {'clock': 'measured'})
    """

    def told(self, key: str, value: V, source: str) -> V:
        """Note the source of a number; return the number."""
        self[key] = source
        return value


def spread_words(spread: Mapping[str, float], key: str) -> str:
    """Return how far a measurement's median lies below its best, as text; '' if that is unknown.

    Examples
    --------
    >>> spread_words({"l1": 0.05}, "l1")
    ', median 5% below the best'
    """
    return f", median {spread[key]:.0%} below the best" if key in spread else ""


def inverse(rates: Rates, request: Request) -> float:
    """Return the nanoseconds of one step of a request at its best; 0.0 if there is no repeat."""
    rate = best(rates, request)
    return 1 / rate if rate else 0.0


def refusal(problems: list[str], where: str, remedy: str) -> ProfileError:
    """Return the error of a profile that cannot be believed, with the reasons."""
    return ProfileError(f"measured numbers that cannot be believed: {'; '.join(problems)}", where, remedy)


def run_program(
    command: Sequence[str], text: str, limit_s: float, where: str, slow: str, broken: str,
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:  # fmt: skip
    """Run a program of micro-benchmarks on `text`; `slow` and `broken` are remedies if it hangs or does not start."""
    try:
        return subprocess.run(
            list(command), input=text, capture_output=True, text=True, timeout=limit_s, check=False, env=environment
        )
    except subprocess.TimeoutExpired as err:
        raise ProfileError(f"the benchmarks took more than {limit_s:.0f} s", where, slow) from err
    except OSError as err:
        raise ProfileError(f"the benchmarks did not run: {err}", where, broken) from err
