"""Whole models in a comparison: their files, other implementations of them, and the timing of latencies."""
