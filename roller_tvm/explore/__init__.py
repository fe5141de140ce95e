"""Exploration while a model runs, after Astra (ASPLOS'19): many choices are tried within runs that count. No TVM."""

from .explorer import Explorer, Proposal, Row
from .index import ProfileIndex
from .rule import Rule
from .tree import Choice, Configuration, Epoch, Phase, UpdateTree

__all__ = ["Choice", "Configuration", "Epoch", "Explorer", "Phase", "ProfileIndex", "Proposal", "Row", "Rule",
           "UpdateTree"]  # fmt: skip
