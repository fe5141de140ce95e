"""Proofs about scheduled functions by integer sets (isl): bounds, writes, first values, races, barriers, dataflow.

Needs islpy (``pip install 'roller-tvm[proof]'``), and imports it when a proof is asked for.
"""

from .answers import PROVEN, REFUTED, UNDECIDED, Finding, Proof
from .prove import prove_lowered
from .sets import library
from .verdict import verdict

__all__ = ["PROVEN", "REFUTED", "UNDECIDED", "Finding", "Proof", "library", "prove_lowered", "verdict"]
