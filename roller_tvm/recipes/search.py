"""The former name of a recipe's context."""

from .recipe import Context as Search

__all__ = ["Search"]
