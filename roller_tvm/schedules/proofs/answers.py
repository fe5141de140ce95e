"""Answers of a proof: proven, refuted with a witness, or undecided with the reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

PROVEN, REFUTED, UNDECIDED = "proven", "refuted", "undecided"


@dataclass(frozen=True)
class Finding:
    """The answer to one question about a kernel.

    Parameters
    ----------
    rule : str
        'bounds', 'written', 'initialised', 'races', 'barriers', 'values' or 'memory'.
    answer : {'proven', 'refuted', 'undecided'}
    why : str
        The witness, or what keeps the question open; '' for what is proven.

    Examples
    --------
    >>> print(Finding("bounds", "refuted", "A[8] of 8, at i=7"))
    bounds: refuted: A[8] of 8, at i=7
    """

    rule: str
    answer: str
    why: str = ""

    def __str__(self) -> str:
        return f"{self.rule}: {self.answer}{f': {self.why}' if self.why else ''}"


@dataclass(frozen=True)
class Proof:
    """Answers to all questions about a kernel, and the seconds of CPU time that they took.

    Examples
    --------
    >>> proof = Proof("matmul", (Finding("bounds", "proven"), Finding("races", "undecided", "scatter")), 0.01)
    >>> proof.answer
    'undecided'
    >>> print(proof)
    matmul: undecided (10 ms)
      proven: bounds
      races: undecided: scatter
    """

    kernel: str
    findings: tuple[Finding, ...]
    seconds: float
    notes: tuple[str, ...] = ()

    @property
    def answer(self) -> str:
        """Refuted if one finding is, else undecided if one is, else proven."""
        answers = {finding.answer for finding in self.findings}
        return REFUTED if REFUTED in answers else UNDECIDED if UNDECIDED in answers else PROVEN

    @property
    def open(self) -> tuple[Finding, ...]:
        """All findings but the proven ones."""
        return tuple(finding for finding in self.findings if finding.answer != PROVEN)

    def __str__(self) -> str:
        proven = ", ".join(f.rule for f in self.findings if f.answer == PROVEN)
        lines = [f"{self.kernel}: {self.answer} ({self.seconds * 1e3:.0f} ms)"]
        lines += [f"  proven: {proven}"] if proven else []
        return "\n".join([*lines, *(f"  {f}" for f in self.open), *(f"  note: {note}" for note in self.notes)])

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        rows = [{"rule": f.rule, "answer": f.answer, "why": f.why} for f in self.findings]
        return {"kernel": self.kernel, "answer": self.answer, "findings": rows, "seconds": self.seconds,
                "notes": list(self.notes)}  # fmt: skip
