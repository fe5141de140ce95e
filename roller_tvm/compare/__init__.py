"""Comparing Roller with other tuners, side by side on one machine; what knows a TVM is in `relay` and `relax` alone."""
