from __future__ import annotations
def construct_cpu(search, top):
    raise NotImplementedError
