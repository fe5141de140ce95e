"""Numbers as people read them."""

from __future__ import annotations

from collections.abc import Sequence


def seconds(value: float) -> str:
    """Return a time, given in seconds, in s, ms or us.

    Examples
    --------
    >>> seconds(1.99e-05), seconds(0.0123), seconds(2e-8)
    ('19.90 us', '12.30 ms', '0.02 us')
    """
    if value >= 1.0:
        return f"{value:.2f} s"
    return f"{value * 1e3:.2f} ms" if value >= 1e-3 else f"{value * 1e6:.2f} us"


def amount(value: float, unit: str) -> str:
    """Return a value with its unit and a decimal prefix, in four digits.

    Examples
    --------
    >>> amount(231211008, "FLOP"), amount(4.8e12, "B/s"), amount(12, "FLOP")
    ('231.2 MFLOP', '4.8 TB/s', '12 FLOP')
    """
    for factor, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.4g} {prefix}{unit}"
    return f"{value:.4g} {unit}"


def capacity(value: float) -> str:
    """Return bytes with a binary prefix (KiB, MiB, GiB).

    Examples
    --------
    >>> capacity(9728), capacity(48 * 1024), capacity(512)
    ('9.5 KiB', '48 KiB', '512 B')
    """
    for factor, unit in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if value >= factor:
            return f"{value / factor:.4g} {unit}"
    return f"{value:.0f} B"


def times(value: float) -> str:
    """Return a factor in three digits.

    Examples
    --------
    >>> times(1.304), times(12.7), times(140.2)
    ('1.30x', '12.7x', '140x')
    """
    return f"{value:.2f}x" if value < 10 else f"{value:.1f}x" if value < 100 else f"{value:.0f}x"


def share(value: float) -> str:
    """Return a share of 1 in percent.

    Examples
    --------
    >>> share(0.848), share(0.0042)
    ('85%', '0.4%')
    """
    return f"{value:.0%}" if value >= 0.0995 else f"{value:.1%}"


def count(number: int, noun: str) -> str:
    """Return a number and its noun, in the plural unless it is 1.

    Examples
    --------
    >>> count(1, "wave"), count(3, "wave")
    ('1 wave', '3 waves')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def table(rows: Sequence[Sequence[str]], left: int = 1, indent: str = "    ") -> list[str]:
    """Return the rows as aligned lines: the first `left` columns left-aligned, the others right-aligned.

    Examples
    --------
    >>> table([["level", "n"], ["shared", "16"]], indent="")
    ['level    n', 'shared  16']
    """
    widths = [
        max((len(row[i]) for row in rows if i < len(row)), default=0) for i in range(max(map(len, rows)))
    ]
    lines = []
    for row in rows:
        cells = [
            c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=False))
        ]
        lines.append((indent + "  ".join(cells)).rstrip())
    return lines
