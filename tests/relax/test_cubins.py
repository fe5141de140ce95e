"""Kernels for CUDA are compiled in parts; each of TVM's modules gets the code of its own part."""

import pytest

tvm = pytest.importorskip("tvm")
pytest.importorskip("tvm.tirx", reason="needs the Relax line")
pytestmark = pytest.mark.relax

import tvm_ffi  # noqa: E402
from tvm import te  # noqa: E402

from roller_tvm.relax import cubins  # noqa: E402
from roller_tvm.relax.cubins import CALLBACK, Cubins  # noqa: E402


class Module:
    """TVM's module of some kernels: their names, and the code that it was given."""

    def __init__(self, names):
        self.names, self.code = names, tvm_ffi.get_global_func(CALLBACK)(f"source of {names}")
        self.imports = []

    def import_module(self, other):
        self.imports.append(other)


def kernels(*lengths):
    """Functions whose text is as long as they have terms."""
    made = {}
    for n, terms in enumerate(lengths):
        x = te.placeholder((8,), "float32", name="x")
        y = te.compute((8,), lambda i: sum((x[i] for _ in range(terms)), x[i]), name="y")  # noqa: B023
        made[f"f{n}"] = te.create_prim_func([x, y])
    return tvm.IRModule(made)


def test_each_part_has_its_own_code(monkeypatch):
    compiled = []
    monkeypatch.setattr(cubins.os, "sched_getaffinity", lambda _: {0, 1, 2})
    monkeypatch.setattr(Cubins, "compile", lambda self, source: (compiled.append(source), source.encode())[1])
    generate = lambda mod, _: Module(sorted(str(v.name_hint) for v in mod.functions))  # noqa: E731
    first = Cubins("sm_90")._in_parts(generate, kernels(12, 1, 1, 1, 6), None)
    parts = [first, *first.imports]
    assert sorted(name for part in parts for name in part.names) == ["f0", "f1", "f2", "f3", "f4"]
    assert first.names == ["f0"] and len(parts) == 3, "the longest alone"
    assert all(bytes(part.code) == f"source of {part.names}".encode() for part in parts)
    assert len(compiled) == 3
