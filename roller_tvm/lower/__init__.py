"""Rewriting of flattened loops, and the application of schedule steps (no TVM)."""
