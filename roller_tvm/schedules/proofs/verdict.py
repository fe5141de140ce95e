"""Proofs of a model's kernels, in the words of its report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ...errors import RefutedKernel, RollerError, WrongAnswer, last_line
from .answers import PROVEN, REFUTED, UNDECIDED, Finding, Proof


def without_reference(proof: Proof) -> Proof:
    """Return the proof of a kernel that was never without its schedule: its values are undecided."""
    told = Finding("values", UNDECIDED, "a kernel that was never without its schedule")
    return replace(proof, findings=(*proof.findings, told))


def not_executed(why: str = "no other kernel computes the same") -> str:
    """Return what is told of the execution of such a kernel."""
    return f"not executed: {why}"


def verdict(proof: Proof, execute: Callable[[], Any]) -> str:
    """Return what a report says of a kernel; an undecided one is executed.

    Parameters
    ----------
    proof : Proof
    execute : function
        Runs the kernel beside its reference; returns words, or raises ``WrongAnswer``.

    Raises
    ------
    RefutedKernel, WrongAnswer
        The kernel is wrong, by proof or by execution.

    Examples
    --------
    >>> verdict(Proof("relu", (Finding("races", "proven"),), 0.01), lambda: "")
    'proven'
    >>> verdict(Proof("take", (Finding("bounds", "undecided", "lv5[i]"),), 0.01), lambda: "all elements agree")
    'undecided: bounds (lv5[i]); all elements agree'
    """
    if proof.answer == PROVEN:
        return PROVEN
    if proof.answer == REFUTED:
        wrong = next(finding for finding in proof.open if finding.answer == REFUTED)
        remedy = "report it; to build all the same, leave out the proof"
        raise RefutedKernel(f"{wrong.rule}: {wrong.why}", proof.kernel, remedy)
    try:
        done = str(execute())
    except WrongAnswer:
        raise
    except RollerError as error:
        done = f"not executed: {error.what}"
    except Exception as error:  # of TVM, whose errors have no common base
        done = f"not executed: {last_line(error)}"
    return f"{UNDECIDED}: {_reasons(proof.open)}; {done}"


def _reasons(findings: tuple[Finding, ...]) -> str:
    """Return what keeps questions open, each reason once."""
    rules: dict[str, list[str]] = {}
    for finding in findings:
        rules.setdefault(finding.why, []).append(finding.rule)
    return ", ".join(f"{' and '.join(names)} ({why})" for why, names in rules.items())
