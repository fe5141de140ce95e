"""Files that are programs are read when somebody says that they are trusted, and not before."""

import json
import threading
import zipfile

import numpy as np
import pytest

from roller_tvm import cli
from roller_tvm.errors import BadInput, Untrusted

from .imports import LINE, load_model

pytestmark = pytest.mark.te


def hostile(path, ran):
    """Write a module that runs a command when its constants are folded (Relax), or just a module (Relay)."""
    import tvm

    if LINE == "relay":
        from tvm import relay

        x = relay.var("x", shape=(4,))
        path.write_text(tvm.ir.save_json(tvm.IRModule.from_expr(relay.Function([x], relay.nn.relu(x)))))
        return path
    from tvm import relax
    from tvm.script import ir as script
    from tvm.script import relax as r
    from tvm.script import tirx as t

    command = f"touch {ran}"

    @script.ir_module
    class Hostile:
        @t.prim_func
        def run(a: t.Buffer((4,), "float32"), b: t.Buffer((4,), "float32")):
            t.evaluate(t.call_extern("int32", "system", command))
            for i in range(4):
                b[i] = a[i]

        @r.function
        def main(x: r.Tensor((4,), "float32")) -> r.Tensor((4,), "float32"):
            cls = Hostile
            with r.dataflow():
                c = r.call_tir(cls.run, (r.const(np.ones(4, "float32")),), out_ty=r.Tensor((4,), "float32"))
                y = r.add(x, c)
                r.output(y)
            return y

    assert isinstance(Hostile, tvm.IRModule) and relax
    path.write_text(str(tvm.ir.save_json(Hostile)))
    return path


def test_a_module_of_a_stranger_is_not_read(tmp_path, capsys):
    ran = tmp_path / "ran"
    path = hostile(tmp_path / "m.json", ran)
    with pytest.raises(Untrusted, match="module as JSON, a program") as caught:
        load_model(path)
    assert "--trust-model" in caught.value.remedy and "trusted=True" in caught.value.remedy
    assert cli.main(["tune", str(path), "--tasks", "list"]) == 2
    said = capsys.readouterr().err
    assert "Traceback" not in said and "--trust-model" in said and not ran.exists()
    assert "x" in load_model(path, trusted=True).inputs


def test_an_exported_program_of_a_stranger_is_not_read(tmp_path):
    path = tmp_path / "m.pt2"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("m/archive_format", "pt2")
    with pytest.raises(Untrusted, match="is an ExportedProgram, a program"):
        load_model(path)


@pytest.mark.parametrize("content", [b"\xff\xfe{}", b"[" * 5000, b'{"nodes": ' + b"[" * 500 + b"]" * 500 + b"}"])
def test_what_no_reader_should_see_is_refused_before_tvm(tmp_path, content):
    path = tmp_path / "m.json"
    path.write_bytes(content)
    with pytest.raises(BadInput, match="is not a Rel.* module as JSON: (byte 0|brackets deeper)"):
        load_model(path, trusted=True)


def test_a_module_within_itself(tmp_path, monkeypatch):
    # TVM's reader calls itself until its stack ends, and with it the process.
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    file = hostile(tmp_path / "model.json", tmp_path / "ran")
    graph = json.loads(file.read_text())
    at, node = next((n, node) for n, node in enumerate(graph["nodes"]) if isinstance(node.get("data"), list))
    node["data"] = [at, *node["data"][1:]]
    file.write_text(json.dumps(graph))
    with pytest.raises(BadInput, match="is not a .* module as JSON"):
        load_model(file, trusted=True)
