"""Tuning, common to both lines of TVM: the protocol of a line, the tuner, workers, measuring. Imports no TVM."""
