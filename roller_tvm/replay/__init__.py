"""Recorded truth: Ansor's record files read without TVM, and held against the micro-performance model."""
