"""rTiles, rPrograms and their construction (no TVM)."""

from ..recipes import RECIPES
from ..roller.alignment import Rejection
from ..roller.rprogram import Plan, RProgram
from ..roller.rtile import RTile
from .construct import construct
from .construction import Construction, RankedPlan

__all__ = ["RECIPES", "Construction", "Plan", "RProgram", "RTile", "RankedPlan", "Rejection", "construct"]
