"""Compare Roller with other tuners, side by side on one machine; only `relay` and `relax` import a TVM."""
