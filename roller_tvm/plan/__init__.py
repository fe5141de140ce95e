"""rTiles, rPrograms and their construction (no TVM)."""

from .align import Rejection
from .candidates import Construction, RankedPlan
from .construct import construct
from .program import RECIPES, Plan, RProgram, RTile

__all__ = ["RECIPES", "Construction", "Plan", "RProgram", "RTile", "RankedPlan", "Rejection", "construct"]
