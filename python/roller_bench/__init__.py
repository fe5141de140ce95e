"""Tools that set Roller beside its peers: ``roller-tvm compare``, and ``python -m roller_bench`` for the figures."""
