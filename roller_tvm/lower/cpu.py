from __future__ import annotations
def lower_cpu_tiled(expression, program):
    raise NotImplementedError
def lower_cpu_direct(expression, program):
    raise NotImplementedError
