"""Plans explained in the words of a performance engineer (no TVM)."""

from .plan_text import explain, explain_steps
from .runners import why_slower

__all__ = ["explain", "explain_steps", "why_slower"]
