"""Whole models in a comparison: where they come from, how others run them, how their latencies are timed."""
